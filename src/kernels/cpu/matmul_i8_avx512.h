// Matrix products of quantized weights with int8 activations in AVX-512 VNNI: one template for every
// format.
//
// A vector holds two tiles of 8 outputs (formats_avx512.h); a lane owns one output. vpdpbusd adds
// four products of unsigned codes and signed activations into int32 without saturation, so a group
// is eight of them, and offsets come in by starting the sum at -offset * (sum of activations).
// Integer scales are applied in float, where their products are exact. One row streams through pair
// after pair of tiles; more rows go from a panel, two pairs by four rows at a time.
//
// Included by matmul_i8_*_avx512_vnni.cpp only; everything is local to the including file.
#pragma once

#include "kernels/cpu/formats_avx512.h"

namespace millrace::kernels {
namespace {

// What one group of a pair of tiles multiplies with.
struct PairGroup {
  __m512i w[8];
  PairInts ints;
  PairScales scales;
};

template <Traits T>
inline void load_pair_group(const uint8_t* p, uint64_t other, uint64_t ahead, __m512i table,
                            PairGroup& group) {
  constexpr int kBytes = T.ints_bytes() + T.plane_bytes();
  for (int line = 0; line < kBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + ahead + line, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p) + other + ahead + line, _MM_HINT_T0);
  }
  group.ints = pair_ints<T>(p, other);
  wide_unpack<T>(p + T.ints_bytes(), other, table, group.w);
}

