// Elementary functions on eight lanes: one polynomial each, the same on every instruction set.
// Included after a vec_*.h. Coefficients are near-minimax fits of our own, rounded to float;
// tests/kernels/ops_test.cpp states the error measured against libm.
#pragma once

namespace millrace::kernels {
namespace {

// Adding this to |x| < 2^22 leaves round-to-nearest-even(x) in the low mantissa bits.
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23

inline F8 abs(F8 x) { return from_bits(bits(x) & iset1(0x7fffffff)); }
inline F8 negate(F8 x) { return from_bits(bits(x) ^ iset1(INT32_MIN)); }
// |x| with the sign of s.
inline F8 copy_sign(F8 x, F8 s) { return from_bits(bits(x) | (bits(s) & iset1(INT32_MIN))); }

inline F8 exp(F8 x) {
  // Below, the result rounds to 0; above, to infinity. A NaN passes (second operand).
  x = min(set1(89.0f), max(set1(-104.0f), x));
  const F8 shifted = fma(x, set1(0x1.715476p+0f), set1(kRound));  // x / ln 2
  const F8 n = shifted - set1(kRound);
  F8 r = fma(n, set1(-0x1.62e4p-1f), x);  // ln 2 in two parts, the first exact times n
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  F8 p = fma(set1(0x1.6d110ap-10f), r, set1(0x1.120b6ep-7f));
  p = fma(p, r, set1(0x1.55551ap-5f));
  p = fma(p, r, set1(0x1.5554dcp-3f));
  p = fma(p, r, set1(0.5f));
  const F8 y = fma(r * r, p, r) + set1(1.0f);
  // 2^n in two steps, so that subnormal results are rounded once.
  const I8 whole = bits(shifted) - bits(set1(kRound));
  const I8 half = shift_right<1>(whole);
  const auto power = [](I8 e) { return from_bits(shift_left<23>(e + iset1(127))); };
  return (y * power(half)) * power(whole - half);
}

// exp(x) - 1 - x for x <= 0, by its series near 0 where the difference cancels.
inline F8 expm1_minus(F8 x) {
  F8 p = fma(set1(1.0f / 40320.0f), x, set1(1.0f / 5040.0f));
  p = fma(p, x, set1(1.0f / 720.0f));
  p = fma(p, x, set1(1.0f / 120.0f));
  p = fma(p, x, set1(1.0f / 24.0f));
  p = fma(p, x, set1(1.0f / 6.0f));
  p = fma(p, x, set1(0.5f));
  return if_less(set1(-0.5f), x, (x * x) * p, (exp(x) - set1(1.0f)) - x);
}

inline F8 sigmoid(F8 x) {
  const F8 e = exp(negate(abs(x)));
  return if_less(x, set1(0.0f), e, set1(1.0f)) / (e + set1(1.0f));
}

inline F8 tanh(F8 x) {
  const F8 a = abs(x);
  const F8 z = a * a;
  F8 p = fma(set1(0x1.36bdb2p-9f), z, set1(-0x1.1394cap-7f));
  p = fma(p, z, set1(0x1.64fad8p-6f));
  p = fma(p, z, set1(-0x1.ba0d94p-5f));
  p = fma(p, z, set1(0x1.1110f6p-3f));
  p = fma(p, z, set1(-0x1.555556p-2f));
  const F8 small = fma(a * z, p, a);
  const F8 large = set1(1.0f) - set1(2.0f) / (exp(a + a) + set1(1.0f));
  return copy_sign(if_less(a, set1(0.6f), small, large), x);
}

// erf(a) for 0 <= a < 0.9375 as a + a P(a^2).
inline F8 erf_small(F8 a) {
  const F8 z = a * a;
  F8 p = fma(set1(0x1.5b8862p-14f), z, set1(-0x1.a9e08ap-11f));
  p = fma(p, z, set1(0x1.54be16p-8f));
  p = fma(p, z, set1(-0x1.b80da6p-6f));
  p = fma(p, z, set1(0x1.ce2e00p-4f));
  p = fma(p, z, set1(-0x1.812742p-2f));
  p = fma(p, z, set1(0x1.06eba8p-3f));
  return fma(p, a, a);
}

// erfc(a) for 0.92 < a <= 4 as exp(-P(a)); 0 above (it is less than half an ulp of 1 there).
inline F8 erfc_large(F8 a) {
  const F8 b = min(set1(4.0f), a);
  F8 p = fma(set1(-0x1.b9315cp-20f), b, set1(0x1.835ec6p-15f));
  p = fma(p, b, set1(-0x1.396440p-11f));
  p = fma(p, b, set1(0x1.382ffap-8f));
  p = fma(p, b, set1(-0x1.b10c2cp-6f));
  p = fma(p, b, set1(0x1.c2f2b2p-4f));
  p = fma(p, b, set1(0x1.437d26p-1f));
  p = fma(p, b, set1(0x1.215744p+0f));
  p = fma(p, b, set1(-0x1.501626p-12f));
  return if_less(set1(4.0f), a, set1(0.0f), exp(negate(p)));
}

inline F8 silu(F8 x) { return x * sigmoid(x); }

// 0.5 (1 + tanh u) is sigmoid(2u), without the cancellation.
inline F8 gelu_tanh(F8 x) {
  const F8 cube = (x * x) * x;
  const F8 u = fma(cube, set1(0.044715f), x) * set1(1.5957691216f);  // 2 sqrt(2 / pi)
  return x * sigmoid(u);
}

inline F8 gelu_erf(F8 x) {
  const F8 a = abs(x) * set1(0.70710678f);
  const F8 tail = erfc_large(a);  // 1 - erf(a)
  const F8 erf_a = erf_small(a);
  const F8 one = set1(1.0f);
  const F8 zero = set1(0.0f);
  const F8 mid = if_less(x, zero, one - erf_a, one + erf_a);
  const F8 far = if_less(x, zero, tail, (one - tail) + one);
  return (x * set1(0.5f)) * if_less(a, set1(0.93f), mid, far);
}

inline F8 relu2(F8 x) {
  const F8 y = max(set1(0.0f), x);
  return y * y;
}

}  // namespace
}  // namespace millrace::kernels
