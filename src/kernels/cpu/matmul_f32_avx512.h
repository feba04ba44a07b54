// Matrix products of float weights with float activations in AVX-512: a vector holds two tiles
// (formats_avx512.h), a lane owns an output, its fma chain runs over k in order. (The bf16 dot
// products of AVX-512 BF16 round in another way and cannot give the bits of the contract.)
//
// Included by matmul_f32_*_avx512.cpp only; everything is local to the including file.
#pragma once

#include "kernels/cpu/formats_avx512.h"

namespace millrace::kernels {
namespace {

template <WeightFormat F>
MILLRACE_INLINE inline __m512 wide_floats(const uint8_t* p, uint64_t other) {
  if constexpr (F == WeightFormat::kF32) return wide_scales(p, other, ScaleType::kF32);
  if constexpr (F == WeightFormat::kF16) return wide_half(p, other);
  return wide_bf16(p, other);
}

// kPairs pairs of tiles by kRows rows in registers: enough independent chains to hide the latency
// of fma.
template <WeightFormat F, int kPairs, int kRows>
inline void wide_float_tiles(const MatmulArgs& args, uint32_t tile, uint64_t other, uint32_t row) {
  constexpr int kStep = F == WeightFormat::kF32 ? 32 : 16;  // bytes of an inner position of a tile
  constexpr int kLine = 64 / kStep;                         // inner positions of a cache line
  const uint32_t cols = args.weight.layout.cols;
  const uint64_t tile_bytes = uint64_t{cols} * kStep;
  const auto* p = reinterpret_cast<const uint8_t*>(args.weight.data) + tile * tile_bytes;
  const uint64_t stride = args.rows.stride;
  const float* x = args.rows.f32 + row * stride;
  const auto pair = [&](int t) { return p + static_cast<uint64_t>(2 * t) * tile_bytes; };
  __m512 acc[kRows][kPairs];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kPairs; ++t) acc[r][t] = _mm512_setzero_ps();
  }
  const auto step = [&](uint32_t k) MILLRACE_INLINE {
    __m512 w[kPairs];
    unroll<kPairs>([&](auto t) MILLRACE_INLINE {
      w[t] = wide_floats<F>(pair(t) + uint64_t{k} * kStep, other);
    });
    unroll<kRows>([&](auto r) MILLRACE_INLINE {
      const __m512 v = _mm512_set1_ps(x[static_cast<uint64_t>(r) * stride + k]);
      unroll<kPairs>([&](auto t)
                         MILLRACE_INLINE { acc[r][t] = _mm512_fmadd_ps(w[t], v, acc[r][t]); });
    });
  };
  uint32_t k = 0;
  for (; k + kLine <= cols; k += kLine) {
    const uint64_t at = uint64_t{k} * kStep;
    const uint64_t ahead = at + tile_ahead(p + at, p + tile_bytes, 2 * kPairs, tile_bytes);
    for (int t = 0; t < kPairs; ++t) {
      const auto* from = reinterpret_cast<const char*>(pair(t)) + ahead;
      _mm_prefetch(from, _MM_HINT_T0);
      _mm_prefetch(from + other, _MM_HINT_T0);
    }
    for (int i = 0; i < kLine; ++i) step(k + static_cast<uint32_t>(i));
  }
  for (; k < cols; ++k) step(k);
  for (int t = 0; t < kPairs; ++t) {
    const uint32_t n = (tile + 2 * static_cast<uint32_t>(t)) * format::kTileRows;
    for (int r = 0; r < kRows; ++r) {
      store_pair(args.out + (row + static_cast<uint32_t>(r)) * args.out_stride + n, acc[r][t],
                 other != 0 ? 16 : 8, args.weight.layout.rows - n);
    }
  }
}

template <WeightFormat F, int kPairs>
inline void wide_float_rows(const MatmulArgs& args, uint32_t tile, uint64_t other) {
  uint32_t row = 0;
  if constexpr (kPairs <= 2) {
    for (; row + 8 <= args.rows.count; row += 8) {
      wide_float_tiles<F, kPairs, 8>(args, tile, other, row);
    }
    for (; row + 4 <= args.rows.count; row += 4) {
      wide_float_tiles<F, kPairs, 4>(args, tile, other, row);
    }
  }
  for (; row + 2 <= args.rows.count; row += 2) {
    wide_float_tiles<F, kPairs, 2>(args, tile, other, row);
  }
  if (row < args.rows.count) wide_float_tiles<F, kPairs, 1>(args, tile, other, row);
}

template <WeightFormat F>
void matmul_float_wide(const MatmulArgs& args) {
  const uint64_t tile_bytes =
      uint64_t{args.weight.layout.cols} * (F == WeightFormat::kF32 ? 32 : 16);
  uint32_t tile = args.tile_begin;
  if (args.rows.count < 4) {
    for (; tile + 8 <= args.tile_end; tile += 8) wide_float_rows<F, 4>(args, tile, tile_bytes);
  }
  for (; tile + 4 <= args.tile_end; tile += 4) wide_float_rows<F, 2>(args, tile, tile_bytes);
  for (; tile < args.tile_end; tile += 2) {
    wide_float_rows<F, 1>(args, tile, tile + 2 <= args.tile_end ? tile_bytes : 0);
  }
}

}  // namespace
}  // namespace millrace::kernels
