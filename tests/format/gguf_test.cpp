// GGUF files: what is read, and one clear error for each kind of damage.
#include <cmath>

#include "format/gguf_value.h"
#include "format_test_util.h"

namespace millrace::format {
namespace {

#define EXPECT_MENTIONS(text, what) EXPECT_NE((text).find(what), std::string::npos) << (text)

std::string text(std::string_view value) { return le<uint64_t>(value.size()) + std::string(value); }

// Writes GGUF files by hand, so that every field can be wrong.
struct Builder {
  uint32_t version = 3;
  std::string keys, infos, data;
  uint64_t key_count = 0, tensor_count = 0;

  Builder& key(std::string_view name, uint32_t type, const std::string& value) {
    keys += text(name) + le<uint32_t>(type) + value;
    ++key_count;
    return *this;
  }
  Builder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                  uint64_t offset) {
    infos += text(name) + le<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) infos += le<uint64_t>(dim);
    infos += le<uint32_t>(type) + le<uint64_t>(offset);
    ++tensor_count;
    return *this;
  }
  std::string file(size_t data_bytes, size_t alignment = 32) const {
    std::string out = "GGUF" + le(version) + le(tensor_count) + le(key_count) + keys + infos;
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + std::string(data_bytes, '\1');
  }
};

std::string header_error(std::string_view file, uint64_t size) {
  auto parsed = parse_gguf_header("m.gguf", file, size);
  return parsed ? "" : parsed.error().message;
}
std::string header_error(const std::string& file) { return header_error(file, file.size()); }

constexpr uint32_t kU8 = 0, kU32 = 4, kF32 = 6, kString = 8, kArray = 9;

