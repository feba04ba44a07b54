// Every family against the reference's logits and greedy continuation: in place and packed, float
// activations.
#include "tests/support/golden_check.h"

namespace millrace::test {
namespace {

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(repo("tests/data/golden")))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class Golden : public testing::TestWithParam<std::string> {
 protected:
  static void check(const std::string& model, uint32_t chunk) {
    check_golden(GetParam(), model, chunk);
  }
};

TEST_P(Golden, InPlace) { check(repo("tests/data/golden/" + GetParam()), 0); }
TEST_P(Golden, InPlaceOneByOne) { check(repo("tests/data/golden/" + GetParam()), 1); }
TEST_P(Golden, Packed) {
  TempFolder temp;
  pack_to(repo("tests/data/golden/" + GetParam()), temp / "packed");
  if (!HasFatalFailure()) check(temp / "packed", 5);
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, testing::ValuesIn(fixtures()),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace millrace::test
