// How blocks of two tiles unpack side by side in AVX-512: the first tile in the low half of a
// vector, its neighbour in the high half. `other` is the distance to the neighbour in bytes; 0 when
// there is none (the high half then repeats the low one and is not stored).
//
// Codes become unsigned bytes, what vpdpbusd wants: signed ones get 128 added, given back through the
// activation sums.
//
// Included by *_avx512*.cpp files only; everything is local to the including file.
#pragma once

#include "kernels/cpu/formats_avx2.h"

namespace millrace::kernels {
namespace {

inline __m512i load_pair(const uint8_t* p, uint64_t other) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load256(p)), load256(p + other), 1);
}
inline __m256i load_pair128(const uint8_t* p, uint64_t other) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + other));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
inline __m128i load_pair64(const uint8_t* p, uint64_t other) {
  return _mm_unpacklo_epi64(load64(p), load64(p + other));
}

// Added to the codes as stored to make them unsigned, or what the format itself has: the integer
// dot is the dot of the unsigned codes minus this times the sum of the activations.
template <Traits T>
constexpr int unsigned_offset() {
  if (T.code == Code::kSigned || T.code == Code::kTableSigned) return 128;
  return T.code == Code::kFlipped ? 0 : T.offset;
}

template <int kRight>
inline __m512i wide_bits_of(__m512i v, int mask) {
  const __m512i m = _mm512_set1_epi8(static_cast<char>(mask));
  if constexpr (kRight > 0) return _mm512_and_si512(_mm512_srli_epi16(v, kRight), m);
  if constexpr (kRight < 0) return _mm512_and_si512(_mm512_slli_epi16(v, -kRight), m);
  return _mm512_and_si512(v, m);
}

// Two bits of every chunk, landing at bit kTo.
template <int kTo>
inline void wide_unpack2(const uint8_t* p, uint64_t other, __m512i (&w)[8]) {
  unroll<2>([&](auto v) MILLRACE_INLINE {
    const __m512i x = load_pair(p + 32 * v, other);
    unroll<4>([&](auto i)
                  MILLRACE_INLINE { w[v + 2 * i] = wide_bits_of<2 * i - kTo>(x, 3 << kTo); });
  });
}

// One bit of every chunk, landing at bit kTo.
template <int kTo>
inline void wide_unpack1(const uint8_t* p, uint64_t other, __m512i (&w)[8]) {
  const __m512i x = load_pair(p, other);
  unroll<8>([&](auto c) MILLRACE_INLINE { w[c] = wide_bits_of<c - kTo>(x, 1 << kTo); });
}

// The 16 values of a code table, as unsigned bytes, in every quarter.
template <Traits T>
inline __m512i wide_code_table() {
  if constexpr (T.code == Code::kTableSigned || T.code == Code::kTableUnsigned) {
    const int8_t* values = T.code == Code::kTableSigned ? format::kIQ4Values : format::kE2M1Doubled;
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    const __m128i plus = _mm_set1_epi8(static_cast<char>(unsigned_offset<T>()));
    return _mm512_broadcast_i32x4(_mm_add_epi8(table, plus));
  }
  return _mm512_setzero_si512();
}

// The unsigned codes of a group: vector c holds chunk c of both tiles.
template <Traits T>
inline void wide_unpack(const uint8_t* planes, uint64_t other, __m512i table, __m512i (&w)[8]) {
  if constexpr (T.bits == 8) {
    for (int c = 0; c < 8; ++c) w[c] = load_pair(planes + 32 * c, other);
  } else if constexpr (T.bits >= 4) {
    for (int v = 0; v < 4; ++v) {
      const __m512i x = load_pair(planes + 32 * v, other);
      w[v] = wide_bits_of<0>(x, 15);
      w[v + 4] = wide_bits_of<4>(x, 15);
    }
  } else {
    wide_unpack2<0>(planes, other, w);
  }
  if constexpr (T.bits == 3 || T.bits == 5) {
    __m512i high[8];
    wide_unpack1<T.bits - 1>(planes + 32 * (T.bits - 1), other, high);
    for (int c = 0; c < 8; ++c) w[c] = _mm512_or_si512(w[c], high[c]);
  }
  if constexpr (T.bits == 6) {
    __m512i high[8];
    wide_unpack2<4>(planes + 128, other, high);
    for (int c = 0; c < 8; ++c) w[c] = _mm512_or_si512(w[c], high[c]);
  }
  if constexpr (T.code == Code::kSigned) {
    for (int c = 0; c < 8; ++c) w[c] = _mm512_xor_si512(w[c], _mm512_set1_epi8(-128));
  }
  if constexpr (T.code == Code::kTableSigned || T.code == Code::kTableUnsigned) {
    for (int c = 0; c < 8; ++c) w[c] = _mm512_shuffle_epi8(table, w[c]);
  }
}

