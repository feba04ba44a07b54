// Matrix products with float activations in AVX2: dequantized weights (matmul_quant_f32), and float
// weights (matmul_float). A lane owns an output; its fma chain runs over k in order.
//
// Included by matmul_f32_*_avx2.cpp only; everything is local to the including file.
#pragma once

#include "kernels/cpu/formats_avx2.h"

namespace millrace::kernels {
namespace {

// The 32 values of a group, as dequantize_row makes them: one rounding an operation, no fma.
template <Traits T>
inline void dequantize_group(const uint8_t* p, const BlockScales& scales, __m256i table,
                             float (&out)[32 * 8]) {
  __m256i w[8];
  unpack<T>(p + T.ints_bytes(), table, w);
  __m256 d[2] = {scales.d, scales.d};
  __m256 m[2] = {scales.m, scales.m};
  if constexpr (T.ints == Ints::kE4M3Halves) {
    for (int half = 0; half < 2; ++half) {
      const __m256i s = _mm256_cvtepu8_epi32(load64(p + 8 * half));
      d[half] = _mm256_mul_ps(scales.d, e4m3_of_top(_mm256_slli_epi32(s, 24)));
    }
  } else if constexpr (T.ints != Ints::kNone) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* at = p + (T.halves() ? 8 * half : 0);
      __m256i s = T.ints == Ints::kHalves ? _mm256_cvtepi8_epi32(load64(at))
                                          : _mm256_cvtepu8_epi32(load64(at));
      __m256i least = _mm256_setzero_si256();
      if constexpr (T.ints == Ints::kScaleMin) least = _mm256_cvtepu8_epi32(load64(p + 8));
      if constexpr (T.ints == Ints::kNibbles) {
        least = _mm256_srli_epi32(s, 4);
        s = _mm256_and_si256(s, _mm256_set1_epi32(15));
      }
      if constexpr (T.ints == Ints::kScaleMinus32 || T.ints == Ints::kHalvesMinus32) {
        s = _mm256_sub_epi32(s, _mm256_set1_epi32(32));
      }
      d[half] = _mm256_mul_ps(scales.d, _mm256_cvtepi32_ps(s));
      if constexpr (T.bias) m[half] = _mm256_mul_ps(scales.m, _mm256_cvtepi32_ps(least));
    }
  }
  for (int k = 0; k < 32; ++k) {
    const __m256i high = _mm256_slli_epi32(w[k / 4], 24 - 8 * (k % 4));  // the code in the top byte
    if constexpr (T.code == Code::kE4M3) {
      _mm256_storeu_ps(out + 8 * k, _mm256_mul_ps(e4m3_of_top(high), scales.d));
      continue;
    }
    __m256i code = T.is_signed() ? _mm256_srai_epi32(high, 24) : _mm256_srli_epi32(high, 24);
    if constexpr (T.offset != 0) code = _mm256_sub_epi32(code, _mm256_set1_epi32(T.offset));
    __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(code), d[k / 16]);
    if constexpr (T.bias) {
      value = T.negative_bias ? _mm256_sub_ps(value, m[k / 16]) : _mm256_add_ps(value, m[k / 16]);
    }
    _mm256_storeu_ps(out + 8 * k, value);
  }
}

