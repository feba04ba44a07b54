// Attention in 16 lanes: the chains of attention_impl.h, so its bits, for up to four queries that share
// keys and values. Included by ops_avx512.cpp after ops_impl.h.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/format_traits.h"

namespace millrace::kernels {
namespace {

inline __m512 wide_kv(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline __m512 wide_kv(const uint16_t* p, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
}

// Dots with kColumns * 16 positions from k on; dots [query][64].
template <int kQueries, int kColumns, class T>
inline void wide_dots(const AttentionArgs* args, const T* k, Ahead& ahead,
                      float (*dots)[kKvBlock]) {
  __m512 acc[kQueries][kColumns];
  for (auto& of_query : acc) {
    for (__m512& a : of_query) a = _mm512_setzero_ps();
  }
  for (uint32_t d = 0; d < args->key_dim; ++d, k += kKvBlock) {
    ahead.step();
    __m512 keys[kColumns];
    unroll<kColumns>([&](auto c) MILLRACE_INLINE { keys[c] = wide_kv(k + 16 * c, 0xffff); });
    unroll<kQueries>([&](auto i) MILLRACE_INLINE {
      const __m512 x = _mm512_set1_ps(args[i].q[d]);
      unroll<kColumns>([&](auto c)
                           MILLRACE_INLINE { acc[i][c] = _mm512_fmadd_ps(x, keys[c], acc[i][c]); });
    });
  }
  unroll<kQueries>([&](auto i) MILLRACE_INLINE {
    unroll<kColumns>([&](auto c)
                         MILLRACE_INLINE { _mm512_storeu_ps(dots[i] + 16 * c, acc[i][c]); });
  });
}

// out = out * correction + weighted values, for kVectors * 16 dims from `dim` on (the last vector
// only where `mask` says so).
template <int kQueries, int kVectors, class T>
inline void wide_values(const AttentionArgs* args, const float (*weights)[kKvBlock],
                        const float* corrections, const Sights<kQueries>& sees, const T* v,
                        uint32_t dim, __mmask16 mask, Ahead& ahead) {
  const uint32_t stride = args->value_dim;
  const auto mask_of = [&](int n) MILLRACE_INLINE {
    return n == kVectors - 1 ? mask : static_cast<__mmask16>(0xffff);
  };
  __m512 acc[kQueries][kVectors];
  unroll<kQueries>([&](auto i) MILLRACE_INLINE {
    const __m512 c = _mm512_set1_ps(corrections[i]);
    unroll<kVectors>([&](auto n) MILLRACE_INLINE {
      acc[i][n] = _mm512_mul_ps(wide_kv(args[i].out + dim + 16 * n, mask_of(n)), c);
    });
  });
  const auto add = [&](uint32_t p, auto checked) MILLRACE_INLINE {
    ahead.step();
    __m512 values[kVectors];
    unroll<kVectors>([&](auto n) MILLRACE_INLINE {
      values[n] = wide_kv(v + uint64_t{p} * stride + dim + 16 * n, mask_of(n));
    });
    unroll<kQueries>([&](auto i) MILLRACE_INLINE {
      if (checked && (p < sees.low[i] || p >= sees.high[i])) return;
      const __m512 w = _mm512_set1_ps(weights[i][p]);
      unroll<kVectors>(
          [&](auto n) MILLRACE_INLINE { acc[i][n] = _mm512_fmadd_ps(w, values[n], acc[i][n]); });
    });
  };
  uint32_t p = sees.any_low;
  for (; p < sees.all_low && p < sees.any_high; ++p) add(p, std::true_type{});
  for (; p < sees.all_high && p < sees.any_high; ++p) add(p, std::false_type{});
  for (; p < sees.any_high; ++p) add(p, std::true_type{});
  unroll<kQueries>([&](auto i) MILLRACE_INLINE {
    unroll<kVectors>([&](auto n) MILLRACE_INLINE {
      _mm512_mask_storeu_ps(args[i].out + dim + 16 * n, mask_of(n), acc[i][n]);
    });
  });
}

template <int kQueries, class T>
inline void attend_wide(const AttentionArgs* args) {
  const uint32_t dims = args->value_dim;
  Running running[kQueries];
  uint32_t block = UINT32_MAX, end = 0;
  for (int i = 0; i < kQueries; ++i) {
    const AttentionArgs& a = args[i];
    for (uint32_t d = 0; d < dims; ++d) a.out[d] = 0.0f;
    running[i] = {a.sink ? *a.sink : -__builtin_inff(), a.sink ? 1.0f : 0.0f};
    if (a.begin >= a.end) continue;
    block = a.begin / kKvBlock < block ? a.begin / kKvBlock : block;
    end = a.end > end ? a.end : end;
  }
  for (; block < UINT32_MAX / kKvBlock && block * kKvBlock < end; ++block) {
    const T* k = static_cast<const T*>(args->k_blocks[block]);
    const T* v = static_cast<const T*>(args->v_blocks[block]);
    const Sights<kQueries> sees(args, block * kKvBlock);
    if (sees.any_high == 0) continue;
    const bool more = (block + 1) * kKvBlock < end;
    Ahead next_k{more ? static_cast<const char*>(args->k_blocks[block + 1]) : nullptr,
                 more ? static_cast<uint32_t>(args->key_dim * sizeof(T)) : 0};
    Ahead next_v{more ? static_cast<const char*>(args->v_blocks[block + 1]) : nullptr,
                 more ? static_cast<uint32_t>(dims * sizeof(T)) : 0};
    float dots[kQueries][kKvBlock] = {};
    constexpr int kColumns = kQueries > 2 ? 2 : 4;
    for (uint32_t at = 0; at < kKvBlock; at += 16 * kColumns) {
      if (at >= sees.any_high || at + 16 * kColumns <= sees.any_low) continue;
      float part[kQueries][kKvBlock];
      wide_dots<kQueries, kColumns>(args, k + at, next_k, part);
      for (int i = 0; i < kQueries; ++i) {
        __builtin_memcpy(dots[i] + at, part[i], sizeof(float) * 16 * kColumns);
      }
    }
    float weights[kQueries][kKvBlock], corrections[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      corrections[i] = 1.0f;
      if (sees.high[i] == 0) continue;
      F8 lanes[kLanesOfBlock];
      for (uint32_t g = 0; g < kLanesOfBlock; ++g) lanes[g] = load(dots[i] + 8 * g);
      corrections[i] =
          block_weights(args[i], lanes, sees.low[i], sees.high[i], running[i], weights[i]);
    }
    constexpr int kVectors = kQueries > 2 ? 4 : 8;
    uint32_t d = 0;
    for (; d + 16 * kVectors <= dims; d += 16 * kVectors) {
      wide_values<kQueries, kVectors>(args, weights, corrections, sees, v, d, 0xffff, next_v);
    }
    for (; d < dims; d += 16) {
      const uint32_t left = dims - d;
      const auto mask = static_cast<__mmask16>(left < 16 ? (1u << left) - 1 : 0xffff);
      wide_values<kQueries, 1>(args, weights, corrections, sees, v, d, mask, next_v);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    if (args[i].begin >= args[i].end) continue;
    for (uint32_t d = 0; d < dims; ++d) args[i].out[d] /= running[i].total;
  }
}

template <class T>
inline void attend_all_wide(const AttentionArgs* args, uint32_t count) {
  for (; count >= 4; count -= 4, args += 4) attend_wide<4, T>(args);
  for (; count >= 2; count -= 2, args += 2) attend_wide<2, T>(args);
  if (count == 0) return;
  // One query alone over f32 is bound by loads, and a little faster in eight lanes (measured in
  // docs/experiments/kernels-avx512.md).
  if constexpr (sizeof(T) == 4) return attend<T>(*args);
  attend_wide<1, T>(args);
}

void attention_group_wide(const AttentionArgs* args, uint32_t count) {
  if (count == 0) return;
  if (args->kv_type == KvType::kF16) {
    attend_all_wide<uint16_t>(args, count);
  } else {
    attend_all_wide<float>(args, count);
  }
}

void attention_wide(const AttentionArgs& args) { attention_group_wide(&args, 1); }

}  // namespace
}  // namespace millrace::kernels