inline __m512 wide_half(const uint8_t* p, uint64_t other) {
  return _mm512_cvtph_ps(load_pair128(p, other));
}
inline __m512 wide_bf16(const uint8_t* p, uint64_t other) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_pair128(p, other)), 16));
}
inline __m512 wide_scales(const uint8_t* p, uint64_t other, ScaleType type) {
  if (type == ScaleType::kF32) return _mm512_castsi512_ps(load_pair(p, other));
  return type == ScaleType::kF16 ? wide_half(p, other) : wide_bf16(p, other);
}
inline __m512 wide_e8m0_half(const uint8_t* p, uint64_t other) {
  const __m256i high = _mm256_castps_si256(e8m0_half8(p + other));
  const __m512i low = _mm512_castsi256_si512(_mm256_castps_si256(e8m0_half8(p)));
  return _mm512_castsi512_ps(_mm512_inserti64x4(low, high, 1));
}

// The float scales of a block, and of the block's bias where the format has one.
struct PairScales {
  __m512 d, m;
};

template <Traits T>
inline PairScales pair_scales(const Shape& shape, const uint8_t* p, uint64_t other) {
  if constexpr (T.scale == Scale::kE8M0) return {wide_e8m0_half(p, other), _mm512_setzero_ps()};
  if constexpr (T.scale == Scale::kAffine) {
    return {wide_scales(p, other, shape.scale_type),
            wide_scales(p + shape.scale_bytes, other, shape.scale_type)};
  }
  return {wide_half(p, other), T.bias ? wide_half(p + 16, other) : _mm512_setzero_ps()};
}

// The integer scales of a group as floats. Products of such an integer with a dot or a sum stay
// below 2^24 in halves and are rounded at most once otherwise, as the integers would be.
struct PairInts {
  __m512 first, second;            // of the dots of the first and second 16 positions
  __m512 first_bias, second_bias;  // of the sums
};

template <Traits T>
inline PairInts pair_ints(const uint8_t* p, uint64_t other) {
  const auto wide = [](__m128i v) {
    return _mm512_cvtepi32_ps(T.ints == Ints::kHalves ? _mm512_cvtepi8_epi32(v)
                                                      : _mm512_cvtepu8_epi32(v));
  };
  PairInts ints;
  ints.first = ints.second = ints.first_bias = ints.second_bias = _mm512_setzero_ps();
  if constexpr (T.ints == Ints::kNone) return ints;
  const __m128i a = load_pair64(p, other);
  if constexpr (T.ints == Ints::kScaleMinus32) {
    ints.first = _mm512_sub_ps(wide(a), _mm512_set1_ps(32.0f));
    return ints;
  }
  const __m128i b = load_pair64(p + 8, other);
  if constexpr (T.ints == Ints::kScaleMin) {
    ints.first = wide(a);
    ints.first_bias = wide(b);
  } else if constexpr (T.ints == Ints::kNibbles) {
    const __m128i nibble = _mm_set1_epi8(15);
    ints.first = wide(_mm_and_si128(a, nibble));
    ints.second = wide(_mm_and_si128(b, nibble));
    ints.first_bias = wide(_mm_and_si128(_mm_srli_epi16(a, 4), nibble));
    ints.second_bias = wide(_mm_and_si128(_mm_srli_epi16(b, 4), nibble));
  } else {
    const __m512 minus = _mm512_set1_ps(T.ints == Ints::kHalvesMinus32 ? 32.0f : 0.0f);
    ints.first = _mm512_sub_ps(wide(a), minus);
    ints.second = _mm512_sub_ps(wide(b), minus);
  }
  return ints;
}

// Outputs n.. of a pair of tiles that exist, of at most `lanes` (8 without a neighbour).
inline void store_pair(float* out, __m512 value, uint32_t lanes, uint32_t left) {
  const uint32_t count = left < lanes ? left : lanes;
  _mm512_mask_storeu_ps(out, static_cast<__mmask16>((1u << count) - 1), value);
}

}  // namespace
}  // namespace millrace::kernels