// 32 steps of the chains of kRows rows.
template <int kRows>
inline void add_values(const float* w, const float* x, uint64_t stride, float* sums) {
  __m256 acc[kRows];
  for (int r = 0; r < kRows; ++r) acc[r] = _mm256_loadu_ps(sums + 8 * r);
  for (int k = 0; k < 32; ++k) {
    const __m256 v = _mm256_loadu_ps(w + 8 * k);
    for (int r = 0; r < kRows; ++r) {
      acc[r] = _mm256_fmadd_ps(v, _mm256_broadcast_ss(x + static_cast<uint64_t>(r) * stride + k),
                               acc[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) _mm256_storeu_ps(sums + 8 * r, acc[r]);
}

constexpr uint32_t kRowsAtOnce = 32;

template <Traits T>
inline void quant_tile(const MatmulArgs& args, const Shape& shape, __m256i table, uint32_t tile,
                       uint32_t row, uint32_t rows) {
  alignas(32) float sums[kRowsAtOnce * 8] = {};
  alignas(32) float values[32 * 8];
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
      for (; r + 4 <= rows; r += 4) add_values<4>(values, x + r * stride, stride, sums + 8 * r);
      for (; r < rows; ++r) add_values<1>(values, x + r * stride, stride, sums + 8 * r);
      x += 32;
    }
  }
  const uint32_t n = tile * format::kTileRows;
  for (uint32_t r = 0; r < rows; ++r) {
    store_rows(args.out + (row + r) * args.out_stride + n, _mm256_load_ps(sums + 8 * r),
               args.weight.layout.rows - n);
  }
}

template <Traits T>
void matmul_quant_f32(const MatmulArgs& args) {
  const Shape shape = shape_of(args.weight.layout);
  const __m256i table = code_table<T>();
  for (uint32_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    for (uint32_t row = 0; row < args.rows.count; row += kRowsAtOnce) {
      const uint32_t left = args.rows.count - row;
      quant_tile<T>(args, shape, table, tile, row, left < kRowsAtOnce ? left : kRowsAtOnce);
    }
  }
}

template <WeightFormat F>
inline __m256 float8(const uint8_t* p) {
  if constexpr (F == WeightFormat::kF32) return scales8(p, ScaleType::kF32);
  if constexpr (F == WeightFormat::kF16) return scales8(p, ScaleType::kF16);
  return scales8(p, ScaleType::kBF16);
}

// kTiles tiles by kRows rows in registers: enough independent chains to hide the latency of fma.
template <WeightFormat F, int kTiles, int kRows>
inline void float_tiles(const MatmulArgs& args, uint32_t tile, uint32_t row) {
  constexpr int kStep = F == WeightFormat::kF32 ? 32 : 16;  // bytes of an inner position of a tile
  constexpr int kLine = 64 / kStep;                         // inner positions of a cache line
  const uint32_t cols = args.weight.layout.cols;
  const uint64_t tile_bytes = uint64_t{cols} * kStep;
  const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * tile_bytes;
  const uint64_t stride = args.rows.stride;
  const float* x = args.rows.f32 + row * stride;
  __m256 acc[kTiles][kRows];
  for (int t = 0; t < kTiles; ++t) {
    for (int r = 0; r < kRows; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  const auto step = [&](uint32_t k) {
    __m256 w[kTiles];
    for (int t = 0; t < kTiles; ++t) {
      w[t] = float8<F>(p + static_cast<uint64_t>(t) * tile_bytes + uint64_t{k} * kStep);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m256 v = _mm256_broadcast_ss(x + static_cast<uint64_t>(r) * stride + k);
      for (int t = 0; t < kTiles; ++t) acc[t][r] = _mm256_fmadd_ps(w[t], v, acc[t][r]);
    }
  };
  uint32_t k = 0;
  for (; k + kLine <= cols; k += kLine) {
    const uint8_t* line = p + uint64_t{k} * kStep;
    const uint64_t ahead = tile_ahead(line, p + tile_bytes, kTiles, tile_bytes);
    for (int t = 0; t < kTiles; ++t) {
      const auto* from =
          reinterpret_cast<const char*>(line + static_cast<uint64_t>(t) * tile_bytes);
      _mm_prefetch(from + ahead, _MM_HINT_T0);
    }
    for (int i = 0; i < kLine; ++i) step(k + static_cast<uint32_t>(i));
  }
  for (; k < cols; ++k) step(k);
  for (int t = 0; t < kTiles; ++t) {
    const uint32_t n = (tile + static_cast<uint32_t>(t)) * format::kTileRows;
    for (int r = 0; r < kRows; ++r) {
      store_rows(args.out + (row + static_cast<uint32_t>(r)) * args.out_stride + n, acc[t][r],
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