TEST(Gguf, ReadsWhatTheReferenceWrites) {
  auto source = open_source(fixture("small.gguf"));
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ(source->kind, SourceKind::kGguf);
  const GgufMetadata& meta = source->gguf;
  EXPECT_EQ(*get_uint(meta, "test.u8"), 200u);
  EXPECT_EQ(*get_int(meta, "test.i8"), -100);
  EXPECT_EQ(*get_uint(meta, "test.u16"), 60000u);
  EXPECT_EQ(*get_int(meta, "test.i16"), -30000);
  EXPECT_EQ(*get_uint(meta, "test.u32"), 4000000000u);
  EXPECT_EQ(*get_int(meta, "test.i32"), -2000000000);
  EXPECT_EQ(*get_uint(meta, "test.u64"), uint64_t{1} << 60);
  EXPECT_EQ(*get_int(meta, "test.i64"), -(int64_t{1} << 60));
  EXPECT_EQ(*get_float(meta, "test.f32"), 0.5);
  EXPECT_EQ(*get_float(meta, "test.f64"), 0.1);
  EXPECT_TRUE(*get_bool(meta, "test.bool"));
  EXPECT_EQ(*get_string(meta, "test.string"), "h\xc3\xa9llo");
  EXPECT_EQ(**get_strings(meta, "test.strings"),
            (std::vector<std::string>{"a", "", "\xe6\x97\xa5\xe6\x9c\xac"}));
  EXPECT_EQ(*get_ints(meta, "test.ints"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(*get_floats(meta, "test.floats"), (std::vector<double>{1.5, -2.5}));
  EXPECT_EQ(*get_bools(meta, "test.bools"), (std::vector<bool>{true, false, true}));

  ASSERT_EQ(source->tensors.size(), 5u);
  const SourceTensor* q6 = source->find("q6_k.weight");
  ASSERT_NE(q6, nullptr);
  EXPECT_EQ(q6->type, SourceType::kQ6_K);
  EXPECT_EQ(q6->shape, (std::vector<uint64_t>{3, 256}));
  EXPECT_EQ(q6->bytes, 630u);
  EXPECT_EQ(source->find("cube.weight")->shape, (std::vector<uint64_t>{2, 3, 4}));
  const std::string bytes = read_file(fixture("small.gguf"));
  float value = 0;
  std::memcpy(&value, bytes.data() + source->find("norm.weight")->offset + 16, 4);
  EXPECT_EQ(value, 4.0f);
}

TEST(Gguf, TypedAccessSaysWhatIsWrong) {
  GgufMetadata meta;
  meta["n"].value = int64_t{-1};
  meta["s"].value = std::string("x");
  meta["f"].value = 1.5;
  meta["a"].value = std::vector<uint64_t>{1, UINT64_MAX};
  EXPECT_EQ(get_uint(meta, "gone").error().code, Code::kNotFound);
  EXPECT_MENTIONS(get_uint(meta, "gone").error().message, "'gone'");
  EXPECT_MENTIONS(get_uint(meta, "n").error().message, "'n' is not an unsigned integer");
  EXPECT_MENTIONS(get_int(meta, "f").error().message, "'f' is not an integer");
  EXPECT_MENTIONS(get_bool(meta, "n").error().message, "'n' is not a boolean");
  EXPECT_MENTIONS(get_string(meta, "n").error().message, "'n' is not a string");
  EXPECT_MENTIONS(get_strings(meta, "s").error().message, "'s' is not an array of strings");
  EXPECT_MENTIONS(get_ints(meta, "a").error().message, "'a' is not an array of integers");
  EXPECT_FALSE(get_uint_or(meta, "s", 3));
  EXPECT_EQ(*get_uint_or(meta, "gone", 3), 3u);
  EXPECT_EQ(*get_int_or(meta, "gone", -3), -3);
  EXPECT_EQ(*get_float_or(meta, "gone", 0.5), 0.5);
  EXPECT_EQ(*get_string_or(meta, "gone", "d"), "d");
  EXPECT_TRUE(*get_bool_or(meta, "gone", true));
  EXPECT_EQ(*get_floats(meta, "a"), (std::vector<double>{1, 18446744073709551615.0}));
  EXPECT_EQ(*get_ints(meta, "n"), (std::vector<int64_t>{-1}));
  EXPECT_TRUE(has_key(meta, "n"));
  EXPECT_FALSE(has_key(meta, "gone"));
}

TEST(Gguf, Version2AndTightAlignment) {
  Builder b;
  b.version = 2;
  b.key("general.alignment", kU32, le<uint32_t>(8))
      .tensor("t", {4, 2}, 0, 0)
      .tensor("u", {3}, 1, 32);
  const std::string file = b.file(38, 8);
  EXPECT_EQ(header_error(file), "");
  auto parsed = parse_gguf_header("m", file, file.size());
  EXPECT_EQ(parsed->tensors[1].offset, parsed->data_begin + 32);
}

TEST(GgufDamage, Header) {
  Builder b;
  b.tensor("t", {8}, 0, 0);
  std::string file = b.file(32);
  ASSERT_EQ(header_error(file), "");
  std::string bad = file;
  bad[0] = 'X';
  EXPECT_MENTIONS(header_error(bad), "bad magic");
  b.version = 1;
  EXPECT_MENTIONS(header_error(b.file(32)), "version 1 is not supported");
  b.version = 0x03000000;
  EXPECT_MENTIONS(header_error(b.file(32)), "big-endian");
  b.version = 3;
  for (const uint64_t hostile : {uint64_t{1} << 20, uint64_t{1} << 40, UINT64_MAX}) {
    Builder counts = b;
    counts.tensor_count = hostile;
    EXPECT_MENTIONS(header_error(counts.file(32)), "tensors cannot be in a file");
    counts = b;
    counts.key_count = hostile;
    EXPECT_MENTIONS(header_error(counts.file(32)), "metadata keys cannot be in a file");
  }
}

TEST(GgufDamage, Metadata) {
  const auto error = [](std::string_view name, uint32_t type, const std::string& value) {
    return header_error(Builder().key(name, type, value).tensor("t", {8}, 0, 0).file(32));
  };
  EXPECT_EQ(error("k", kF32, le(1.0f)), "");
  EXPECT_MENTIONS(error("k", 77, ""), "'k' has unknown type 77");
  EXPECT_MENTIONS(error("k", kArray, le<uint32_t>(77) + le<uint64_t>(1)),
                  "'k' is an array of unknown type 77");
  EXPECT_MENTIONS(error("k", kArray, le<uint32_t>(kArray) + le<uint64_t>(1)),
                  "'k' is an array of arrays");
  for (const uint64_t hostile : {uint64_t{1} << 20, uint64_t{1} << 61, UINT64_MAX}) {
    EXPECT_MENTIONS(error("k", kArray, le<uint32_t>(kU8) + le(hostile)), "'k': an array of");
    EXPECT_MENTIONS(error("k", kArray, le<uint32_t>(kString) + le(hostile)), "'k': an array of");
    EXPECT_MENTIONS(error("k", kString, le(hostile)), "'k'");
  }
  EXPECT_MENTIONS(header_error(Builder().key("k", kU8, "a").key("k", kU8, "b").file(0)),
                  "'k' occurs twice");
  for (const uint32_t alignment : {0u, 3u, 48u, 0x80000000u}) {
    EXPECT_MENTIONS(error("general.alignment", kU32, le(alignment)), "general.alignment");
  }
  EXPECT_MENTIONS(error("general.alignment", kString, text("32")), "general.alignment");
}

TEST(GgufDamage, Tensors) {
  const auto error = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    return header_error(Builder().tensor("blk.0.w", dims, type, offset).file(64));
  };
  EXPECT_EQ(error({16}, 0, 0), "");
  const struct {
    std::string error;
    const char* says;
  } cases[] = {
      {error({256}, 17, 0), "type iq2_xs, which is not supported"},
      {error({256}, 99, 0), "unknown type 99"},
      {error({33}, 2, 0), "not a multiple of the q4_0 block of 32"},
      {error({128}, 12, 0), "not a multiple of the q4_K block of 256"},
      {error({1, 1, 1, 1, 1}, 0, 0), "5 axes"},
      {error({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0), "too many elements"},
      {error({UINT64_MAX}, 24, 0), "too many elements"},
      {error({17}, 0, 0), "past the end of the file"},
      {error({1}, 0, 8), "not aligned to 32"},
      {error({1}, 0, 64), "past the end of the file"},
      {error({8}, 0, 32), "gap of 32 bytes"},
      {error({1}, 0, UINT64_MAX - 31), "past the end of the file"},
  };
  for (const auto& c : cases) {
    EXPECT_MENTIONS(c.error, c.says);
    EXPECT_MENTIONS(c.error, "blk.0.w");
    EXPECT_MENTIONS(c.error, "m.gguf");
  }
  EXPECT_MENTIONS(header_error(Builder().tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).file(64)),
                  "'a' and 'b' overlap");
  EXPECT_MENTIONS(header_error(Builder().tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).file(64)),
                  "'a' occurs twice");
}

