// Eight float lanes in portable C++: the reference for vec_avx2.h, with the same names.
// Included by ops_scalar.cpp only; everything is local to the including file.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/numeric.h"

namespace millrace::kernels {
namespace {

struct F8 {
  float v[8];
};
struct I8 {
  int32_t v[8];
};

template <class F>
inline F8 each(F f) {
  F8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = f(i);
  return r;
}
template <class F>
inline I8 each_int(F f) {
  I8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = f(i);
  return r;
}

inline float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

inline F8 load(const float* p) {
  F8 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
inline void store(float* p, F8 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F8 set1(float x) {
  return each([&](int) { return x; });
}
inline F8 operator+(F8 a, F8 b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F8 operator-(F8 a, F8 b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F8 operator*(F8 a, F8 b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F8 operator/(F8 a, F8 b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c, one rounding.
inline F8 fma(F8 a, F8 b, F8 c) {
  return each([&](int i) { return fma1(a.v[i], b.v[i], c.v[i]); });
}
// The second operand when either is NaN, as x86 does.
inline F8 max(F8 a, F8 b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 min(F8 a, F8 b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// c ? a : b in the lanes where x < y.
inline F8 if_less(F8 x, F8 y, F8 a, F8 b) {
  return each([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; });
}

inline I8 bits(F8 a) {
  I8 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}
inline F8 from_bits(I8 a) {
  F8 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}
inline I8 iset1(int32_t x) {
  return each_int([&](int) { return x; });
}
inline I8 operator+(I8 a, I8 b) {
  return each_int([&](int i) { return a.v[i] + b.v[i]; });
}
inline I8 operator-(I8 a, I8 b) {
  return each_int([&](int i) { return a.v[i] - b.v[i]; });
}
inline I8 operator&(I8 a, I8 b) {
  return each_int([&](int i) { return a.v[i] & b.v[i]; });
}
inline I8 operator|(I8 a, I8 b) {
  return each_int([&](int i) { return a.v[i] | b.v[i]; });
}
inline I8 operator^(I8 a, I8 b) {
  return each_int([&](int i) { return a.v[i] ^ b.v[i]; });
}
inline I8 imax(I8 a, I8 b) {
  return each_int([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline I8 imin(I8 a, I8 b) {
  return each_int([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
template <int kBits>
inline I8 shift_left(I8 a) {
  return each_int(
      [&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << kBits); });
}
template <int kBits>
inline I8 shift_right(I8 a) {  // arithmetic
  return each_int([&](int i) { return a.v[i] >> kBits; });
}
inline I8 lane_numbers() {
  return each_int([](int i) { return i; });
}
inline F8 to_float(I8 a) {
  return each([&](int i) { return static_cast<float>(a.v[i]); });
}
inline I8 load_i8(const int8_t* p) {
  return each_int([&](int i) { return p[i]; });
}
// a[i ^ kStride] in lane i.
template <int kStride>
inline F8 lanes_xor(F8 a) {
  return each([&](int i) { return a.v[i ^ kStride]; });
}
// a in the lanes where x < y, else b.
inline F8 if_less(I8 x, I8 y, F8 a, F8 b) {
  return each([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; });
}

// Sums over lanes: halves first (j + 4), then + 2, then + 1.
inline float sum(F8 a) {
  float t[4];
  for (int i = 0; i < 4; ++i) t[i] = a.v[i] + a.v[i + 4];
  return (t[0] + t[2]) + (t[1] + t[3]);
}
inline int32_t isum(I8 a) {
  int32_t total = 0;
  for (int i = 0; i < 8; ++i) total += a.v[i];
  return total;
}
inline float max_lane(F8 a) {
  float t[4];
  for (int i = 0; i < 4; ++i) t[i] = a.v[i] > a.v[i + 4] ? a.v[i] : a.v[i + 4];
  const float u = t[0] > t[2] ? t[0] : t[2];
  const float w = t[1] > t[3] ? t[1] : t[3];
  return u > w ? u : w;
}
inline int32_t imax_lane(I8 a) {
  int32_t most = a.v[0];
  for (int i = 1; i < 8; ++i) most = a.v[i] > most ? a.v[i] : most;
  return most;
}

inline F8 load_f16(const uint16_t* p) {
  return each([&](int i) { return millrace::f16_to_f32(p[i]); });
}
inline void store_f16(uint16_t* p, F8 a) {
  for (int i = 0; i < 8; ++i) p[i] = millrace::f32_to_f16(a.v[i]);
}
inline F8 load_bf16(const uint16_t* p) {
  return each([&](int i) { return millrace::bf16_to_f32(p[i]); });
}
// 32 codes, each in -128..127.
inline void store_i8(int8_t* p, const I8 (&a)[4]) {
  for (int i = 0; i < 32; ++i) p[i] = static_cast<int8_t>(a[i / 8].v[i % 8]);
}

}  // namespace
}  // namespace millrace::kernels
