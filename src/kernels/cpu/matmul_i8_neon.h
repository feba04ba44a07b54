// Matrix products of quantized weights with int8 activations in NEON: one template for every format,
// compiled three times: for every arm64 (widening multiplies), with dotprod (sdot), and with i8mm
// (smmla, which multiplies two rows of activations at once).
//
// A lane owns one output. A group's codes are unpacked once (formats_neon.h) and used for every row
// of activations; all integer steps are exact, so the three give the same bits.
//
// Included by matmul_i8_*_neon*.cpp only; everything is local to the including file.
#pragma once

#include "kernels/cpu/formats_neon.h"

namespace millrace::kernels {
namespace {

// Integer dots of one row with the eight outputs; `second` only where halves have their own scales.
struct Dots {
  EightInts first, second;
};

// What one group of a tile multiplies with.
struct TileGroup {
  Codes32 codes;
  GroupInts ints;
  BlockScales scales;
};

#if defined(__ARM_FEATURE_DOTPROD)

// Dots of the 16 codes of half kHalf, added to `dot`.
template <int kHalf>
MILLRACE_INLINE inline void add_half(const Codes32& w, const int8_t* x, EightInts& dot) {
  const int8x16_t codes = vld1q_s8(x + 16 * kHalf);
  unroll<4>([&](auto c) MILLRACE_INLINE {
    unroll<2>([&](auto h) MILLRACE_INLINE {
      dot.v[h] = vdotq_laneq_s32(dot.v[h], w.v[8 * kHalf + 2 * c + h], codes, c);
    });
  });
}

#else

template <int kHalf>
MILLRACE_INLINE inline void add_half(const Codes32& w, const int8_t* x, EightInts& dot) {
  int8x8_t codes[4];
  for (int c = 0; c < 4; ++c) {
    int32_t four;
    __builtin_memcpy(&four, x + 16 * kHalf + 4 * c, 4);
    codes[c] = vreinterpret_s8_s32(vdup_n_s32(four));
  }
  unroll<2>([&](auto h) MILLRACE_INLINE {
    int32x4_t low = vdupq_n_s32(0), high = low;  // sums of pairs, outputs 0 and 1, outputs 2 and 3
    // Two products of at most 128 * 127 fit in int16.
    unroll<2>([&](auto i) MILLRACE_INLINE {
      const int8x16_t a = w.v[8 * kHalf + 4 * i + h], b = w.v[8 * kHalf + 4 * i + 2 + h];
      const int8x8_t x0 = codes[2 * i], x1 = codes[2 * i + 1];
      low = vpadalq_s16(low, vmlal_s8(vmull_s8(vget_low_s8(a), x0), vget_low_s8(b), x1));
      high = vpadalq_s16(high, vmlal_s8(vmull_s8(vget_high_s8(a), x0), vget_high_s8(b), x1));
    });
    dot.v[h] = vaddq_s32(dot.v[h], vpaddq_s32(low, high));
  });
}

#endif

template <Traits T>
MILLRACE_INLINE inline Dots row_dots(const Codes32& w, const int8_t* x) {
  const int32x4_t zero = vdupq_n_s32(0);
  Dots dots{{{zero, zero}}, {{zero, zero}}};
  add_half<0>(w, x, dots.first);
  add_half<1>(w, x, T.halves() ? dots.second : dots.first);
  return dots;
}

// One step of the f32 sequences of the eight outputs.
template <Traits T>
MILLRACE_INLINE inline void accumulate(const TileGroup& group, const Dots& dots, const int16_t* sum,
                                       float dx, Eight& acc) {
  constexpr int kOffset = signed_offset<T>();
  const int32_t first_sum = sum[0], second_sum = sum[1];
  const int32_t all = first_sum + second_sum;
  unroll<2>([&](auto h) MILLRACE_INLINE {
    int32x4_t dot = dots.first.v[h];
    if constexpr (kOffset != 0) {
      dot = vsubq_s32(dot, vdupq_n_s32(kOffset * (T.halves() ? first_sum : all)));
    }
    if constexpr (T.ints != Ints::kNone) dot = vmulq_s32(dot, group.ints.first.v[h]);
    if constexpr (T.halves()) {
      int32x4_t second = dots.second.v[h];
      if constexpr (kOffset != 0) second = vsubq_s32(second, vdupq_n_s32(kOffset * second_sum));
      dot = vmlaq_s32(dot, second, group.ints.second.v[h]);
    }
    const float32x4_t d = vmulq_n_f32(group.scales.d.v[h], dx);
    acc.v[h] = vfmaq_f32(acc.v[h], d, vcvtq_f32_s32(dot));
    if constexpr (T.bias) {
      const float32x4_t m = vmulq_n_f32(group.scales.m.v[h], dx);
      int32x4_t n = vdupq_n_s32(all);
      if constexpr (T.ints == Ints::kScaleMin) n = vmulq_s32(n, group.ints.first_bias.v[h]);
      if constexpr (T.ints == Ints::kNibbles) {
        n = vmulq_n_s32(group.ints.first_bias.v[h], first_sum);
        n = vmlaq_n_s32(n, group.ints.second_bias.v[h], second_sum);
      }
      const float32x4_t bias = vcvtq_f32_s32(n);
      acc.v[h] = T.negative_bias ? vfmsq_f32(acc.v[h], m, bias) : vfmaq_f32(acc.v[h], m, bias);
    }
  });
}

constexpr uint32_t kRowsAtOnce = 32;

// The rows of a call, from one group of inner positions on.
struct GroupRows {
  const int8_t* q;
  const float* dx;
  const int16_t* sum;
  uint64_t groups;  // of a row