TEST(GgufDamage, EveryTruncationAndFlippedBitIsHandled) {
  const std::string good = read_file(fixture("small.gguf"));
  auto parsed = parse_gguf_header("m", good, good.size());
  ASSERT_TRUE(parsed);
  // Only the padding behind the last tensor may be missing.
  uint64_t end = 0;
  for (const SourceTensor& tensor : parsed->tensors)
    end = std::max(end, tensor.offset + tensor.bytes);
  for (size_t size = 0; size < end; ++size)
    EXPECT_NE(header_error(good.substr(0, size)), "") << size;
  for (size_t bit = 0; bit < 8 * parsed->data_begin; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    header_error(bad);
  }
}

TEST(Gguf, HeadersLongerThanTheFirstReadAreReadOn) {
  std::string strings = le<uint32_t>(kString) + le<uint64_t>(200000);
  for (int i = 0; i < 200000; ++i) strings += text(fmt::format("token-{}", i));
  TempFolder folder;
  const std::string path = folder.write(
      "big.gguf",
      Builder().key("tokenizer.ggml.tokens", kArray, strings).tensor("t", {8}, 0, 0).file(32));
  ASSERT_GT(std::filesystem::file_size(path), 3u << 20);
  auto source = open_source(path);
  ASSERT_TRUE(source) << source.error().message;
  EXPECT_EQ((**get_strings(source->gguf, "tokenizer.ggml.tokens"))[199999], "token-199999");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_MENTIONS(open_source(path).error().message, "tokenizer.ggml.tokens");
}

// Copies the split fixture, damages it and opens part `number`.
template <class Edit>
Expected<ModelSource> open_split(int number, Edit edit) {
  TempFolder folder;
  for (int i = 1; i <= 3; ++i) {
    const std::string name = fmt::format("split-{:05}-of-00003.gguf", i);
    folder.write(name, read_file(fixture(name)));
  }
  edit(folder);
  return open_source(folder / fmt::format("split-{:05}-of-00003.gguf", number));
}

TEST(GgufSplit, AnyPartOpensAll) {
  for (int number = 1; number <= 3; ++number) {
    auto source = open_split(number, [](const TempFolder&) {});
    ASSERT_TRUE(source) << source.error().message;
    EXPECT_EQ(source->files.size(), 3u);
    ASSERT_EQ(source->tensors.size(), 5u);
    EXPECT_EQ(source->find("t4")->file, 2u);
    EXPECT_EQ(*get_string(source->gguf, "general.name"), "split");
    EXPECT_MENTIONS(source->path, "split-00001-of-00003.gguf");
  }
}

TEST(GgufSplit, DamageIsNamed) {
  auto missing = open_split(
      1, [](const TempFolder& f) { std::filesystem::remove(f / "split-00002-of-00003.gguf"); });
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_MENTIONS(missing.error().message, "split-00002-of-00003.gguf: part 2 of 3 is missing");

  auto swapped = open_split(1, [](const TempFolder& f) {
    f.write("split-00002-of-00003.gguf", read_file(fixture("split-00003-of-00003.gguf")));
  });
  ASSERT_FALSE(swapped);
  EXPECT_MENTIONS(swapped.error().message, "split-00002-of-00003.gguf: split.no 2");

  TempFolder renamed;
  const std::string path =
      renamed.write("model.gguf", read_file(fixture("split-00001-of-00003.gguf")));
  EXPECT_MENTIONS(open_source(path).error().message, "its name does not end in");

  TempFolder odd;
  const std::string odd_path = odd.write(
      "odd.gguf", Builder().key("split.count", kString, text("2")).tensor("t", {8}, 0, 0).file(32));
  EXPECT_MENTIONS(open_source(odd_path).error().message, "odd.gguf: GGUF key 'split.count' is not");

  const auto part = [](uint16_t number, uint64_t total) {
    return Builder()
        .key("split.no", 2, le(number))
        .key("split.count", 2, le<uint16_t>(2))
        .key("split.tensors.count", 5, le(static_cast<int32_t>(total)))
        .tensor(fmt::format("t{}", number), {8}, 0, 0)
        .file(32);
  };
  TempFolder wrong;
  wrong.write("m-00001-of-00002.gguf", part(0, 3));
  wrong.write("m-00002-of-00002.gguf", part(1, 3));
  EXPECT_MENTIONS(open_source(wrong / "m-00002-of-00002.gguf").error().message,
                  "split.tensors.count is 3, but the parts hold 2 tensors");
}

}  // namespace
}  // namespace millrace::format
