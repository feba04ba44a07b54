// Matrix products of quantized weights with int8 activations in AVX2: one template for every
// format.
//
// A vector lane owns one output row of a tile. For a group of 32 inner positions the codes are
// unpacked once into 8 vectors of 32 bytes (4 inner positions of 8 rows each) and used for every
// row of activations: vpmaddubsw by the broadcast activations, sums in int16 over as many chunks as
// cannot overflow, vpmaddwd into int32 by the integer scales (or ones), then one fma. Offsets,
// minimums and biases come in through the activation sums: vpmaddwd of a pair of int16 (for the
// first and second 16 positions) with the pair of sums. All integer steps are exact.
//
// One row streams through one tile after another (memory is the limit). More rows are first copied
// into a panel in the order in which they are used, and go two tiles by four rows at a time, so
// that a broadcast serves two tiles and an unpacked code four rows (loads are the limit).
//
// Included by matmul_i8_*_avx2.cpp only; everything is local to the including file (see
// vec_avx2.h).
#pragma once

#include "kernels/cpu/formats_avx2.h"
#include "kernels/cpu/matmul_i8_steps_avx2.h"

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

// What one group of one tile multiplies with.
struct TileGroup {
  const uint8_t* planes;  // where the codes are
  __m256i w[8];           // unpacked, unless the rows do it
  GroupInts ints;
  BlockScales scales;
};

template <Traits T>
MILLRACE_INLINE inline __m256i multiply(__m256i w, __m256i x) {
  if constexpr (T.is_signed()) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  }
  return _mm256_maddubs_epi16(w, x);
}

// Keeps a running sum where it is written: GCC otherwise gathers the additions of an unrolled loop
// at its end and spills every product.
inline void pin(__m256i& v) { asm("" : "+x"(v)); }

// The integer dots of a group, scaled by the integer scales, without offset. Row r has its 32 codes
// at q + 32 r.
template <Traits T, int kTiles, int kRows>
MILLRACE_INLINE inline Dots<kTiles, kRows> group_dots(const TileGroup (&tiles)[kTiles],
                                                      const uint8_t* q) {
  constexpr int kSpan = T.span();
  Dots<kTiles, kRows> total;
  // Adds the int16 sums of span s.
  const auto add = [&](auto s, auto r, auto t, __m256i part) MILLRACE_INLINE {
    const GroupInts& ints = tiles[t].ints;
    const __m256i dot = _mm256_madd_epi16(part, s * kSpan < 4 ? ints.first : ints.second);
    total.v[r][t] = s == 0 ? dot : _mm256_add_epi32(total.v[r][t], dot);
    pin(total.v[r][t]);
  };
  unroll<8 / kSpan>([&](auto s) MILLRACE_INLINE {
    if constexpr (kTiles == 2 && kRows >= 2 && kSpan >= 2) {
      Dots<2, kRows> part;
      unroll<kSpan>([&](auto i) MILLRACE_INLINE {
        constexpr int kChunk = s * kSpan + i;
        step<kRows, i == 0>(tiles[0].w[kChunk], tiles[1].w[kChunk], q + 4 * kChunk, part);
      });
      unroll<kRows>([&](auto r) MILLRACE_INLINE {
        unroll<2>([&](auto t) MILLRACE_INLINE { add(s, r, t, part.v[r][t]); });
      });
    } else if constexpr (kSpan >= 4) {
      Dots<kTiles, kRows> part;
      unroll<kSpan>([&](auto i) MILLRACE_INLINE {
        unroll<kRows>([&](auto r) MILLRACE_INLINE {
          const __m256i x = broadcast32(q + 32 * r + 4 * (s * kSpan + i));
          unroll<kTiles>([&](auto t) MILLRACE_INLINE {
            const __m256i products = multiply<T>(tiles[t].w[s * kSpan + i], x);
            part.v[r][t] = i == 0 ? products : _mm256_add_epi16(part.v[r][t], products);
            pin(part.v[r][t]);
          });
        });
      });
      unroll<kRows>([&](auto r) MILLRACE_INLINE {
        unroll<kTiles>([&](auto t) MILLRACE_INLINE { add(s, r, t, part.v[r][t]); });
      });
    } else {
      unroll<kRows>([&](auto r) MILLRACE_INLINE {
        const uint8_t* at = q + 32 * r + 4 * s * kSpan;
        const __m256i x0 = broadcast32(at);
        const __m256i x1 = broadcast32(at + 4 * (kSpan - 1));
        unroll<kTiles>([&](auto t) MILLRACE_INLINE {
          __m256i part = multiply<T>(tiles[t].w[s * kSpan], x0);
          if constexpr (kSpan == 2) {
            part = _mm256_add_epi16(part, multiply<T>(tiles[t].w[s * kSpan + 1], x1));
          }
          add(s, r, t, part);
        });
      });
    }
  });
  return total;
}

