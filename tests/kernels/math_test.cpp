// The elementary functions themselves (the scalar build of ops_math.h), against libm in double.
#include "kernels/cpu/vec_scalar.h"
//
#include "kernels/cpu/ops_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::kernels {
namespace {

// The distance to the true value in units of its last place (as a float, subnormals included).
double ulps(float got, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(static_cast<double>(got) - exact) /
         std::ldexp(1.0, std::max(exponent, -125) - 24);
}

double worst(F8 (*f)(F8), double (*exact)(double), float low, float high) {
  constexpr int kCount = 400000;
  double most = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const float x = low + (high - low) * (static_cast<float>(i) / (kCount - 1));
    most = std::max(most, ulps(f(set1(x)).v[0], exact(static_cast<double>(x))));
  }
  return most;
}

TEST(Math, ExpWithinAnUlp) {
  // Measured: 1.0 everywhere.
  EXPECT_LE(worst(exp, std::exp, -1.0f, 1.0f), 1.05);
  EXPECT_LE(worst(exp, std::exp, -103.9f, 88.7f), 1.05);
}

TEST(Math, ExpAtTheEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto at = [](float x) { return exp(set1(x)).v[0]; };
  EXPECT_EQ(at(0.0f), 1.0f);
  EXPECT_EQ(at(-0.0f), 1.0f);
  EXPECT_EQ(at(-kInf), 0.0f);
  EXPECT_EQ(at(-1e30f), 0.0f);
  EXPECT_EQ(at(-104.1f), 0.0f);
  EXPECT_GT(at(-103.0f), 0.0f);
  EXPECT_LT(at(88.72f), kInf);
  EXPECT_EQ(at(88.73f), kInf);
  EXPECT_EQ(at(kInf), kInf);
  EXPECT_TRUE(std::isnan(at(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Math, ErfParts) {
  // Measured: 0.9 ulp below 0.9375, and 4e-8 absolute for the tail.
  EXPECT_LE(worst(erf_small, std::erf, 1e-6f, 0.9375f), 1.5);
  double most = 0.0;
  for (float a = 0.921f; a < 6.0f; a += 1e-4f) {
    most = std::max(most, std::fabs(static_cast<double>(erfc_large(set1(a)).v[0]) -
                                    std::erfc(static_cast<double>(a))));
  }
  EXPECT_LE(most, 6e-8);
}

}  // namespace
}  // namespace millrace::kernels