inline __m512i wide_broadcast32(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// An int16 pair in every lane, to weigh the sums of the first and second 16 activations.
inline __m512i sum_weights(int first, int second) {
  return _mm512_set1_epi32((first & 0xffff) | (second << 16));
}

// Where the dot of half kHalf (or of all, without halves) starts.
template <Traits T, int kHalf>
MILLRACE_INLINE inline __m512i dot_start(__m512i sums) {
  constexpr int kOffset = unsigned_offset<T>();
  if constexpr (kOffset == 0) return _mm512_setzero_si512();
  if constexpr (!T.halves()) return _mm512_madd_epi16(sums, sum_weights(-kOffset, -kOffset));
  return _mm512_madd_epi16(sums, kHalf == 0 ? sum_weights(-kOffset, 0) : sum_weights(0, -kOffset));
}

// One step of an output's f32 sequence. `dot` is scaled by the integer scales.
template <Traits T>
MILLRACE_INLINE inline __m512 accumulate_pair(const PairGroup& group, __m512 dot, __m512i sums,
                                              __m512 dx, __m512 acc) {
  acc = _mm512_fmadd_ps(_mm512_mul_ps(group.scales.d, dx), dot, acc);
  if constexpr (T.bias) {
    const __m512 m = _mm512_mul_ps(group.scales.m, dx);
    __m512 n;
    if constexpr (T.ints == Ints::kNibbles) {
      const __m512 first = _mm512_cvtepi32_ps(_mm512_madd_epi16(sums, sum_weights(1, 0)));
      const __m512 second = _mm512_cvtepi32_ps(_mm512_madd_epi16(sums, sum_weights(0, 1)));
      n = _mm512_fmadd_ps(group.ints.second_bias, second,
                          _mm512_mul_ps(group.ints.first_bias, first));
    } else {
      n = _mm512_cvtepi32_ps(_mm512_madd_epi16(sums, sum_weights(1, 1)));
      if constexpr (T.ints == Ints::kScaleMin) n = _mm512_mul_ps(n, group.ints.first_bias);
    }
    acc = T.negative_bias ? _mm512_fnmadd_ps(m, n, acc) : _mm512_fmadd_ps(m, n, acc);
  }
  return acc;
}

// The scaled dot from the integer dots (of the halves, or of all in `first`).
template <Traits T>
MILLRACE_INLINE inline __m512 scaled_dot(const PairInts& ints, __m512i first, __m512i second) {
  const __m512 dot = _mm512_cvtepi32_ps(first);
  if constexpr (T.ints == Ints::kNone) return dot;
  if constexpr (!T.halves()) return _mm512_mul_ps(dot, ints.first);
  return _mm512_fmadd_ps(ints.second, _mm512_cvtepi32_ps(second), _mm512_mul_ps(dot, ints.first));
}

// Adds one group to kRows rows of kPairs pairs. Row r has its codes at q + 32 r, its scale at
// dx + r, its sums at sum + 2 r; get(r, t) and put(r, t, v) are the running outputs.
template <Traits T, int kPairs, int kRows, class Get, class Put>
MILLRACE_INLINE inline void add_group(const PairGroup (&pairs)[kPairs], const uint8_t* q,
                                      const uint8_t* dx, const uint8_t* sum, Get get, Put put) {
  __m512i dot[2][kRows][kPairs];
  unroll<kRows>([&](auto r) MILLRACE_INLINE {
    const __m512i sums = wide_broadcast32(sum + 4 * r);
    const __m512i first = dot_start<T, 0>(sums);
    unroll<kPairs>([&](auto t) MILLRACE_INLINE { dot[0][r][t] = first; });
    if constexpr (T.halves()) {
      const __m512i second = dot_start<T, 1>(sums);
      unroll<kPairs>([&](auto t) MILLRACE_INLINE { dot[1][r][t] = second; });
    }
  });
  unroll<8>([&](auto c) MILLRACE_INLINE {
    constexpr int kHalf = T.halves() && c >= 4 ? 1 : 0;
    unroll<kRows>([&](auto r) MILLRACE_INLINE {
      const __m512i x = wide_broadcast32(q + 32 * r + 4 * c);
      unroll<kPairs>([&](auto t) MILLRACE_INLINE {
        dot[kHalf][r][t] = _mm512_dpbusd_epi32(dot[kHalf][r][t], pairs[t].w[c], x);
      });
    });
  });
  unroll<kRows>([&](auto r) MILLRACE_INLINE {
    const __m512i sums = wide_broadcast32(sum + 4 * r);
    const __m512 scale = _mm512_castsi512_ps(wide_broadcast32(dx + 4 * r));
    unroll<kPairs>([&](auto t) MILLRACE_INLINE {
      const __m512i second = T.halves() ? dot[1][r][t] : dot[0][r][t];
      const __m512 scaled = scaled_dot<T>(pairs[t].ints, dot[0][r][t], second);
      put(r, t, accumulate_pair<T>(pairs[t], scaled, sums, scale, get(r, t)));
    });
  });
}

template <Traits T>
void one_row_wide(const MatmulArgs& args, const Shape& shape) {
  const __m512i table = wide_code_table<T>();
  const uint32_t block_groups = T.groups != 0 ? T.groups : shape.block_groups;
  for (uint32_t tile = args.tile_begin; tile < args.tile_end; tile += 2) {
    const bool both = tile + 2 <= args.tile_end;
    const uint64_t other = both ? shape.tile_bytes : 0;
    const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * shape.tile_bytes;
    const uint8_t* last = p + shape.tile_bytes;
    const auto* q = reinterpret_cast<const uint8_t*>(args.rows.q);
    const auto* dx = reinterpret_cast<const uint8_t*>(args.rows.scale);
    const auto* sum = reinterpret_cast<const uint8_t*>(args.rows.sum);
    __m512 acc = _mm512_setzero_ps();
    for (uint32_t block = 0; block < shape.blocks; ++block) {
      PairGroup group[1];
      group[0].scales = pair_scales<T>(shape, p, other);
      p += block_header<T>(shape);
      for (uint32_t g = 0; g < block_groups; ++g) {
        load_pair_group<T>(p, other, tile_ahead(p, last, 2, shape.tile_bytes), table, group[0]);
        add_group<T, 1, 1>(
            group, q, dx, sum, [&](int, int) MILLRACE_INLINE { return acc; },
            [&](int, int, __m512 v) MILLRACE_INLINE { acc = v; });
        p += T.ints_bytes() + T.plane_bytes();
        q += 32;
        dx += 4;
        sum += 4;
      }
    }
    const uint32_t n = tile * format::kTileRows;
    store_pair(args.out + n, acc, both ? 16 : 8, args.weight.layout.rows - n);
  }
}

// A panel holds some rows of activations group by group; in a group, rows in fours (the last ones
// fewer), and in a four: the codes of each row | the scales | the pairs of sums.
constexpr uint32_t kWideRowBytes = 40;            // of a row in a group
constexpr uint32_t kWidePanelBytes = 160 * 1024;  // fits the second cache beside the weights
constexpr uint32_t kWidePanelRows = 64;

template <int kRows>
inline uint8_t* pack_wide_rows(const Rows& rows, uint64_t at, uint64_t groups, uint8_t* panel) {
  for (int r = 0; r < kRows; ++r) {
    const uint64_t from = at + static_cast<uint64_t>(r) * groups;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + 32 * r), load256(rows.q + 32 * from));
    __builtin_memcpy(panel + 32 * kRows + 4 * r, rows.scale + from, 4);
    __builtin_memcpy(panel + 36 * kRows + 4 * r, rows.sum + 2 * from, 4);
  }
  return panel + kWideRowBytes * kRows;
}

inline void pack_wide_panel(const Rows& rows, uint32_t row, uint32_t count, uint64_t groups,
                            uint8_t* panel) {
  for (uint64_t g = 0; g < groups; ++g) {
    uint32_t r = 0;
    for (; r + 4 <= count; r += 4) {
      panel = pack_wide_rows<4>(rows, (row + r) * groups + g, groups, panel);
    }
    const uint64_t at = (row + r) * groups + g;
    if (count - r == 3) panel = pack_wide_rows<3>(rows, at, groups, panel);
    if (count - r == 2) panel = pack_wide_rows<2>(rows, at, groups, panel);
    if (count - r == 1) panel = pack_wide_rows<1>(rows, at, groups, panel);
  }
}