// What the activation sums of a row's group contribute. Without integer scales it is the same for every
// output.
template <Traits T>
struct RowSums {
  __m256i sums;    // pairs
  __m256i offset;  // no integer scales: to be subtracted from the dots
  __m256 bias;     // no integer scales: times m
};
template <Traits T>
MILLRACE_INLINE inline RowSums<T> row_sums(__m256i sums) {
  RowSums<T> row{sums, {}, {}};
  if constexpr (T.ints == Ints::kNone && T.offset != 0)
    row.offset = _mm256_madd_epi16(_mm256_set1_epi16(static_cast<short>(T.offset)), sums);
  if constexpr (T.ints == Ints::kNone && T.bias)
    row.bias = _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_set1_epi16(1), sums));
  return row;
}

// One step of an output's f32 sequence.
template <Traits T>
MILLRACE_INLINE inline __m256 accumulate(const TileGroup& tile, __m256i dot, const RowSums<T>& row,
                                         __m256 dx, __m256 acc) {
  if constexpr (T.offset != 0 && T.ints == Ints::kNone) {
    dot = _mm256_sub_epi32(dot, row.offset);
  } else if constexpr (T.offset != 0) {
    dot = _mm256_sub_epi32(dot, _mm256_madd_epi16(tile.ints.offset, row.sums));
  }
  acc = _mm256_fmadd_ps(_mm256_mul_ps(tile.scales.d, dx), _mm256_cvtepi32_ps(dot), acc);
  if constexpr (T.bias) {
    const __m256 m = _mm256_mul_ps(tile.scales.m, dx);
    __m256 n = row.bias;
    if constexpr (T.ints != Ints::kNone)
      n = _mm256_cvtepi32_ps(_mm256_madd_epi16(tile.ints.bias, row.sums));
    acc = T.negative_bias ? _mm256_fnmadd_ps(m, n, acc) : _mm256_fmadd_ps(m, n, acc);
  }
  return acc;
}

// Whether the rows of two tiles unpack the codes as they go: where that is too little work to keep its
// results in memory.
template <Traits T>
constexpr bool unpacks_late() {
  return T.bits == 4 && T.code == Code::kUnsigned && T.span() == 8;
}

template <Traits T, bool kUnpack>
inline void load_group(const uint8_t* p, uint64_t ahead, __m256i table, TileGroup& group) {
  constexpr int kBytes = T.ints_bytes() + T.plane_bytes();
  for (int line = 0; line < kBytes; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p) + ahead + line, _MM_HINT_T0);
  }
  group.ints = group_ints<T>(p);
  group.planes = p + T.ints_bytes();
  if constexpr (kUnpack) unpack<T>(group.planes, table, group.w);
}

template <Traits T>
void one_row(const MatmulArgs& args, const Shape& shape) {
  const __m256i table = code_table<T>();
  const uint32_t block_groups = T.groups != 0 ? T.groups : shape.block_groups;
  for (uint32_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * shape.tile_bytes;
    const int8_t* q = args.rows.q;
    const float* dx = args.rows.scale;
    const int16_t* sum = args.rows.sum;
    __m256 acc = _mm256_setzero_ps();
    for (uint32_t block = 0; block < shape.blocks; ++block) {
      TileGroup group[1];
      group[0].scales = block_scales<T>(shape, p);
      p += block_header<T>(shape);
      for (uint32_t g = 0; g < block_groups; ++g) {
        load_group<T, true>(p, kAhead, table, group[0]);
        const auto dots = group_dots<T, 1, 1>(group, reinterpret_cast<const uint8_t*>(q));
        const auto sums = row_sums<T>(broadcast32(sum));
        acc = accumulate<T>(group[0], dots.v[0][0], sums, _mm256_broadcast_ss(dx), acc);
        p += T.ints_bytes() + T.plane_bytes();
        q += 32;
        dx += 1;
        sum += 2;
      }
    }
    const uint32_t n = tile * format::kTileRows;
    store_rows(args.out + n, acc, args.weight.layout.rows - n);
  }
}

// A panel holds some rows of activations group by group; in a group, rows in fours (the last ones
// fewer), and in a four: the codes of each row | the scales | the pairs of sums.
constexpr uint32_t kRowBytes = 40;            // of a row in a group
constexpr uint32_t kPanelBytes = 160 * 1024;  // fits the second cache beside the weights
constexpr uint32_t kPanelRows = 64;

