// How a block of a quantized format unpacks in AVX2.
//
// Included by *_avx2.cpp files only; everything is local to the including file (see vec_avx2.h).
#pragma once

#include <immintrin.h>

#include "kernels/cpu/format_traits.h"

namespace millrace::kernels {
namespace {

// Bytes ahead of the reader that are asked for: measured in docs/experiments/kernels-avx2.md.
constexpr uint64_t kAhead = 2048;

// The same for several tiles read side by side, the first of which ends at `last`: past its end a
// tile goes on in the tile that will take its place.
inline uint64_t tile_ahead(const uint8_t* p, const uint8_t* last, int tiles, uint64_t tile_bytes) {
  const bool inside = static_cast<uint64_t>(last - p) > kAhead;
  return inside ? kAhead : kAhead + static_cast<uint64_t>(tiles - 1) * tile_bytes;
}

inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

// (v >> right) & mask on bytes; a negative `right` shifts left. The mask keeps neighbours out.
template <int kRight>
inline __m256i bits_of(__m256i v, int mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  if constexpr (kRight > 0) return _mm256_and_si256(_mm256_srli_epi16(v, kRight), m);
  if constexpr (kRight < 0) return _mm256_and_si256(_mm256_slli_epi16(v, -kRight), m);
  return _mm256_and_si256(v, m);
}

inline void unpack4(const uint8_t* p, __m256i (&w)[8]) {
  for (int v = 0; v < 4; ++v) {
    const __m256i x = load256(p + 32 * v);
    w[v] = bits_of<0>(x, 15);
    w[v + 4] = bits_of<4>(x, 15);
  }
}
// Two bits of every chunk, landing at bit kTo.
template <int kTo>
inline void unpack2(const uint8_t* p, __m256i (&w)[8]) {
  for (int v = 0; v < 2; ++v) {
    const __m256i x = load256(p + 32 * v);
    w[v] = bits_of<0 - kTo>(x, 3 << kTo);
    w[v + 2] = bits_of<2 - kTo>(x, 3 << kTo);
    w[v + 4] = bits_of<4 - kTo>(x, 3 << kTo);
    w[v + 6] = bits_of<6 - kTo>(x, 3 << kTo);
  }
}
// One bit of every chunk, landing at bit kTo.
template <int kTo>
inline void unpack1(const uint8_t* p, __m256i (&w)[8]) {
  const __m256i x = load256(p);
  w[0] = bits_of<0 - kTo>(x, 1 << kTo);
  w[1] = bits_of<1 - kTo>(x, 1 << kTo);
  w[2] = bits_of<2 - kTo>(x, 1 << kTo);
  w[3] = bits_of<3 - kTo>(x, 1 << kTo);
  w[4] = bits_of<4 - kTo>(x, 1 << kTo);
  w[5] = bits_of<5 - kTo>(x, 1 << kTo);
  w[6] = bits_of<6 - kTo>(x, 1 << kTo);
  w[7] = bits_of<7 - kTo>(x, 1 << kTo);
}

inline void merge(__m256i (&w)[8], const __m256i (&high)[8]) {
  for (int c = 0; c < 8; ++c) w[c] = _mm256_or_si256(w[c], high[c]);
}

// The multiplicands of a group.
template <Traits T>
inline void unpack(const uint8_t* planes, __m256i table, __m256i (&w)[8]) {
  if constexpr (T.bits == 8) {
    for (int c = 0; c < 8; ++c) w[c] = load256(planes + 32 * c);
  } else if constexpr (T.bits >= 4) {
    unpack4(planes, w);
  } else {
    unpack2<0>(planes, w);
  }
  if constexpr (T.bits == 3 || T.bits == 5) {
    __m256i high[8];
    unpack1<T.bits - 1>(planes + 32 * (T.bits - 1), high);
    merge(w, high);
  }
  if constexpr (T.bits == 6) {
    __m256i high[8];
    unpack2<4>(planes + 128, high);
    merge(w, high);
  }
  if constexpr (T.code == Code::kFlipped) {
    for (int c = 0; c < 8; ++c) w[c] = _mm256_xor_si256(w[c], _mm256_set1_epi8(-128));
  }
  if constexpr (T.code == Code::kTableSigned || T.code == Code::kTableUnsigned) {
    for (int c = 0; c < 8; ++c) w[c] = _mm256_shuffle_epi8(table, w[c]);
  }
}

struct BlockScales {
  __m256 d, m;
};

inline __m256 half8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m256 scales8(const uint8_t* p, ScaleType type) {
  if (type == ScaleType::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if (type == ScaleType::kF16) return half8(p);
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}
// 2^(e - 128), NaN for 255.
inline __m256 e8m0_half8(const uint8_t* p) {
  const __m256i e = _mm256_cvtepu8_epi32(load64(p));
  __m256i bits = _mm256_slli_epi32(e, 23);
  const __m256i zero = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
  bits = _mm256_or_si256(bits, _mm256_and_si256(zero, _mm256_set1_epi32(0x00400000)));
  const __m256i nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
  bits = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(0x00400000)));
  return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
}

// Eight e4m3 values (base/numeric.h), each in the top byte of its lane.
inline __m256 e4m3_of_top(__m256i v) {
  const __m256i all = _mm256_set1_epi32(0x7f000000);
  const __m256i magnitude = _mm256_and_si256(v, all);
  const __m256i sign = _mm256_andnot_si256(_mm256_set1_epi32(0x7fffffff), v);
  const __m256i bits = _mm256_or_si256(_mm256_srli_epi32(magnitude, 4), sign);
  const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f));
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_blendv_ps(value, nan, _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, all)));
}

