// safetensors headers and Hugging Face folders: what is read, and one clear error for each kind of
// damage.
#include <nlohmann/json.hpp>

#include "format_test_util.h"

namespace millrace::format {
namespace {

using ::testing::Test;

// The error of a header, or "" when it parses.
std::string header_error(std::string_view file, uint64_t file_size) {
  auto parsed = parse_safetensors_header("w.safetensors", file, file_size, nullptr);
  return parsed ? "" : parsed.error().message;
}
std::string header_error(const std::string& file) { return header_error(file, file.size()); }

#define EXPECT_MENTIONS(text, what) EXPECT_NE((text).find(what), std::string::npos) << (text)

TEST(Safetensors, ReadsTensorsInFileOrder) {
  const std::string file = safetensors(
      R"({"__metadata__":{"format":"pt"},
          "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},
          "a":{"shape":[],"data_offsets":[0,8],"dtype":"I64"},
          "empty":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]}})",
      20);
  uint64_t data_begin = 0;
  auto parsed = parse_safetensors_header("w", file, file.size(), &data_begin);
  ASSERT_TRUE(parsed) << parsed.error().message;
  ASSERT_EQ(parsed->size(), 3u);
  EXPECT_EQ(data_begin, file.size() - 20);
  EXPECT_EQ((*parsed)[0].name, "a");
  EXPECT_EQ((*parsed)[0].bytes, 8u);
  EXPECT_EQ((*parsed)[1].name, "empty");
  EXPECT_EQ((*parsed)[2].name, "b");
  EXPECT_EQ((*parsed)[2].type, SourceType::kBF16);
  EXPECT_EQ((*parsed)[2].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ((*parsed)[2].offset, data_begin + 8);
}

TEST(Safetensors, EveryDtype) {
  const std::pair<const char*, SourceType> dtypes[] = {
      {"F32", SourceType::kF32},        {"F16", SourceType::kF16},
      {"BF16", SourceType::kBF16},      {"F64", SourceType::kF64},
      {"I8", SourceType::kI8},          {"U8", SourceType::kU8},
      {"I16", SourceType::kI16},        {"U16", SourceType::kU16},
      {"I32", SourceType::kI32},        {"U32", SourceType::kU32},
      {"I64", SourceType::kI64},        {"U64", SourceType::kU64},
      {"BOOL", SourceType::kBool},      {"F8_E4M3", SourceType::kF8E4M3},
      {"F8_E5M2", SourceType::kF8E5M2}, {"F8_E8M0", SourceType::kF8E8M0}};
  for (const auto& [dtype, type] : dtypes) {
    const size_t bytes = 3 * info(type).block_bytes;
    const std::string file = safetensors(
        fmt::format(R"({{"t":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})", dtype, bytes),
        bytes);
    auto parsed = parse_safetensors_header("w", file, file.size(), nullptr);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_EQ((*parsed)[0].type, type);
  }
}

TEST(SafetensorsDamage, Lengths) {
  EXPECT_MENTIONS(header_error("abc"), "too short");
  EXPECT_MENTIONS(header_error(le<uint64_t>(1000) + "{}"), "past the end of the file");
  EXPECT_MENTIONS(header_error(le<uint64_t>(UINT64_MAX) + "{}"), "over the limit");
  EXPECT_MENTIONS(header_error(le<uint64_t>(uint64_t{1} << 33) + "{}", uint64_t{1} << 40),
                  "over the limit");
}

