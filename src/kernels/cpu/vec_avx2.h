// Eight float lanes in AVX2: the same names and bits as vec_scalar.h.
// Included by *_avx2.cpp files only. Nothing here (or in what includes it) may call an inline
// function of a shared header: the linker could then keep the AVX2 copy for every other file.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace millrace::kernels {
namespace {

struct F8 {
  __m256 v;
};
struct I8 {
  __m256i v;
};

inline float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

inline F8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
inline F8 set1(float x) { return {_mm256_set1_ps(x)}; }
inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F8 if_less(F8 x, F8 y, F8 a, F8 b) {
  return {_mm256_blendv_ps(b.v, a.v, _mm256_cmp_ps(x.v, y.v, _CMP_LT_OQ))};
}

inline I8 bits(F8 a) { return {_mm256_castps_si256(a.v)}; }
inline F8 from_bits(I8 a) { return {_mm256_castsi256_ps(a.v)}; }
inline I8 iset1(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline I8 operator+(I8 a, I8 b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline I8 operator-(I8 a, I8 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
inline I8 operator&(I8 a, I8 b) { return {_mm256_and_si256(a.v, b.v)}; }
inline I8 operator|(I8 a, I8 b) { return {_mm256_or_si256(a.v, b.v)}; }
inline I8 operator^(I8 a, I8 b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline I8 imax(I8 a, I8 b) { return {_mm256_max_epi32(a.v, b.v)}; }
inline I8 imin(I8 a, I8 b) { return {_mm256_min_epi32(a.v, b.v)}; }
template <int kBits>
inline I8 shift_left(I8 a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline I8 shift_right(I8 a) {
  return {_mm256_srai_epi32(a.v, kBits)};
}
inline I8 lane_numbers() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}; }
inline F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I8 load_i8(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
}
// a[i ^ kStride] in lane i.
template <int kStride>
inline F8 lanes_xor(F8 a) {
  if constexpr (kStride == 4) return {_mm256_permute2f128_ps(a.v, a.v, 1)};
  return {_mm256_permute_ps(a.v, kStride == 1 ? 0xb1 : 0x4e)};
}
inline F8 if_less(I8 x, I8 y, F8 a, F8 b) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_cmpgt_epi32(y.v, x.v));
  return {_mm256_blendv_ps(b.v, a.v, mask)};
}

inline float sum(F8 a) {
  const __m128 t = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(u, _mm_shuffle_ps(u, u, 1)));
}
inline int32_t isum(I8 a) {
  __m128i t = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm_cvtsi128_si32(t);
}
inline float max_lane(F8 a) {
  const __m128 t = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 u = _mm_max_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_max_ss(u, _mm_shuffle_ps(u, u, 1)));
}
inline int32_t imax_lane(I8 a) {
  __m128i t = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm_cvtsi128_si32(t);
}

inline F8 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store_f16(uint16_t* p, F8 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F8 load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline void store_i8(int8_t* p, const I8 (&a)[4]) {
  const __m256i ab = _mm256_packs_epi32(a[0].v, a[1].v);  // a0 b0 a1 b1 in quarters of eight bytes
  const __m256i cd = _mm256_packs_epi32(a[2].v, a[3].v);
  const __m256i all = _mm256_packs_epi16(ab, cd);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(all, order));
}

}  // namespace
}  // namespace millrace::kernels
