// Manifests made to hurt: each is one clear error, and none leads out of the folder.
#include <nlohmann/json.hpp>

#include "tests/pack/pack_test_util.h"

namespace millrace::format {
namespace {

using nlohmann::json;

class ManifestAttack : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    const Sample sample = make_affine(*folder_ / "source");
    auto packed = pack_model(sample.job(*folder_ / "packed"));
    ASSERT_TRUE(packed) << packed.error().message;
    text_ = new std::string(read_all(*folder_ / "packed/manifest.json"));
  }
  static void TearDownTestSuite() {
    delete folder_;
    delete text_;
  }

  // The message for the manifest after `change`, as the parser and as a whole folder see it.
  static std::string after(const std::function<void(json&)>& change) {
    json root = json::parse(*text_);
    change(root);
    root.erase("xxh3_128");
    std::string body = root.dump();
    body.back() = ',';
    const std::string sealed = seal_manifest(body);
    const std::string message = message_of(read_manifest("manifest.json", sealed));
    write_all(*folder_ / "packed/manifest.json", sealed);
    EXPECT_EQ(message == "(no error)", open_manifest(*folder_ / "packed").has_value());
    return message;
  }

  static void expect(const std::function<void(json&)>& change, std::string_view part) {
    const std::string message = after(change);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }

  static TempFolder* folder_;
  static std::string* text_;
};
TempFolder* ManifestAttack::folder_ = nullptr;
std::string* ManifestAttack::text_ = nullptr;

TEST_F(ManifestAttack, NothingChangedIsFine) {
  EXPECT_EQ(after([](json&) {}), "(no error)");
}

TEST_F(ManifestAttack, Seal) {
  EXPECT_NE(message_of(read_manifest("m", "")).find("cut short"), std::string::npos);
  EXPECT_NE(message_of(read_manifest("m", text_->substr(0, 500))).find("cut short"),
            std::string::npos);
  std::string edited = *text_;
  edited[edited.find("\"layer\":0") + 8] = '1';
  EXPECT_NE(message_of(read_manifest("m", edited)).find("damaged or edited"), std::string::npos);
}

TEST_F(ManifestAttack, Numbers) {
  const auto piece = [](const char* key, json value) {
    return [=](json& root) { root["pieces"][1][key] = value; };
  };
  expect(piece("bytes", -4096), "'bytes' is no number");
  expect(piece("bytes", 1e300), "'bytes' is no number");
  expect(piece("bytes", 0), "no multiple");
  expect(piece("bytes", 100), "no multiple");
  expect(piece("bytes", uint64_t{1} << 61), "more than");
  expect(piece("bytes", UINT64_MAX), "more than");
  expect(piece("offset", (uint64_t{1} << 60) - 4096 + 4096), "lie outside");
  expect(piece("offset", "0"), "'offset' is no number");
  expect(piece("offset", 12), "no multiple");
  expect(piece("file", 77), "no weights file 77");
  expect(piece("file", uint64_t{1} << 33), "'file' is");
  expect(piece("layer", -5), "'layer'");
  expect(piece("layer", uint64_t{1} << 31), "'layer'");
  expect(piece("name", nullptr), "'name' is no text");
  expect(piece("name", "a\nb"), "control characters");
  expect(piece("kind", "attention"), "unknown kind \"attention\"");
  expect(piece("xxh3_128", "abc"), "32 hex digits");
  expect([](json& root) { root["version"] = 2; }, "version 2");
  expect([](json& root) { root["version"] = -1; }, "'version'");
  expect([](json& root) { root["format"] = "other"; }, "'format' is \"other\"");
}

TEST_F(ManifestAttack, Places) {
  expect([](json& root) { root["pieces"][2]["name"] = root["pieces"][1]["name"]; }, "occurs twice");
  expect([](json& root) { root["pieces"].push_back(root["pieces"][1]); }, "occurs twice");
  expect(
      [](json& root) {
        root["pieces"][2]["offset"] = root["pieces"][1]["offset"];
        root["pieces"][2]["file"] = root["pieces"][1]["file"];
      },
      "overlap");
  expect([](json& root) { root["pieces"].erase(1); }, "no piece between");
  expect([](json& root) { root["weights"][0]["bytes"] = 4096; }, "lie outside");
  expect([](json& root) { root["pieces"] = "none"; }, "'pieces' is no array");
  expect([](json& root) { root["pieces"] = json::array({1, 2}); }, "something else than objects");
  expect([](json& root) { root["pieces"][0].erase("tensors"); }, "'tensors' is missing");
}

