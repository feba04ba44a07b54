// The golden fixtures as GGUF files (made by tests/reference/make_gguf_fixtures.py): tensor names,
// keys and transforms of llama.cpp's converter, against the logits of the reference.
#include "tests/support/fixture_model.h"
#include "tests/support/golden_check.h"

namespace millrace::test {
namespace {

std::vector<std::string> files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(repo("tests/data/gguf")))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

// "name@variant" has the expected values of "name".
std::string fixture_of(const std::string& file) { return file.substr(0, file.find('@')); }

// Files that no expected values are for equal the fixture with another config: GGUF has no key for
// the lower bound of Nemotron-H's time steps (the reference applies it, its kernels do not); and
// long ropes, whose divisors are tensors there.
const std::map<std::string, Json> kOtherConfigs = {
    {"nemotron_h", {{"time_step_min", 0.0}}},
    {"phi3@longrope",
     {{"original_max_position_embeddings", 64},
      {"rope_parameters",
       {{"rope_theta", 10000.0},
        {"rope_type", "longrope"},
        {"original_max_position_embeddings", 64},
        {"short_factor", {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}},
        {"long_factor", {1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75}}}}}},
};

void check(const std::string& file, const std::string& model, uint32_t chunk) {
  const auto other = kOtherConfigs.find(file);
  if (other == kOtherConfigs.end()) return check_golden(fixture_of(file), model, chunk);
  Fixture f(fixture_of(file));
  f.config.update(other->second);
  TempFolder temp;
  write_folder(temp / "plain", f.config, f.tensors);
  EXPECT_LT(off(logits_of(temp / "plain", f.ids()), logits_of(model, f.ids())), kSame);
}

class GgufFixture : public testing::TestWithParam<std::string> {};

TEST_P(GgufFixture, InPlace) {
  check(GetParam(), repo("tests/data/gguf/" + GetParam() + ".gguf"), 0);
}
TEST_P(GgufFixture, Packed) {
  TempFolder temp;
  pack_to(repo("tests/data/gguf/" + GetParam() + ".gguf"), temp / "packed");
  if (!HasFatalFailure()) check(GetParam(), temp / "packed", 5);
}

INSTANTIATE_TEST_SUITE_P(Files, GgufFixture, testing::ValuesIn(files()), [](const auto& file) {
  std::string name = file.param;
  std::replace(name.begin(), name.end(), '@', '_');
  return name;
});

}  // namespace
}  // namespace millrace::test