// How a weight of the call lies in memory.
struct Shape {
  uint32_t blocks;  // of a tile
  uint32_t block_groups;
  uint32_t scale_bytes;  // affine: of one row of 8 scales
  ScaleType scale_type;
  uint64_t tile_bytes;
  uint64_t groups;  // of a row of activations
};

template <Traits T>
inline uint32_t block_header(const Shape& shape) {
  if constexpr (T.scale == Scale::kE8M0) return 8;
  if constexpr (T.scale == Scale::kF32 || T.scale == Scale::kHalfF32) return 32;
  if constexpr (T.scale == Scale::kAffine) return 2 * shape.scale_bytes;
  return T.bias ? 32 : 16;
}

template <Traits T>
inline BlockScales block_scales(const Shape& shape, const uint8_t* p) {
  if constexpr (T.scale == Scale::kE8M0) return {e8m0_half8(p), _mm256_setzero_ps()};
  if constexpr (T.scale == Scale::kF32) {
    return {scales8(p, ScaleType::kF32), _mm256_setzero_ps()};
  }
  if constexpr (T.scale == Scale::kHalfF32) {
    return {_mm256_mul_ps(scales8(p, ScaleType::kF32), _mm256_set1_ps(0.5f)), _mm256_setzero_ps()};
  }
  if constexpr (T.scale == Scale::kAffine) {
    return {scales8(p, shape.scale_type), scales8(p + shape.scale_bytes, shape.scale_type)};
  }
  return {half8(p), T.bias ? half8(p + 16) : _mm256_setzero_ps()};
}

template <Traits T>
inline __m256i code_table() {
  if constexpr (T.code == Code::kTableSigned || T.code == Code::kTableUnsigned) {
    const int8_t* values = T.code == Code::kTableSigned ? format::kIQ4Values : format::kE2M1Doubled;
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    const int plus = T.code == Code::kTableSigned ? 0 : T.offset;
    return _mm256_broadcastsi128_si256(_mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(plus))));
  }
  return _mm256_setzero_si256();
}

inline Shape shape_of(const format::WeightLayout& layout) {
  Shape shape;
  const uint32_t block_cols = format::block_cols(layout);
  shape.blocks = layout.cols / block_cols;
  shape.block_groups = block_cols / format::kGroup;
  shape.scale_bytes = layout.scale_type == ScaleType::kF32 ? 32 : 16;
  shape.scale_type = layout.scale_type;
  shape.tile_bytes = format::tile_bytes(layout);
  shape.groups = layout.cols / format::kGroup;
  return shape;
}

// Lanes of outputs that exist.
inline void store_rows(float* out, __m256 value, uint32_t count) {
  if (count >= 8) {
    _mm256_storeu_ps(out, value);
    return;
  }
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
  _mm256_maskstore_ps(out, mask, value);
}

}  // namespace
}  // namespace millrace::kernels
