// Attention in 16 lanes: the chains of attention_impl.h, so its bits, for up to four queries that share
// keys and values. Included by ops_avx512.cpp after ops_impl.h.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/attention_impl.h"
#include "kernels/cpu/format_traits.h"

namespace millrace::kernels {
namespace {

// As in kv_codes.h: 16 elements of a row of keys, and the channels in them.
inline __m512 wide_elements(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 wide_elements(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <class T>
inline __m512i wide_elements(const T* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <uint32_t kChannel, class T>
inline __m512 wide_channel(const T*, __m512 elements) {
  return elements;
}
template <uint32_t kChannel>
inline __m512 wide_channel(const Q8*, __m512i elements) {
  return _mm512_cvtepi32_ps(elements);
}
template <uint32_t kChannel>
inline __m512 wide_channel(const Q4*, __m512i elements) {
  if constexpr (kChannel == 0) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(elements, 28), 28));
  } else {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(elements, 4));
  }
}

// 16 channels of a row of values from `dim` on, those of `mask` (q4 has all 16 in memory).
inline __m512 wide_value(const float* row, uint32_t dim, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, row + dim);
}
inline __m512 wide_value(const uint16_t* row, uint32_t dim, __mmask16 mask) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + dim));
}
inline __m512 wide_value(const Q8* row, uint32_t dim, __mmask16 mask) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, row + dim)));
}
inline __m512 wide_value(const Q4* row, uint32_t dim, __mmask16) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + dim / 2));
  // The codes of the second eight channels become low halves too.
  const __m512i codes = _mm512_cvtepi8_epi32(_mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 4)));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(codes, 28), 28));
}

template <int kQueries, int kColumns>
inline void clear(__m512 (&sums)[kQueries][kColumns]) {
  unroll<kQueries>([&](auto i) MILLRACE_INLINE {
    unroll<kColumns>([&](auto c) MILLRACE_INLINE { sums[i][c] = _mm512_setzero_ps(); });
  });
}

// dot_chains() in 16 lanes.
template <int kQueries, int kColumns, class T>
inline const T* wide_chains(const AttentionArgs* args, uint32_t first, uint32_t last, const T* row,
                            Ahead& ahead, __m512 (&sums)[kQueries][kColumns]) {
  using Elements = decltype(wide_elements(row));
  for (uint32_t d = first; d < last; d += kChannels<T>, row += kKvBlock) {
    ahead.step();
    Elements elements[kColumns];
    unroll<kColumns>([&](auto c) MILLRACE_INLINE { elements[c] = wide_elements(row + 16 * c); });
    const auto add = [&](auto of) MILLRACE_INLINE {
      __m512 keys[kColumns];
      unroll<kColumns>([&](auto c)
                           MILLRACE_INLINE { keys[c] = wide_channel<of>(row, elements[c]); });
      unroll<kQueries>([&](auto i) MILLRACE_INLINE {
        const __m512 x = _mm512_set1_ps(args[i].q[d + of]);
        unroll<kColumns>(
            [&](auto c) MILLRACE_INLINE { sums[i][c] = _mm512_fmadd_ps(x, keys[c], sums[i][c]); });
      });
    };
    add(Channel<0>{});
    if constexpr (kChannels<T> == 2) {
      if (d + 1 < last) add(Channel<1>{});
    }
  }
  return row;
}

// Dots with kColumns * 16 positions from `position` on; dots [query][64].
template <int kQueries, int kColumns, class T>
inline void wide_dots(const AttentionArgs* args, const T* k, uint32_t position, Ahead& ahead,
                      float (*dots)[kKvBlock]) {
  const uint32_t dim = args->key_dim;
  const T* row = k + position;
  __m512 sums[kQueries][kColumns];
  clear(sums);
  if constexpr (!kScaled<T>) {
    wide_chains<kQueries, kColumns>(args, 0, dim, row, ahead, sums);
  } else {
    const uint16_t* scales = key_scales(k, dim) + position;
    for (uint32_t d = 0; d < dim; d += kKvGroup, scales += kKvBlock) {
      __m512 group[kQueries][kColumns];
      clear(group);
      const uint32_t last = dim - d < kKvGroup ? dim : d + kKvGroup;
      row = wide_chains<kQueries, kColumns>(args, d, last, row, ahead, group);
      unroll<kColumns>([&](auto c) MILLRACE_INLINE {
        const __m512 scale = wide_elements(scales + 16 * c);
        unroll<kQueries>([&](auto i) MILLRACE_INLINE {
          sums[i][c] = _mm512_fmadd_ps(scale, group[i][c], sums[i][c]);
        });
      });
    }
  }
  unroll<kQueries>([&](auto i) MILLRACE_INLINE {
    unroll<kColumns>([&](auto c)
                         MILLRACE_INLINE { _mm512_storeu_ps(dots[i] + 16 * c, sums[i][c]); });
  });
}

