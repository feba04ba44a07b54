// Matrix products with float activations in NEON: dequantized weights (matmul_quant_f32), and float
// weights (matmul_float). A lane owns an output; its fma chain runs over k in order.
//
// Included by matmul_f32_*_neon.cpp only; everything is local to the including file.
#pragma once

#include "kernels/cpu/formats_neon.h"

namespace millrace::kernels {
namespace {

// The 32 values of a group, as dequantize_row makes them: one rounding an operation, no fma.
template <Traits T>
inline void dequantize_group(const uint8_t* p, const BlockScales& scales, uint8x16_t table,
                             Eight (&out)[32]) {
  const Codes32 codes = unpack<T>(p + T.ints_bytes(), table);
  GroupInts ints{};
  if constexpr (T.ints != Ints::kE4M3Halves) ints = group_ints<T>(p);
  Eight d[2] = {scales.d, scales.d}, m[2] = {scales.m, scales.m};
  for (int h = 0; h < 2; ++h) {
    if constexpr (T.ints == Ints::kE4M3Halves) {
      for (int half = 0; half < 2; ++half) {
        const int32x4_t scale = vshlq_n_s32(ints8(p + 8 * half, false).v[h], 24);
        d[half].v[h] = vmulq_f32(scales.d.v[h], e4m3_of_top(scale));
      }
    } else if constexpr (T.ints != Ints::kNone) {
      const int32x4_t second = T.halves() ? ints.second.v[h] : ints.first.v[h];
      d[0].v[h] = vmulq_f32(scales.d.v[h], vcvtq_f32_s32(ints.first.v[h]));
      d[1].v[h] = vmulq_f32(scales.d.v[h], vcvtq_f32_s32(second));
      if constexpr (T.bias) {
        const int32x4_t last = T.halves() ? ints.second_bias.v[h] : ints.first_bias.v[h];
        m[0].v[h] = vmulq_f32(scales.m.v[h], vcvtq_f32_s32(ints.first_bias.v[h]));
        m[1].v[h] = vmulq_f32(scales.m.v[h], vcvtq_f32_s32(last));
      }
    }
  }
  unroll<32>([&](auto k) MILLRACE_INLINE {
    for (int h = 0; h < 2; ++h) {
      int32x4_t code = vreinterpretq_s32_s8(codes.v[2 * (k / 4) + h]);
      if constexpr (k % 4 != 3) code = vshlq_n_s32(code, 24 - 8 * (k % 4));
      if constexpr (T.code == Code::kE4M3) {
        out[k].v[h] = vmulq_f32(e4m3_of_top(code), scales.d.v[h]);
        continue;
      }
      code = vshrq_n_s32(code, 24);
      if constexpr (signed_offset<T>() != 0) {
        code = vsubq_s32(code, vdupq_n_s32(signed_offset<T>()));
      }
      float32x4_t value = vmulq_f32(vcvtq_f32_s32(code), d[k / 16].v[h]);
      if constexpr (T.bias) {
        const float32x4_t bias = m[k / 16].v[h];
        value = T.negative_bias ? vsubq_f32(value, bias) : vaddq_f32(value, bias);
      }
      out[k].v[h] = value;
    }
  });
}

constexpr uint32_t kRowsAtOnce = 32;

// 32 steps of the chains of kRows rows.
template <int kRows>
inline void add_values(const Eight (&w)[32], const float* x, uint64_t stride, Eight* sums) {
  Eight acc[kRows];
  for (int r = 0; r < kRows; ++r) acc[r] = sums[r];
  for (int k = 0; k < 32; ++k) {
    for (int r = 0; r < kRows; ++r) {
      const float v = x[static_cast<uint64_t>(r) * stride + static_cast<uint64_t>(k)];
      for (int h = 0; h < 2; ++h) acc[r].v[h] = vfmaq_n_f32(acc[r].v[h], w[k].v[h], v);
    }
  }
  for (int r = 0; r < kRows; ++r) sums[r] = acc[r];
}

template <Traits T>
inline void quant_tile(const MatmulArgs& args, const Shape& shape, uint8x16_t table, uint32_t tile,
                       uint32_t row, uint32_t rows) {
  Eight sums[kRowsAtOnce];
  for (uint32_t r = 0; r < rows; ++r) sums[r] = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
  Eight values[32];
  const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * shape.tile_bytes;
  const uint64_t stride = args.rows.stride;
  const float* x = args.rows.f32 + row * stride;
  const uint32_t block_groups = T.groups != 0 ? T.groups : shape.block_groups;
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    const BlockScales scales = block_scales<T>(shape, p);
    p += block_header<T>(shape);
    for (uint32_t g = 0; g < block_groups; ++g) {
      dequantize_group<T>(p, scales, table, values);
      p += T.ints_bytes() + T.plane_bytes();
      uint32_t r = 0;
      for (; r + 4 <= rows; r += 4) add_values<4>(values, x + r * stride, stride, sums + r);
      for (; r < rows; ++r) add_values<1>(values, x + r * stride, stride, sums + r);
      x += 32;
    }
  }
  const uint32_t n = tile * format::kTileRows;
  for (uint32_t r = 0; r < rows; ++r) {
    store_rows(args.out + (row + r) * args.out_stride + n, sums[r], args.weight.layout.rows - n);
  }
}

template <Traits T>
void matmul_quant_f32(const MatmulArgs& args) {
  const Shape shape = shape_of(args.weight.layout);
  const uint8x16_t table = code_table<T>();
  for (uint32_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    for (uint32_t row = 0; row < args.rows.count; row += kRowsAtOnce) {
      const uint32_t left = args.rows.count - row;
      quant_tile<T>(args, shape, table, tile, row, left < kRowsAtOnce ? left : kRowsAtOnce);
    }
  }
}

template <WeightFormat F>
inline Eight weights8(const uint8_t* p) {
  if constexpr (F == WeightFormat::kF32) return float8(p);
  if constexpr (F == WeightFormat::kF16) return half8(p);
  return bfloat8(p);
}

// kTiles tiles by kRows rows in registers: enough independent chains to hide the latency of fma.
template <WeightFormat F, int kTiles, int kRows>
inline void float_tiles(const MatmulArgs& args, uint32_t tile, uint32_t row) {
  constexpr uint64_t kStep = F == WeightFormat::kF32 ? 32 : 16;  // bytes of an inner position
  const uint32_t cols = args.weight.layout.cols;
  const uint64_t tile_bytes = cols * kStep;
  const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * tile_bytes;
  const uint64_t stride = args.rows.stride;
  const float* x = args.rows.f32 + row * stride;
  Eight acc[kTiles][kRows];
  for (auto& of_tile : acc) {
    for (Eight& a : of_tile) a = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
  }
  for (uint32_t k = 0; k < cols; ++k, p += kStep) {
    unroll<kTiles>([&](auto t) MILLRACE_INLINE {
      const Eight w = weights8<F>(p + t * tile_bytes);
      unroll<kRows>([&](auto r) MILLRACE_INLINE {
        const float v = x[r * stride + k];
        for (int h = 0; h < 2; ++h) acc[t][r].v[h] = vfmaq_n_f32(acc[t][r].v[h], w.v[h], v);
      });
    });
  }
  for (uint32_t t = 0; t < kTiles; ++t) {
    const uint32_t n = (tile + t) * format::kTileRows;
    for (uint32_t r = 0; r < kRows; ++r) {
      store_rows(args.out + (row + r) * args.out_stride + n, acc[t][r],
                 args.weight.layout.rows - n);
    }
  }
}

template <WeightFormat F, int kTiles>
inline void float_rows(const MatmulArgs& args, uint32_t tile) {
  uint32_t row = 0;
  if constexpr (kTiles <= 2) {
    for (; row + 4 <= args.rows.count; row += 4) float_tiles<F, kTiles, 4>(args, tile, row);
  }
  for (; row + 2 <= args.rows.count; row += 2) float_tiles<F, kTiles, 2>(args, tile, row);
  if (row < args.rows.count) float_tiles<F, kTiles, 1>(args, tile, row);
}

template <WeightFormat F>
void matmul_float(const MatmulArgs& args) {
  uint32_t tile = args.tile_begin;
  if (args.rows.count < 4) {
    for (; tile + 4 <= args.tile_end; tile += 4) float_rows<F, 4>(args, tile);
  }
  for (; tile + 2 <= args.tile_end; tile += 2) float_rows<F, 2>(args, tile);
  if (tile < args.tile_end) float_rows<F, 1>(args, tile);
}

}  // namespace
}  // namespace millrace::kernels
