// Matrix products of quantized weights with int8 activations in AVX2: one template for every
// format.
//
// A vector lane owns one output row of a tile. For a group of 32 inner positions the codes are
// unpacked once into 8 vectors of 32 bytes (4 inner positions of 8 rows each) and used for up to
// kRows rows of activations: vpmaddubsw by the broadcast activations, sums in int16 over as many
// chunks as cannot overflow, vpmaddwd into int32 by the integer scales (or ones), then one fma.
// Offsets, minimums and biases come in through the activation sums: vpmaddwd of a pair of int16
// (for the first and second 16 positions) with the pair of sums. All integer steps are exact.
//
// Included by matmul_i8_*_avx2.cpp only; everything is local to the including file (see
// vec_avx2.h).
#pragma once

#include "kernels/cpu/formats_avx2.h"

namespace millrace::kernels {
namespace {

// What a group needs besides its codes, as int16 pairs per output row.
struct GroupInts {
  __m256i first, second;  // multiply the dots of the first and second 16 positions
  __m256i offset;         // times the sums, subtracted from the dot
  __m256i bias;           // times the sums, the integer of the bias term
};

// One int16 pair per row from two int32.
inline __m256i pairs(__m256i low, __m256i high) {
  return _mm256_blend_epi16(low, _mm256_slli_epi32(high, 16), 0xaa);
}

template <Traits T>
inline GroupInts group_ints(const uint8_t* p) {
  const __m256i one = _mm256_set1_epi16(1);
  GroupInts g{one, one, one, one};
  if constexpr (T.ints == Ints::kNone) {
    g.offset = _mm256_set1_epi16(static_cast<short>(T.offset));
    return g;
  }
  __m256i a, b;
  if constexpr (T.ints == Ints::kHalves) {
    a = _mm256_cvtepi8_epi32(load64(p));
    b = _mm256_cvtepi8_epi32(load64(p + 8));
  } else {
    a = _mm256_cvtepu8_epi32(load64(p));
    b = T.ints == Ints::kScaleMinus32 ? a : _mm256_cvtepu8_epi32(load64(p + 8));
  }
  if constexpr (T.ints == Ints::kScaleMin) {
    g.bias = pairs(b, b);
    b = a;
  }
  if constexpr (T.ints == Ints::kNibbles) {
    const __m256i nibble = _mm256_set1_epi32(15);
    g.bias = pairs(_mm256_srli_epi32(a, 4), _mm256_srli_epi32(b, 4));
    a = _mm256_and_si256(a, nibble);
    b = _mm256_and_si256(b, nibble);
  }
  if constexpr (T.ints == Ints::kScaleMinus32 || T.ints == Ints::kHalvesMinus32) {
    const __m256i bias32 = _mm256_set1_epi32(32);
    a = _mm256_sub_epi32(a, bias32);
    b = _mm256_sub_epi32(b, bias32);
  }
  g.first = pairs(a, a);
  g.second = T.halves() ? pairs(b, b) : g.first;
  if constexpr (T.offset != 0) {
    g.offset = _mm256_mullo_epi16(pairs(a, b), _mm256_set1_epi16(static_cast<short>(T.offset)));
  }
  return g;
}

inline __m256i broadcast32(const void* p) {
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}

// Integer dot of a group of one row, scaled by the integer scales, offset included.
template <Traits T>
inline __m256i group_dot(const __m256i (&w)[8], const GroupInts& ints, const int8_t* q,
                         __m256i sums) {
  constexpr int kSpan = T.span();
  __m256i total = _mm256_setzero_si256();
  for (int c = 0; c < 8; c += kSpan) {
    __m256i part = _mm256_setzero_si256();
    for (int i = c; i < c + kSpan; ++i) {
      const __m256i x = broadcast32(q + 4 * i);
      const __m256i products =
          T.is_signed() ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(x, w[i]))
                        : _mm256_maddubs_epi16(w[i], x);
      part = i == c ? products : _mm256_add_epi16(part, products);
    }
    // A span of 8 crosses the halves: only where both have the same scale.
    static_assert(kSpan <= 4 || !T.halves());
    const __m256i scaled = _mm256_madd_epi16(part, c < 4 ? ints.first : ints.second);
    total = c == 0 ? scaled : _mm256_add_epi32(total, scaled);
  }
  if constexpr (T.offset != 0) {
    total = _mm256_sub_epi32(total, _mm256_madd_epi16(ints.offset, sums));
  }
  return total;
}

// Adds one group to the accumulators of kRows rows of activations.
template <Traits T, int kRows>
inline void add_group(const __m256i (&w)[8], const GroupInts& ints, const BlockScales& scales,
                      const int8_t* q, const float* dx, const int16_t* sum, uint64_t groups,
                      __m256 (&acc)[kRows]) {
  for (int r = 0; r < kRows; ++r) {
    const auto row = static_cast<uint64_t>(r) * groups;
    const __m256i sums = broadcast32(sum + 2 * row);
    const __m256i dot = group_dot<T>(w, ints, q + 32 * row, sums);
    const __m256 d = _mm256_broadcast_ss(dx + row);
    acc[r] = _mm256_fmadd_ps(_mm256_mul_ps(scales.d, d), _mm256_cvtepi32_ps(dot), acc[r]);
    if constexpr (T.bias) {
      const __m256 m = _mm256_mul_ps(scales.m, d);
      const __m256 n = _mm256_cvtepi32_ps(_mm256_madd_epi16(ints.bias, sums));
      acc[r] = T.negative_bias ? _mm256_fnmadd_ps(m, n, acc[r]) : _mm256_fmadd_ps(m, n, acc[r]);
    }
  }
}

// kRows outputs of one tile, from packed weights.
template <Traits T, int kRows>
inline void tile_rows(const Shape& shape, const uint8_t* p, __m256i table, const int8_t* q,
                      const float* dx, const int16_t* sum, __m256 (&acc)[kRows]) {
  constexpr int kGroupBytes = T.ints_bytes() + T.plane_bytes();
  for (int r = 0; r < kRows; ++r) acc[r] = _mm256_setzero_ps();
  const uint32_t block_groups = T.groups != 0 ? T.groups : shape.block_groups;
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    const BlockScales scales = block_scales<T>(shape, p);
    p += block_header<T>(shape);
    for (uint32_t g = 0; g < block_groups; ++g) {
      for (int line = 0; line < kGroupBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + line), _MM_HINT_T0);
      }
      const GroupInts ints = group_ints<T>(p);
      __m256i w[8];
      unpack<T>(p + T.ints_bytes(), table, w);
      add_group<T, kRows>(w, ints, scales, q, dx, sum, shape.groups, acc);
      p += kGroupBytes;
      q += 32;
      dx += 1;
      sum += 2;
    }
  }
}