// out = out * correction + weighted values, for kVectors * 16 dims from `dim` on (the last vector
// only where `mask` says so).
template <int kQueries, int kVectors, class T>
inline void wide_values(const AttentionArgs* args, const float (*weights)[kKvBlock],
                        const float* corrections, const Sights<kQueries>& sees, const T* v,
                        uint32_t dim, __mmask16 mask, Ahead& ahead) {
  const auto mask_of = [&](int n) MILLRACE_INLINE {
    return n == kVectors - 1 ? mask : static_cast<__mmask16>(0xffff);
  };
  __m512 acc[kQueries][kVectors];
  unroll<kQueries>([&](auto i) MILLRACE_INLINE {
    const __m512 c = _mm512_set1_ps(corrections[i]);
    unroll<kVectors>([&](auto n) MILLRACE_INLINE {
      const __m512 before = _mm512_maskz_loadu_ps(mask_of(n), args[i].out + dim + 16 * n);
      acc[i][n] = _mm512_mul_ps(before, c);
    });
  });
  const auto add = [&](uint32_t p, auto checked) MILLRACE_INLINE {
    ahead.step();
    const T* row = value_row(v, args->value_dim, p);
    __m512 values[kVectors];
    unroll<kVectors>(
        [&](auto n) MILLRACE_INLINE { values[n] = wide_value(row, dim + 16 * n, mask_of(n)); });
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

// The same for the dims from..to.
template <int kQueries, int kVectors, class T>
inline void wide_dims(const AttentionArgs* args, const float (*weights)[kKvBlock],
                      const float* corrections, const Sights<kQueries>& sees, const T* v,
                      uint32_t from, uint32_t to, Ahead& ahead) {
  uint32_t d = from;
  for (; d + 16 * kVectors <= to; d += 16 * kVectors)
    wide_values<kQueries, kVectors>(args, weights, corrections, sees, v, d, 0xffff, ahead);
  for (; d < to; d += 16) {
    const uint32_t left = to - d;
    const auto mask = static_cast<__mmask16>(left < 16 ? (1u << left) - 1 : 0xffff);
    wide_values<kQueries, 1>(args, weights, corrections, sees, v, d, mask, ahead);
  }
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
                 more ? lines_of(kv_key_bytes(kTypeOf<T>, args->key_dim)) : 0};
    Ahead next_v{more ? static_cast<const char*>(args->v_blocks[block + 1]) : nullptr,
                 more ? lines_of(kv_value_bytes(kTypeOf<T>, dims)) : 0};
    float dots[kQueries][kKvBlock] = {};
    constexpr int kColumns = kQueries > 2 ? 2 : 4;
    for (uint32_t at = 0; at < kKvBlock; at += 16 * kColumns) {
      if (at >= sees.any_high || at + 16 * kColumns <= sees.any_low) continue;
      float part[kQueries][kKvBlock];
      wide_dots<kQueries, kColumns>(args, k, at, next_k, part);
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
    if constexpr (!kScaled<T>) {
      wide_dims<kQueries, (kQueries > 2 ? 4 : 8)>(args, weights, corrections, sees, v, 0, dims,
                                                  next_v);
    } else {
      const uint16_t* scales = value_scales(v, dims);
      for (uint32_t d = 0; d < dims; d += kKvGroup, scales += kKvBlock) {
        float scaled[kQueries][kKvBlock];
        for (int i = 0; i < kQueries; ++i)
          if (sees.high[i] != 0) scale_weights(weights[i], scales, scaled[i]);
        const uint32_t to = dims - d < kKvGroup ? dims : d + kKvGroup;
        wide_dims<kQueries, 2>(args, scaled, corrections, sees, v, d, to, next_v);
      }
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
  if constexpr (sizeof(T) == 4) return attend_group<1, T>(args);
  attend_wide<1, T>(args);
}

void attention_group_wide(const AttentionArgs* args, uint32_t count) {
  attend_by_type(args, count,
                 []<class T>(const AttentionArgs* a, uint32_t n) { attend_all_wide<T>(a, n); });
}

void attention_wide(const AttentionArgs& args) { attention_group_wide(&args, 1); }

}  // namespace
}  // namespace millrace::kernels