// Copies kRows rows of one group to a panel.
template <int kRows>
inline uint8_t* pack_rows(const Rows& rows, uint64_t at, uint64_t groups, uint8_t* panel) {
  for (int r = 0; r < kRows; ++r) {
    const uint64_t from = at + static_cast<uint64_t>(r) * groups;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(panel + 32 * r), load256(rows.q + 32 * from));
    __builtin_memcpy(panel + 32 * kRows + 4 * r, rows.scale + from, 4);
    __builtin_memcpy(panel + 36 * kRows + 4 * r, rows.sum + 2 * from, 4);
  }
  return panel + kRowBytes * kRows;
}

inline void pack_panel(const Rows& rows, uint32_t row, uint32_t count, uint64_t groups,
                       uint8_t* panel) {
  for (uint64_t g = 0; g < groups; ++g) {
    uint32_t r = 0;
    for (; r + 4 <= count; r += 4) {
      panel = pack_rows<4>(rows, (row + r) * groups + g, groups, panel);
    }
    const uint64_t at = (row + r) * groups + g;
    if (count - r == 3) panel = pack_rows<3>(rows, at, groups, panel);
    if (count - r == 2) panel = pack_rows<2>(rows, at, groups, panel);
    if (count - r == 1) panel = pack_rows<1>(rows, at, groups, panel);
  }
}

// Adds one group to kRows rows of kTiles tiles; sums [kRows][kTiles][8].
template <Traits T, int kTiles, int kRows>
MILLRACE_INLINE inline const uint8_t* add_rows(const TileGroup (&tiles)[kTiles],
                                               const uint8_t* panel, float*& sums) {
  // dot(r, t): the integer dots of row r with tile t.
  const auto finish = [&](auto dot) MILLRACE_INLINE {
    unroll<kRows>([&](auto r) MILLRACE_INLINE {
      const uint8_t* scales = panel + 32 * kRows + 4 * r;
      const __m256 dx = _mm256_broadcast_ss(reinterpret_cast<const float*>(scales));
      const auto row = row_sums<T>(broadcast32(panel + 36 * kRows + 4 * r));
      unroll<kTiles>([&](auto t) MILLRACE_INLINE {
        float* at = sums + 8 * (r * kTiles + t);
        _mm256_store_ps(at, accumulate<T>(tiles[t], dot(r, t), row, dx, _mm256_load_ps(at)));
      });
    });
  };
  if constexpr (kTiles == 2 && kRows >= 2 && T.span() == 8) {
    // The int16 sums of a whole group: straight from registers to the f32 sums.
    Dots<2, kRows> part;
    if constexpr (unpacks_late<T>()) {
      unroll<4>([&](auto i) MILLRACE_INLINE {
        nibble_step<kRows, i == 0>(tiles[0].planes + 32 * i, tiles[1].planes + 32 * i,
                                   panel + 4 * i, part);
      });
    } else {
      unroll<8>([&](auto i) MILLRACE_INLINE {
        step<kRows, i == 0>(tiles[0].w[i], tiles[1].w[i], panel + 4 * i, part);
      });
    }
    finish([&](auto r, auto t)
               MILLRACE_INLINE { return _mm256_madd_epi16(part.v[r][t], tiles[t].ints.first); });
  } else if constexpr (kTiles == 2 && kRows >= 2 && T.is_signed() && !T.halves()) {
    Dots<2, kRows> total;
    unroll<kRows>([&](auto r)
                      MILLRACE_INLINE { total.v[r][0] = total.v[r][1] = _mm256_setzero_si256(); });
    unroll<8>([&](auto i) MILLRACE_INLINE {
      signed_step<kRows>(tiles[0].w[i], tiles[1].w[i], panel + 4 * i, total);
    });
    finish([&](auto r, auto t) MILLRACE_INLINE {
      if constexpr (T.ints == Ints::kNone) return total.v[r][t];
      // The scale is in both halves of `first`: as int32, the lower one.
      const __m256i scale = _mm256_srai_epi32(_mm256_slli_epi32(tiles[t].ints.first, 16), 16);
      return _mm256_mullo_epi32(total.v[r][t], scale);
    });
  } else if constexpr (kTiles == 2 && unpacks_late<T>()) {
    TileGroup own[2] = {tiles[0], tiles[1]};
    for (TileGroup& tile : own) unpack<T>(tile.planes, _mm256_setzero_si256(), tile.w);
    const auto dots = group_dots<T, 2, kRows>(own, panel);
    finish([&](auto r, auto t) MILLRACE_INLINE { return dots.v[r][t]; });
  } else {
    const auto dots = group_dots<T, kTiles, kRows>(tiles, panel);
    finish([&](auto r, auto t) MILLRACE_INLINE { return dots.v[r][t]; });
  }
  sums += 8 * kRows * kTiles;
  return panel + kRowBytes * kRows;
}