TEST_F(ManifestAttack, Tensors) {
  const auto tensor = [](const char* key, json value) {
    return [=](json& root) { root["pieces"][1]["tensors"][0][key] = value; };
  };
  expect(tensor("role", "soul"), "unknown role 'soul'");
  expect(tensor("layout", "affine4g65_bf16"), "unknown layout");
  expect(tensor("layout", "affine999999999999g64_bf16"), "unknown layout");
  expect(tensor("layout", ""), "unknown weight format");
  expect(tensor("shape", json::array()), "axes");
  expect(tensor("shape", {1, 2, 3}), "axes");
  expect(tensor("shape", {0, 256}), "'shape' holds");
  expect(tensor("shape", {-1, 256}), "'shape' holds");
  expect(tensor("shape", {uint64_t{1} << 40, 256}), "'shape' holds");
  expect(tensor("shape", {INT32_MAX, INT32_MAX - INT32_MAX % 256}), "too large");
  expect(tensor("shape", {8, 256}), "the shape needs");
  expect(tensor("shape", {256}), "cannot be a vector");
  expect(tensor("transposed", true), "cannot be a vector or transposed");
  expect(tensor("offset", 1), "no multiple of 64");
  expect(tensor("offset", 1 << 20), "outside of the piece");
  expect([](json& root) { root["pieces"][0]["tensors"][1]["offset"] = 0; }, "overlaps");
  // The source is only known when the folder is opened.
  EXPECT_EQ(after(tensor("weight", "nobody")), "(no error)");
  EXPECT_NE(message_of(open_packed(*folder_ / "packed")).find("'nobody'"), std::string::npos);
}

TEST_F(ManifestAttack, Paths) {
  for (const char* path : {"../x", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\nb"}) {
    expect([&](json& root) { root["source"]["files"][0]["name"] = path; }, "no plain file name");
    expect([&](json& root) { root["side_files"][0]["name"] = path; },
           "not the name of a side file");
    expect([&](json& root) { root["weights"][0]["file"] = path; }, "should be 'weights-00001.bin'");
  }
  expect([](json& root) { root["source"]["files"][0]["name"] = "manifest.json"; },
         "no plain file name");
  expect([](json& root) { root["source"]["files"][0]["name"] = std::string(300, 'a'); },
         "plain file name");
  expect([](json& root) { root["source"]["files"].push_back(root["source"]["files"][0]); },
         "occurs twice");
  expect([](json& root) { root["side_files"].push_back(root["side_files"][0]); }, "occurs twice");
  expect([](json& root) { root["side_files"][0]["name"] = "authorized_keys"; }, "side file");
}

TEST_F(ManifestAttack, Ranges) {
  const auto range = [](size_t at, json value) {
    return [=](json& root) { root["source"]["ranges"][0][at] = value; };
  };
  expect(range(0, 9), "no file 9");
  expect(range(1, UINT64_MAX), "lie outside");
  expect(range(2, UINT64_MAX), "lie outside");
  expect(range(2, 0), "lie outside");
  expect(range(2, -1), "not [file");
  expect(range(3, 8192), "should be 0");
  expect(range(4, "00"), "32 hex digits");
  expect([](json& root) { root["source"]["ranges"].push_back(root["source"]["ranges"][0]); },
         "overlaps");
  expect([](json& root) { root["source_bin"]["bytes"] = 0; }, "source.bin has 0 bytes");
  expect([](json& root) { root["source"]["files"][0]["data_begin"] = UINT64_MAX; }, "data_begin");
}

TEST_F(ManifestAttack, NotJson) {
  for (const std::string text :
       {"", "{", "[]", "null", "{\"pieces\":[{}]}", "\xff\xfe", "{\"a\":1e999}"}) {
    EXPECT_FALSE(read_manifest_body("m", text)) << text;
  }
  EXPECT_FALSE(read_manifest_body("m", std::string(200000, '[')));
  std::string nested = "{\"pieces\":";
  for (int i = 0; i < 100000; ++i) nested += "[";
  EXPECT_FALSE(read_manifest_body("m", nested));
}

TEST(Manifest, LayoutNames) {
  for (const uint8_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const uint16_t group : {32, 64, 128}) {
      for (const ScaleType scale : {ScaleType::kF32, ScaleType::kF16, ScaleType::kBF16}) {
        const WeightLayout layout{WeightFormat::kAffine, bits, group, scale, 0, 0};
        EXPECT_EQ(layout_from_name(layout_name(layout)), layout);
      }
    }
  }
  for (int i = 0; i < kWeightFormats; ++i) {
    if (static_cast<WeightFormat>(i) == WeightFormat::kAffine) continue;
    const WeightLayout layout{static_cast<WeightFormat>(i), 0, 0, ScaleType::kBF16, 0, 0};
    EXPECT_EQ(layout_from_name(layout_name(layout)), layout);
  }
  for (const char* wrong : {"affine", "affine4", "affine4g64", "affine4g64_f8", "affine04g64_f32",
                            "affine7g64_f32", "affine4g64_bf16x", "q4_9"}) {
    EXPECT_FALSE(layout_from_name(wrong)) << wrong;
  }
}

TEST(Manifest, NamesThatAreNoUtf8AreRefusedBeforeWriting) {
  TempFolder temp;
  Sample sample = make_affine(temp / "source");
  sample.table.pieces[1].name = "\xff\xfe";
  EXPECT_NE(message_of(pack_model(sample.job(temp / "packed"))).find("UTF-8"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(temp / "packed.partial"));
}

}  // namespace
}  // namespace millrace::format
