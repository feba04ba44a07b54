// The quantized formats as AVX2 kernels see them: what each one is made of, and how a block
// unpacks.
//
// Included by *_avx2.cpp files only; everything is local to the including file (see vec_avx2.h).
#pragma once

#include <immintrin.h>

#include <utility>

#include "kernels/matmul.h"

namespace millrace::kernels {
namespace {

#define MILLRACE_INLINE __attribute__((always_inline))

// f(0), f(1), ... f(kCount - 1) with constant arguments: arrays of vectors indexed by them live in
// registers, which the compiler's own unrolling (it comes later) does not reach.
template <int kCount, class F>
MILLRACE_INLINE inline void unroll(F f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) MILLRACE_INLINE {
    (f(std::integral_constant<int, kIndex>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

using format::ScaleType;
using format::WeightFormat;

enum class Code {
  kUnsigned,       // as stored
  kSigned,         // int8 as stored: sign trick
  kFlipped,        // unsigned 8 bit minus 128, then as kSigned
  kTableSigned,    // iq4 table, as kSigned
  kTableUnsigned,  // e2m1 table plus 12
};
enum class Scale { kF16, kE8M0, kAffine };
enum class Ints {
  kNone,
  kScaleMin,       // q4_K q5_K: u8 scale, u8 minimum
  kScaleMinus32,   // iq4_xs
  kHalves,         // q6_K: i8 scales of the two halves
  kHalvesMinus32,  // q3_K
  kNibbles,        // q2_K: scale | minimum << 4 of the two halves
};

struct Traits {
  int bits;  // stored code bits
  int most;  // largest magnitude of a multiplicand
  Code code;
  int offset;  // integer dot = dot of multiplicands - offset * sum
  Scale scale;
  bool bias;           // a second float: m, dmin or the affine bias
  bool negative_bias;  // it is subtracted (dmin)
  Ints ints;
  int groups;  // of a block; 0: layout.group / 32

  constexpr bool is_signed() const {
    return code == Code::kSigned || code == Code::kFlipped || code == Code::kTableSigned;
  }
  // Chunks that fit an int16 sum: each adds two products of at most most * 127. A span of 8 would
  // cross halves with scales of their own.
  constexpr int span() const {
    const int fit = 32767 / (2 * most * 127);
    return fit >= 8 && !halves() ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
  }
  constexpr int plane_bytes() const { return 32 * bits; }
  constexpr int ints_bytes() const {
    return ints == Ints::kNone ? 0 : ints == Ints::kScaleMinus32 ? 8 : 16;
  }
  constexpr bool halves() const {
    return ints == Ints::kHalves || ints == Ints::kHalvesMinus32 || ints == Ints::kNibbles;
  }
};

constexpr Traits block32(int bits, int most, Code code, int offset, bool bias) {
  return {bits, most, code, offset, Scale::kF16, bias, false, Ints::kNone, 1};
}
constexpr Traits block256(int bits, int most, Code code, int offset, bool dmin, Ints ints) {
  return {bits, most, code, offset, Scale::kF16, dmin, dmin, ints, 8};
}
constexpr Traits affine(int bits) {
  const int most = (1 << bits) - 1;
  if (bits < 8)
    return {bits, most, Code::kUnsigned, 0, Scale::kAffine, true, false, Ints::kNone, 0};
  // Products of codes up to 255 would saturate int16: minus 128, given back through the sums.
  return {8, 128, Code::kFlipped, -128, Scale::kAffine, true, false, Ints::kNone, 0};
}
constexpr Traits kQ4_0 = block32(4, 15, Code::kUnsigned, 8, false);
constexpr Traits kQ4_1 = block32(4, 15, Code::kUnsigned, 0, true);
constexpr Traits kQ5_0 = block32(5, 31, Code::kUnsigned, 16, false);
constexpr Traits kQ5_1 = block32(5, 31, Code::kUnsigned, 0, true);
constexpr Traits kQ8_0 = block32(8, 128, Code::kSigned, 0, false);
constexpr Traits kIQ4_NL = block32(4, 127, Code::kTableSigned, 0, false);
constexpr Traits kMXFP4 = {4,     24,    Code::kTableUnsigned, 12, Scale::kE8M0,
                           false, false, Ints::kNone,          1};
constexpr Traits kQ2_K = block256(2, 3, Code::kUnsigned, 0, true, Ints::kNibbles);
constexpr Traits kQ3_K = block256(3, 7, Code::kUnsigned, 4, false, Ints::kHalvesMinus32);
constexpr Traits kQ4_K = block256(4, 15, Code::kUnsigned, 0, true, Ints::kScaleMin);
constexpr Traits kQ5_K = block256(5, 31, Code::kUnsigned, 0, true, Ints::kScaleMin);
constexpr Traits kQ6_K = block256(6, 63, Code::kUnsigned, 32, false, Ints::kHalves);
constexpr Traits kIQ4_XS = block256(4, 127, Code::kTableSigned, 0, false, Ints::kScaleMinus32);

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
  if constexpr (T.scale == Scale::kAffine) return 2 * shape.scale_bytes;
  return T.bias ? 32 : 16;
}

template <Traits T>
inline BlockScales block_scales(const Shape& shape, const uint8_t* p) {
  if constexpr (T.scale == Scale::kE8M0) return {e8m0_half8(p), _mm256_setzero_ps()};
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
