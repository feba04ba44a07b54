// Every family against the reference's logits and greedy continuation: in place and packed, float
// activations.
#include "tests/support/fixtures.h"
#include "tests/support/golden_check.h"

namespace millrace::test {
namespace {

class Golden : public testing::TestWithParam<std::string> {
 protected:
  static void check(const std::string& model, uint32_t chunk) {
    check_golden(GetParam(), model, chunk);
  }
};

TEST_P(Golden, InPlace) { check(golden(GetParam()), 0); }
TEST_P(Golden, InPlaceOneByOne) { check(golden(GetParam()), 1); }
TEST_P(Golden, Packed) {
  TempFolder temp;
  pack_to(golden(GetParam()), temp / "packed");
  if (!HasFatalFailure()) check(temp / "packed", 5);
}

INSTANTIATE_TEST_SUITE_P(Families, Golden, testing::ValuesIn(fixtures()),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace millrace::test