template <Traits T, int kTiles>
inline void panel_tiles(const MatmulArgs& args, const Shape& shape, const uint8_t* panel,
                        uint32_t tile, uint32_t row, uint32_t count) {
  const __m256i table = code_table<T>();
  const uint32_t block_groups = T.groups != 0 ? T.groups : shape.block_groups;
  const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * shape.tile_bytes;
  const uint8_t* last = p + shape.tile_bytes;
  alignas(32) float all_sums[kPanelRows * kTiles * 8];
  for (uint32_t i = 0; i < count * kTiles; ++i) {
    _mm256_store_ps(all_sums + 8 * i, _mm256_setzero_ps());
  }
  TileGroup tiles[kTiles];
  constexpr bool kUnpack = kTiles == 1 || !unpacks_late<T>();
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    for (int t = 0; t < kTiles; ++t) {
      tiles[t].scales = block_scales<T>(shape, p + static_cast<uint64_t>(t) * shape.tile_bytes);
    }
    p += block_header<T>(shape);
    for (uint32_t g = 0; g < block_groups; ++g) {
      const uint64_t ahead = tile_ahead(p, last, kTiles, shape.tile_bytes);
      for (int t = 0; t < kTiles; ++t) {
        load_group<T, kUnpack>(p + static_cast<uint64_t>(t) * shape.tile_bytes, ahead, table,
                               tiles[t]);
      }
      p += T.ints_bytes() + T.plane_bytes();
      float* sums = all_sums;
      uint32_t r = 0;
      for (; r + 4 <= count; r += 4) panel = add_rows<T, kTiles, 4>(tiles, panel, sums);
      if (count - r == 3) panel = add_rows<T, kTiles, 3>(tiles, panel, sums);
      if (count - r == 2) panel = add_rows<T, kTiles, 2>(tiles, panel, sums);
      if (count - r == 1) panel = add_rows<T, kTiles, 1>(tiles, panel, sums);
    }
  }
  const float* sums = all_sums;
  for (uint32_t r = 0; r < count; ++r) {
    float* out = args.out + (row + r) * args.out_stride;
    for (uint32_t t = 0; t < kTiles; ++t, sums += 8) {
      const uint32_t n = (tile + t) * format::kTileRows;
      store_rows(out + n, _mm256_load_ps(sums), args.weight.layout.rows - n);
    }
  }
}

template <Traits T>
void panel_rows(const MatmulArgs& args, const Shape& shape, uint32_t row, uint32_t count) {
  alignas(64) uint8_t panel[kPanelBytes];
  pack_panel(args.rows, row, count, shape.groups, panel);
  uint32_t tile = args.tile_begin;
  for (; tile + 2 <= args.tile_end; tile += 2) {
    panel_tiles<T, 2>(args, shape, panel, tile, row, count);
  }
  if (tile < args.tile_end) panel_tiles<T, 1>(args, shape, panel, tile, row, count);
}

template <Traits T>
void matmul_i8(const MatmulArgs& args) {
  const Shape shape = shape_of(args.weight.layout);
  const uint64_t fit = kPanelBytes / (shape.groups * kRowBytes);
  uint32_t row = 0;
  while (row < args.rows.count) {
    const uint32_t left = args.rows.count - row;
    if (left == 1 || fit < 2) {
      MatmulArgs one = args;
      one.rows.q += row * shape.groups * 32;
      one.rows.scale += row * shape.groups;
      one.rows.sum += row * shape.groups * 2;
      one.out += row * args.out_stride;
      one_row<T>(one, shape);
      row += 1;
      continue;
    }
    uint32_t most = fit < kPanelRows ? static_cast<uint32_t>(fit) : kPanelRows;
    if (most > 4) most -= most % 4;
    const uint32_t count = left < most ? left : most;
    panel_rows<T>(args, shape, row, count);
    row += count;
  }
}

// For the tables of kernel_tables.h.
struct Int8 {
  template <Traits T>
  static constexpr MatmulFn of = matmul_i8<T>;
};

}  // namespace
}  // namespace millrace::kernels
