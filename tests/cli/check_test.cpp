// millrace check: passes on fixtures, and can fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "process.h"

namespace millrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = source_path("tests/data/golden/qwen3_moe");
const std::string kTiny = source_path("models/tiny-moe-4bit");

TEST(Check, FixturesAreWithinTheBar) {
  const Outcome outcome = millrace({"check", kGolden, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json result = outcome.json();
  EXPECT_TRUE(result["ok"]);
  EXPECT_LE(result["max_difference_of_range"], 2e-3);
  EXPECT_EQ(result["rows"], 39);
  EXPECT_EQ(result["generated"], 12);
  EXPECT_THAT(millrace({"check", kGolden}).out, HasSubstr("max |difference|"));
}

TEST(Check, TheTrainedModelAgreesUnderABudget) {
  for (const char* activations : {"f32", "int8"}) {
    const Outcome outcome = millrace({"check", kTiny, "--json", "--activations", activations,
                                      "--budget", "12M", "--threads", "2"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.json()["rows"], 512);
    EXPECT_GE(outcome.json()["top_agree"], 497);
  }
}

// Expected values with one number changed by `by`, in the middle of the tensor.
std::string changed_reference(const TempFolder& folder, const std::string& tensor, float by) {
  std::ifstream source(kGolden + "/expected.safetensors", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(source), {}};
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const json offsets = json::parse(bytes.substr(8, header))[tensor]["data_offsets"];
  const size_t first = offsets[0], last = offsets[1];
  const size_t at = 8 + header + first + (last - first) / 8 * 4;
  float value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  value += by;
  std::memcpy(bytes.data() + at, &value, sizeof value);
  const std::string path = folder / "expected.safetensors";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(Check, FailsWhenAValueDiffers) {
  const TempFolder folder;
  for (const char* tensor : {"logits", "greedy_logits"}) {
    const Outcome outcome = millrace(
        {"check", kGolden, "--json", "--expected", changed_reference(folder, tensor, 0.1f)});
    EXPECT_EQ(outcome.exit_code, 1) << tensor;
    EXPECT_FALSE(outcome.json()["ok"]);
    EXPECT_GT(outcome.json()["max_difference_of_range"], 2e-3);
  }
  const Outcome nan = millrace(
      {"check", kGolden, "--expected", changed_reference(folder, "logits", std::nanf(""))});
  EXPECT_EQ(nan.exit_code, 1);
  EXPECT_THAT(nan.out, HasSubstr("NOT within the bar"));
}

TEST(Check, ExpectedValuesOfAnotherModelAreRefused) {
  const Outcome outcome =
      millrace({"check", kTiny, "--expected", kGolden + "/expected.safetensors"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
  const Outcome none = millrace({"check", source_path("examples")});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("expected.safetensors"));
}

TEST(Check, APackedModelAgreesToo) {
  const TempFolder folder;
  ASSERT_EQ(millrace({"pack", kGolden, folder / "packed"}).exit_code, 0);
  const Outcome outcome =
      millrace({"check", folder / "packed", "--expected", kGolden + "/expected.safetensors"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

}  // namespace
}  // namespace millrace::test
