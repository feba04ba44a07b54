// Eight float lanes in NEON (what every arm64 has): the same names and bits as vec_scalar.h.
// Included by *_neon.cpp files only; see vec_avx2.h for what they may not call.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace millrace::kernels {
namespace {

struct F8 {
  float32x4_t low, high;
};
struct I8 {
  int32x4_t low, high;
};

inline float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

inline F8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float* p, F8 a) {
  vst1q_f32(p, a.low);
  vst1q_f32(p + 4, a.high);
}
inline F8 set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline F8 operator+(F8 a, F8 b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline F8 operator-(F8 a, F8 b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline F8 operator*(F8 a, F8 b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline F8 operator/(F8 a, F8 b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline F8 fma(F8 a, F8 b, F8 c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
// The second operand when either is NaN (fmax would do otherwise).
inline float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t min4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline F8 max(F8 a, F8 b) { return {max4(a.low, b.low), max4(a.high, b.high)}; }
inline F8 min(F8 a, F8 b) { return {min4(a.low, b.low), min4(a.high, b.high)}; }
inline F8 if_less(F8 x, F8 y, F8 a, F8 b) {
  return {vbslq_f32(vcltq_f32(x.low, y.low), a.low, b.low),
          vbslq_f32(vcltq_f32(x.high, y.high), a.high, b.high)};
}

inline I8 bits(F8 a) { return {vreinterpretq_s32_f32(a.low), vreinterpretq_s32_f32(a.high)}; }
inline F8 from_bits(I8 a) { return {vreinterpretq_f32_s32(a.low), vreinterpretq_f32_s32(a.high)}; }
inline I8 iset1(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
inline I8 operator+(I8 a, I8 b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
inline I8 operator-(I8 a, I8 b) { return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }
inline I8 operator&(I8 a, I8 b) { return {vandq_s32(a.low, b.low), vandq_s32(a.high, b.high)}; }
inline I8 operator|(I8 a, I8 b) { return {vorrq_s32(a.low, b.low), vorrq_s32(a.high, b.high)}; }
inline I8 operator^(I8 a, I8 b) { return {veorq_s32(a.low, b.low), veorq_s32(a.high, b.high)}; }
inline I8 imax(I8 a, I8 b) { return {vmaxq_s32(a.low, b.low), vmaxq_s32(a.high, b.high)}; }
inline I8 imin(I8 a, I8 b) { return {vminq_s32(a.low, b.low), vminq_s32(a.high, b.high)}; }
template <int kBits>
inline I8 shift_left(I8 a) {
  return {vshlq_n_s32(a.low, kBits), vshlq_n_s32(a.high, kBits)};
}
template <int kBits>
inline I8 shift_right(I8 a) {
  return {vshrq_n_s32(a.low, kBits), vshrq_n_s32(a.high, kBits)};
}
inline I8 lane_numbers() {
  constexpr int32_t kLanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  return {vld1q_s32(kLanes), vld1q_s32(kLanes + 4)};
}
inline F8 to_float(I8 a) { return {vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
inline I8 load_i8(const int8_t* p) {
  const int16x8_t wide = vmovl_s8(vld1_s8(p));
  return {vmovl_s16(vget_low_s16(wide)), vmovl_s16(vget_high_s16(wide))};
}
// a[i ^ kStride] in lane i.
template <int kStride>
inline F8 lanes_xor(F8 a) {
  if constexpr (kStride == 4) return {a.high, a.low};
  if constexpr (kStride == 2) return {vextq_f32(a.low, a.low, 2), vextq_f32(a.high, a.high, 2)};
  return {vrev64q_f32(a.low), vrev64q_f32(a.high)};
}
inline F8 if_less(I8 x, I8 y, F8 a, F8 b) {
  return {vbslq_f32(vcltq_s32(x.low, y.low), a.low, b.low),
          vbslq_f32(vcltq_s32(x.high, y.high), a.high, b.high)};
}

inline float sum(F8 a) {
  const float32x4_t t = vaddq_f32(a.low, a.high);
  const float32x2_t u = vadd_f32(vget_low_f32(t), vget_high_f32(t));
  return vget_lane_f32(u, 0) + vget_lane_f32(u, 1);
}
inline int32_t isum(I8 a) { return vaddvq_s32(vaddq_s32(a.low, a.high)); }
inline float max_lane(F8 a) {
  float t[4];
  vst1q_f32(t, max4(a.low, a.high));
  const float u = t[0] > t[2] ? t[0] : t[2];
  const float w = t[1] > t[3] ? t[1] : t[3];
  return u > w ? u : w;
}
inline int32_t imax_lane(I8 a) { return vmaxvq_s32(vmaxq_s32(a.low, a.high)); }

inline F8 load_f16(const uint16_t* p) {
  const uint16x8_t bits16 = vld1q_u16(p);
  return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(bits16))),
          vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(bits16)))};
}
inline void store_f16(uint16_t* p, F8 a) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.low)));
  vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.high)));
}
inline F8 load_bf16(const uint16_t* p) {
  const uint16x8_t bits16 = vld1q_u16(p);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits16), 16)),
          vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits16), 16))};
}
inline void store_i8(int8_t* p, const I8 (&a)[4]) {
  for (int i = 0; i < 4; ++i) {
    const int16x8_t wide = vcombine_s16(vqmovn_s32(a[i].low), vqmovn_s32(a[i].high));
    vst1_s8(p + 8 * i, vqmovn_s16(wide));
  }
}

}  // namespace
}  // namespace millrace::kernels