TEST(Safetensors, MetadataMayBeNull) {
  EXPECT_EQ(header_error(safetensors(
                R"({"__metadata__":null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)),
            "");
}

TEST(SafetensorsDamage, NotTheRightJson) {
  for (const char* header :
       {"", "{", "[1]", "nope", R"({"t":3})", R"({"t":null})", R"({"t":{"dtype":5}})",
        R"({"t":{"shape":[-1]}})", R"({"t":{"shape":[1.5]}})", R"({"t":{"shape":[[1]]}})",
        R"({"t":{"shape":[true]}})", R"({"t":{"shape":"x"}})", R"({"t":[]})",
        R"({"__metadata__":{"a":1}})", R"({"__metadata__":{"a":{}}})", R"({"__metadata__":[]})",
        "{}{}"}) {
    EXPECT_NE(header_error(safetensors(header, 0)), "") << header;
  }
  EXPECT_MENTIONS(header_error(safetensors("{", 0)), "not JSON");
  EXPECT_MENTIONS(header_error(safetensors(R"({"t":{"shape":[-1]}})", 0)), "'t'");
  EXPECT_MENTIONS(header_error(safetensors(std::string(100000, '['), 0)), "unexpected array");
}

std::string one(const char* fields) { return fmt::format(R"({{"layer.weight":{{{}}}}})", fields); }

TEST(SafetensorsDamage, Tensors) {
  const struct {
    const char* fields;
    const char* says;
  } cases[] = {
      {R"("dtype":"F4","shape":[2],"data_offsets":[0,8])", "dtype F4 is not supported"},
      {R"("dtype":"F32","shape":[2])", "no data_offsets"},
      {R"("dtype":"F32","data_offsets":[0,8])", "no shape"},
      {R"("shape":[2],"data_offsets":[0,8])", "no dtype"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1)", "unknown field 'extra'"},
      {R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])", "'dtype' occurs twice"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0])", "needs two numbers"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,4,8])", "needs two numbers"},
      {R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", "needs 12 bytes"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", "needs 8 bytes"},
      {R"("dtype":"F32","shape":[4],"data_offsets":[0,16])", "past the end of the file"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615])",
       "needs 8 bytes"},
      {R"("dtype":"U8","shape":[8],"data_offsets":[9223372036854775800,9223372036854775808])",
       "past the end"},
      {R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])",
       "too many elements"},
      {R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])",
       "too many elements"},
      {R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])",
       "unexpected fraction"},
      {R"("dtype":"U8","shape":[4],"data_offsets":[4,8])", "gap of 4 bytes"},
      {R"("dtype":"U8","shape":[4],"data_offsets":[0,4])", "4 bytes after the last tensor"},
  };
  for (const auto& c : cases) {
    const std::string error = header_error(safetensors(one(c.fields), 8));
    EXPECT_MENTIONS(error, c.says);
    EXPECT_MENTIONS(error, "w.safetensors");
    if (std::string_view(c.says).find("last tensor") == std::string_view::npos) {
      EXPECT_MENTIONS(error, "layer.weight");
    }
  }
  std::string axes = "1";
  for (int i = 0; i < 40; ++i) axes += ",1";
  EXPECT_MENTIONS(
      header_error(safetensors(
          one(fmt::format(R"("dtype":"F32","shape":[{}],"data_offsets":[0,4])", axes).c_str()), 8)),
      "more than 32 axes");
}

TEST(SafetensorsDamage, OverlapAndDuplicates) {
  const std::string overlap = header_error(safetensors(
      R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
      8));
  EXPECT_MENTIONS(overlap, "'a' and 'b' overlap");
  const std::string by_one = header_error(safetensors(
      R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
      8));
  EXPECT_MENTIONS(by_one, "'a' and 'b' overlap");
  const std::string twice = header_error(safetensors(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
      8));
  EXPECT_MENTIONS(twice, "'a' occurs twice");
}

TEST(SafetensorsDamage, EveryTruncationAndFlippedBitIsHandled) {
  const std::string good = safetensors(
      R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"U8","shape":[4],"data_offsets":[16,20]}})",
      20);
  ASSERT_EQ(header_error(good), "");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_NE(header_error(good.substr(0, size)), "") << size;
  for (size_t bit = 0; bit < 8 * (good.size() - 20); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    header_error(bad);  // a name may change without harm; nothing may crash
  }
}