// Adds one group to kRows rows of a panel; sums [kRows][kPairs][16].
template <Traits T, int kPairs, int kRows>
MILLRACE_INLINE inline const uint8_t* add_panel_rows(const PairGroup (&pairs)[kPairs],
                                                     const uint8_t* panel, float*& sums) {
  float* at = sums;
  add_group<T, kPairs, kRows>(
      pairs, panel, panel + 32 * kRows, panel + 36 * kRows,
      [&](int r, int t) MILLRACE_INLINE { return _mm512_load_ps(at + 16 * (r * kPairs + t)); },
      [&](int r, int t, __m512 v)
          MILLRACE_INLINE { _mm512_store_ps(at + 16 * (r * kPairs + t), v); });
  sums += 16 * kRows * kPairs;
  return panel + kWideRowBytes * kRows;
}

// `other` is 0 for a tile without a neighbour (then kPairs is 1).
template <Traits T, int kPairs>
inline void panel_pairs(const MatmulArgs& args, const Shape& shape, const uint8_t* panel,
                        uint32_t tile, uint64_t other, uint32_t row, uint32_t count) {
  const __m512i table = wide_code_table<T>();
  const uint32_t block_groups = T.groups != 0 ? T.groups : shape.block_groups;
  const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * shape.tile_bytes;
  const uint8_t* last = p + shape.tile_bytes;
  const auto at = [&](int t) { return p + static_cast<uint64_t>(2 * t) * shape.tile_bytes; };
  alignas(64) float all_sums[kWidePanelRows * kPairs * 16];
  for (uint32_t i = 0; i < count * kPairs; ++i) {
    _mm512_store_ps(all_sums + 16 * i, _mm512_setzero_ps());
  }
  PairGroup pairs[kPairs];
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    for (int t = 0; t < kPairs; ++t) pairs[t].scales = pair_scales<T>(shape, at(t), other);
    p += block_header<T>(shape);
    for (uint32_t g = 0; g < block_groups; ++g) {
      const uint64_t ahead = tile_ahead(p, last, 2 * kPairs, shape.tile_bytes);
      for (int t = 0; t < kPairs; ++t) {
        load_pair_group<T>(at(t), other, ahead, table, pairs[t]);
      }
      p += T.ints_bytes() + T.plane_bytes();
      float* sums = all_sums;
      uint32_t r = 0;
      for (; r + 4 <= count; r += 4) panel = add_panel_rows<T, kPairs, 4>(pairs, panel, sums);
      if (count - r == 3) panel = add_panel_rows<T, kPairs, 3>(pairs, panel, sums);
      if (count - r == 2) panel = add_panel_rows<T, kPairs, 2>(pairs, panel, sums);
      if (count - r == 1) panel = add_panel_rows<T, kPairs, 1>(pairs, panel, sums);
    }
  }
  const float* sums = all_sums;
  for (uint32_t r = 0; r < count; ++r) {
    float* out = args.out + (row + r) * args.out_stride;
    for (uint32_t t = 0; t < kPairs; ++t, sums += 16) {
      const uint32_t n = (tile + 2 * t) * format::kTileRows;
      store_pair(out + n, _mm512_load_ps(sums), other != 0 ? 16 : 8, args.weight.layout.rows - n);
    }
  }
}

template <Traits T>
void panel_rows_wide(const MatmulArgs& args, const Shape& shape, uint32_t row, uint32_t count) {
  alignas(64) uint8_t panel[kWidePanelBytes];
  pack_wide_panel(args.rows, row, count, shape.groups, panel);
  uint32_t tile = args.tile_begin;
  for (; tile + 4 <= args.tile_end; tile += 4) {
    panel_pairs<T, 2>(args, shape, panel, tile, shape.tile_bytes, row, count);
  }
  for (; tile < args.tile_end; tile += 2) {
    const uint64_t other = tile + 2 <= args.tile_end ? shape.tile_bytes : 0;
    panel_pairs<T, 1>(args, shape, panel, tile, other, row, count);
  }
}

// The rows from `row` on.
inline MatmulArgs rows_from(const MatmulArgs& args, const Shape& shape, uint32_t row) {
  MatmulArgs rest = args;
  rest.rows.count -= row;
  rest.rows.q += row * shape.groups * 32;
  rest.rows.scale += row * shape.groups;
  rest.rows.sum += row * shape.groups * 2;
  rest.out += row * args.out_stride;
  return rest;
}

template <Traits T>
void matmul_i8_vnni(const MatmulArgs& args) {
  const Shape shape = shape_of(args.weight.layout);
  const uint64_t fit = kWidePanelBytes / (shape.groups * kWideRowBytes);
  uint32_t row = 0;
  while (row < args.rows.count) {
    const uint32_t left = args.rows.count - row;
    if (left == 1 || fit < 2) {
      one_row_wide<T>(rows_from(args, shape, row), shape);
      row += 1;
      continue;
    }
    uint32_t most = fit < kWidePanelRows ? static_cast<uint32_t>(fit) : kWidePanelRows;
    if (most > 4) most -= most % 4;
    const uint32_t count = left < most ? left : most;
    panel_rows_wide<T>(args, shape, row, count);
    row += count;
  }
}

// For the tables of kernel_tables.h.
struct Int8 {
  template <Traits T>
  static constexpr MatmulFn of = matmul_i8_vnni<T>;
};

}  // namespace
}  // namespace millrace::kernels