  const int8_t* codes(uint32_t row) const { return q + row * groups * 32; }
};

template <Traits T>
MILLRACE_INLINE inline void accumulate_row(const TileGroup& group, const Dots& dots,
                                           const GroupRows& rows, uint32_t row, Eight* sums) {
  Eight acc = sums[row];
  accumulate<T>(group, dots, rows.sum + 2 * row * rows.groups, rows.dx[row * rows.groups], acc);
  sums[row] = acc;
}

template <Traits T>
MILLRACE_INLINE inline void one_by_one(const TileGroup& group, const GroupRows& rows,
                                       uint32_t begin, uint32_t end, Eight* sums) {
  for (uint32_t r = begin; r < end; ++r) {
    accumulate_row<T>(group, row_dots<T>(group.codes, rows.codes(r)), rows, r, sums);
  }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

// Codes of two outputs by eight inner positions in a vector: [eight positions][pair of outputs].
struct PairCodes {
  int8x16_t v[4][4];
};

MILLRACE_INLINE inline PairCodes pair_codes(const Codes32& w) {
  PairCodes out;
  unroll<4>([&](auto j) MILLRACE_INLINE {
    unroll<2>([&](auto h) MILLRACE_INLINE {
      const int32x4_t a = vreinterpretq_s32_s8(w.v[4 * j + h]);
      const int32x4_t b = vreinterpretq_s32_s8(w.v[4 * j + 2 + h]);
      out.v[j][2 * h] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
      out.v[j][2 * h + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    });
  });
  return out;
}

// Dots of two rows with half kHalf, added to dot[row].
template <int kHalf>
MILLRACE_INLINE inline void add_half_of_two(const PairCodes& w, const int8_t* a, const int8_t* b,
                                            EightInts (&dot)[2]) {
  const int64x2_t first = vreinterpretq_s64_s8(vld1q_s8(a + 16 * kHalf));
  const int64x2_t second = vreinterpretq_s64_s8(vld1q_s8(b + 16 * kHalf));
  const int8x16_t x[2] = {vreinterpretq_s8_s64(vzip1q_s64(first, second)),
                          vreinterpretq_s8_s64(vzip2q_s64(first, second))};
  int32x4_t sums[4];  // outputs 2 i, 2 i + 1 by the two rows
  unroll<4>([&](auto i) MILLRACE_INLINE {
    sums[i] = vmmlaq_s32(vdupq_n_s32(0), w.v[2 * kHalf][i], x[0]);
    sums[i] = vmmlaq_s32(sums[i], w.v[2 * kHalf + 1][i], x[1]);
  });
  unroll<2>([&](auto h) MILLRACE_INLINE {
    const int32x4_t low = sums[2 * h], high = sums[2 * h + 1];
    dot[0].v[h] = vaddq_s32(dot[0].v[h], vuzp1q_s32(low, high));
    dot[1].v[h] = vaddq_s32(dot[1].v[h], vuzp2q_s32(low, high));
  });
}

template <Traits T>
MILLRACE_INLINE inline void add_rows(const TileGroup& group, const GroupRows& rows, uint32_t count,
                                     Eight* sums) {
  if (count < 2) return one_by_one<T>(group, rows, 0, count, sums);
  const PairCodes w = pair_codes(group.codes);
  const int32x4_t zero = vdupq_n_s32(0);
  uint32_t r = 0;
  for (; r + 2 <= count; r += 2) {
    EightInts first[2] = {{{zero, zero}}, {{zero, zero}}};
    EightInts second[2] = {{{zero, zero}}, {{zero, zero}}};
    add_half_of_two<0>(w, rows.codes(r), rows.codes(r + 1), first);
    add_half_of_two<1>(w, rows.codes(r), rows.codes(r + 1), T.halves() ? second : first);
    accumulate_row<T>(group, {first[0], second[0]}, rows, r, sums);
    accumulate_row<T>(group, {first[1], second[1]}, rows, r + 1, sums);
  }
  one_by_one<T>(group, rows, r, count, sums);
}

#else

template <Traits T>
MILLRACE_INLINE inline void add_rows(const TileGroup& group, const GroupRows& rows, uint32_t count,
                                     Eight* sums) {
  one_by_one<T>(group, rows, 0, count, sums);
}

#endif

// Bytes ahead of the reader that are asked for.
constexpr uint64_t kAhead = 1024;

template <Traits T>
inline void tile_rows(const MatmulArgs& args, const Shape& shape, uint32_t tile, uint32_t row,
                      uint32_t count) {
  const uint8x16_t table = code_table<T>();
  const uint32_t block_groups = T.groups != 0 ? T.groups : shape.block_groups;
  const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * shape.tile_bytes;
  GroupRows rows{args.rows.q + row * shape.groups * 32, args.rows.scale + row * shape.groups,
                 args.rows.sum + row * shape.groups * 2, shape.groups};
  Eight sums[kRowsAtOnce];
  for (uint32_t r = 0; r < count; ++r) sums[r] = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
  TileGroup group;
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    group.scales = block_scales<T>(shape, p);
    p += block_header<T>(shape);
    for (uint32_t g = 0; g < block_groups; ++g) {
      for (int line = 0; line < T.ints_bytes() + T.plane_bytes(); line += 64) {
        __builtin_prefetch(p + kAhead + line);
      }
      group.ints = group_ints<T>(p);
      group.codes = unpack<T>(p + T.ints_bytes(), table);
      p += T.ints_bytes() + T.plane_bytes();
      add_rows<T>(group, rows, count, sums);
      rows.q += 32;
      rows.dx += 1;
      rows.sum += 2;
    }
  }
  const uint32_t n = tile * format::kTileRows;
  for (uint32_t r = 0; r < count; ++r) {
    store_rows(args.out + (row + r) * args.out_stride + n, sums[r], args.weight.layout.rows - n);
  }
}

template <Traits T>
void matmul_i8(const MatmulArgs& args) {
  const Shape shape = shape_of(args.weight.layout);
  for (uint32_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    for (uint32_t row = 0; row < args.rows.count; row += kRowsAtOnce) {
      const uint32_t left = args.rows.count - row;
      tile_rows<T>(args, shape, tile, row, left < kRowsAtOnce ? left : kRowsAtOnce);
    }
  }
}

// For the tables of kernel_tables.h.
struct Int8 {
  template <Traits T>
  static constexpr MatmulFn of = matmul_i8<T>;
};

}  // namespace
}  // namespace millrace::kernels