template <Traits T, int kRows>
inline void tile_at(const MatmulArgs& args, const Shape& shape, __m256i table, uint32_t tile,
                    uint32_t row) {
  __m256 acc[kRows];
  const uint64_t at = row * shape.groups;
  tile_rows<T, kRows>(
      shape, reinterpret_cast<const uint8_t*>(args.weight.data) + tile * shape.tile_bytes, table,
      args.rows.q + 32 * at, args.rows.scale + at, args.rows.sum + 2 * at, acc);
  const uint32_t n = tile * format::kTileRows;
  for (int r = 0; r < kRows; ++r) {
    store_rows(args.out + (row + static_cast<uint32_t>(r)) * args.out_stride + n, acc[r],
               args.weight.layout.rows - n);
  }
}

template <Traits T>
void matmul_i8(const MatmulArgs& args) {
  const Shape shape = shape_of(args.weight.layout);
  const __m256i table = code_table<T>();
  for (uint32_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    uint32_t row = 0;
    for (; row + 4 <= args.rows.count; row += 4) tile_at<T, 4>(args, shape, table, tile, row);
    if (row + 2 <= args.rows.count) {
      tile_at<T, 2>(args, shape, table, tile, row);
      row += 2;
    }
    if (row < args.rows.count) tile_at<T, 1>(args, shape, table, tile, row);
  }
}

}  // namespace
}  // namespace millrace::kernels