// A folder with two shards and an index; `edit` damages it before it is opened.
template <class Edit>
std::string folder_error(Edit edit) {
  TempFolder folder;
  folder.write("config.json", R"({"model_type":"qwen3"})");
  folder.write("a.safetensors",
               safetensors(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  folder.write("b.safetensors",
               safetensors(R"({"y":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  folder.write("expected.safetensors", "not one of the model's files");
  folder.write("model.safetensors.index.json",
               R"({"metadata":{},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  edit(folder);
  auto source = open_source(folder.path());
  return source ? "" : source.error().message;
}

TEST(HuggingFaceFolder, Opens) {
  EXPECT_EQ(folder_error([](const TempFolder&) {}), "");
  EXPECT_EQ(folder_error([](const TempFolder& f) {
              std::filesystem::remove(f / "model.safetensors.index.json");
            }),
            "");
  TempFolder folder;
  folder.write("config.json",
               R"({"limit":[0.0,Infinity,-Infinity],"text":"NaN \" Infinity","x":NaN})");
  folder.write("model.safetensors",
               safetensors(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  folder.write("other.safetensors", "ignored beside model.safetensors");
  auto source = open_source(folder.path() + "/");
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->kind, SourceKind::kHuggingFace);
  EXPECT_EQ(source->path, folder.path());
  ASSERT_EQ(source->files.size(), 1u);
  EXPECT_EQ(source->files[0].name, "model.safetensors");
  ASSERT_NE(source->find("x"), nullptr);
  EXPECT_EQ(source->find("nope"), nullptr);
  EXPECT_EQ((*source->config)["text"], "NaN \" Infinity");
  EXPECT_TRUE((*source->config)["x"].is_null());
  EXPECT_GT((*source->config)["limit"][1].get<double>(), 1e308);
  EXPECT_LT((*source->config)["limit"][2].get<double>(), -1e308);
}

TEST(HuggingFaceFolder, DamageIsNamed) {
  const char* index = "model.safetensors.index.json";
  const struct {
    std::string error;
    const char* says;
  } cases[] = {
      {folder_error([](const TempFolder& f) { std::filesystem::remove(f / "b.safetensors"); }),
       "shard 'b.safetensors' is missing"},
      {folder_error([](const TempFolder& f) { std::filesystem::remove(f / "config.json"); }),
       "config.json"},
      {folder_error([](const TempFolder& f) { f.write("config.json", R"({"a":1,"a":2})"); }),
       "config.json: key 'a' occurs twice"},
      {folder_error([](const TempFolder& f) { f.write("config.json", "[]"); }),
       "not a JSON object"},
      {folder_error([](const TempFolder& f) { f.write("config.json", "{"); }), "config.json"},
      {folder_error([&](const TempFolder& f) { f.write(index, "{}"); }), "no weight_map"},
      {folder_error([&](const TempFolder& f) { f.write(index, R"({"weight_map":{}})"); }),
       "weight_map is empty"},
      {folder_error([&](const TempFolder& f) { f.write(index, R"({"weight_map":{"x":3}})"); }),
       "'x'"},
      {folder_error([&](const TempFolder& f) {
         f.write(index, R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})");
       }),
       "key 'x' occurs twice"},
      {folder_error([&](const TempFolder& f) {
         f.write(index, R"({"weight_map":{"x":"../a.safetensors"}})");
       }),
       "'../a.safetensors'"},
      {folder_error([&](const TempFolder& f) {
         f.write(index,
                 R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors","z":"b.safetensors"}})");
       }),
       "tensor 'z' is not in b.safetensors"},
      {folder_error([&](const TempFolder& f) {
         f.write(index, R"({"weight_map":{"x":"b.safetensors","y":"a.safetensors"}})");
       }),
       "'x' should be in b.safetensors but is in a.safetensors"},
      {folder_error(
           [&](const TempFolder& f) { f.write(index, R"({"weight_map":{"x":"a.safetensors"}})"); }),
       ""},
      {folder_error([&](const TempFolder& f) {
         f.write("b.safetensors",
                 safetensors(R"({"y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                                                  "w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                             4));
       }),
       "tensor 'w' of b.safetensors is not in the index"},
      {folder_error([](const TempFolder& f) {
         std::filesystem::copy_file(f / "a.safetensors", f / "b.safetensors",
                                    std::filesystem::copy_options::overwrite_existing);
       }),
       "tensor 'x' is already in a.safetensors"},
      {folder_error(
           [](const TempFolder& f) { std::filesystem::resize_file(f / "a.safetensors", 30); }),
       "a.safetensors: header length"},
      {folder_error(
           [](const TempFolder& f) { std::filesystem::resize_file(f / "a.safetensors", 3); }),
       "a.safetensors: 3 bytes is too short"},
  };
  for (const auto& c : cases) EXPECT_MENTIONS(c.error, c.says);
  TempFolder empty;
  empty.write("config.json", "{}");
  empty.write("m.gguf", "x");
  auto source = open_source(empty.path());
  ASSERT_FALSE(source);
  EXPECT_MENTIONS(source.error().message, "name the .gguf file itself");
  EXPECT_EQ(open_source(empty / "nothing").error().code, Code::kNotFound);
}

}  // namespace
}  // namespace millrace::format
