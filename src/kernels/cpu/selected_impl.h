// Sparse attention: the scores by which an indexer selects positions, and attention over a
// selection. Included by ops_impl.h.
#pragma once

#include "kernels/cpu/attention_impl.h"

namespace millrace::kernels {
namespace {

// Dots of q with the eight positions from 8 * g on.
template <class T>
inline F8 dot_eight(const float* q, uint32_t dim, const T* k, uint32_t g) {
  AttentionArgs args;
  args.q = q;
  args.key_dim = dim;
  Ahead none{nullptr, 0};
  F8 dots[1][kLanesOfBlock];
  group_dot_positions<1, 1>(&args, k, 8 * g, none, dots);
  return dots[0][0];
}

template <class T>
inline void index_block(const IndexArgs& args) {
  const F8 factor = set1(args.scale), zero = set1(0.0f);
  const T* keys = static_cast<const T*>(args.keys);
  F8 totals[kLanesOfBlock] = {};
  for (uint32_t h = 0; h < args.heads; ++h) {
    const float* q = args.q + uint64_t{h} * args.dim;
    float turned[kScaled<T> ? kMostTurned : 1];
    if constexpr (kScaled<T>) {
      for (uint32_t d = 0; d < args.dim; ++d) turned[d] = q[d];
      turn_back(turned, args.dim);
      q = turned;
    }
    const F8 weight = set1(args.weights[h]);
    for (uint32_t g = 0; g < kLanesOfBlock; ++g) {
      const F8 dot = dot_eight(q, args.dim, keys, g);
      totals[g] = fma(weight, max(zero, dot * factor), totals[g]);
    }
  }
  for (uint32_t g = 0; g < kLanesOfBlock; ++g) store(args.out + 8 * g, totals[g]);
}

void index_scores(const IndexArgs& args) {
  switch (args.kv_type) {
    case KvType::kF16:
      return index_block<uint16_t>(args);
    case KvType::kF32:
      return index_block<float>(args);
    case KvType::kQ8:
      return index_block<Q8>(args);
    case KvType::kQ4:
      return index_block<Q4>(args);
  }
}

// Adds the values of the positions in `seen` at dims from..to.
template <class T>
inline void add_selected(const AttentionArgs& args, uint64_t seen, const float* weights,
                         float correction, const T* v, uint32_t from, uint32_t to) {
  constexpr int kVectors = kTypeOf<T> == KvType::kQ4 ? 2 : 1;
  uint32_t d = from;
  for (; d + 8 * kVectors <= to; d += 8 * kVectors) {
    F8 acc[kVectors];
    for (int j = 0; j < kVectors; ++j) acc[j] = load(args.out + d + 8 * j) * set1(correction);
    for (uint64_t left = seen; left != 0; left &= left - 1) {
      const auto p = static_cast<uint32_t>(__builtin_ctzll(left));
      F8 values[kVectors];
      load_values(value_row(v, args.value_dim, p), d, values);
      for (int j = 0; j < kVectors; ++j) acc[j] = fma(set1(weights[p]), values[j], acc[j]);
    }
    for (int j = 0; j < kVectors; ++j) store(args.out + d + 8 * j, acc[j]);
  }
  for (; d < to; ++d) {
    float acc = args.out[d] * correction;
    for (uint64_t left = seen; left != 0; left &= left - 1) {
      const auto p = static_cast<uint32_t>(__builtin_ctzll(left));
      acc = fma1(weights[p], load_value(value_row(v, args.value_dim, p), d), acc);
    }
    args.out[d] = acc;
  }
}

// attend_group() of one query where the tile's positions outside the selection count as masked:
// every chain skips them.
template <class T>
inline void attend_selected(const AttentionArgs& args) {
  const uint32_t dims = args.value_dim;
  for (uint32_t i = 0; i < dims; ++i) args.out[i] = 0.0f;
  if (args.begin >= args.end) return;
  Running running{args.sink ? *args.sink : -__builtin_inff(), args.sink ? 1.0f : 0.0f};
  for (uint32_t block = args.begin / kKvBlock; block * kKvBlock < args.end; ++block) {
    const uint32_t first = block * kKvBlock;
    const uint32_t low = args.begin > first ? args.begin - first : 0;
    const uint32_t high = args.end - first < kKvBlock ? args.end - first : kKvBlock;
    uint64_t seen = args.selected[block] & (~uint64_t{0} << low);
    if (high < kKvBlock) seen &= (uint64_t{1} << high) - 1;
    if (seen == 0) continue;
    const T* k = static_cast<const T*>(args.k_blocks[block]);
    const T* v = static_cast<const T*>(args.v_blocks[block]);

    float lanes[kKvBlock];
    for (uint32_t g = 0; g < kLanesOfBlock; ++g) {
      const bool any = (seen >> (8 * g) & 0xff) != 0;
      store(lanes + 8 * g, any ? dot_eight(args.q, args.key_dim, k, g) : set1(0.0f));
    }
    for (uint32_t p = 0; p < kKvBlock; ++p) {
      // A scale is positive, so that what is not seen gets weight 0; softcap bounds what is.
      if ((seen >> p & 1) == 0) lanes[p] = -__builtin_inff();
    }
    F8 dots[kLanesOfBlock];
    for (uint32_t g = 0; g < kLanesOfBlock; ++g) dots[g] = load(lanes + 8 * g);
    float weights[kKvBlock];
    const float correction = block_weights(args, dots, 0, kKvBlock, running, weights);
    if constexpr (!kScaled<T>) {
      add_selected(args, seen, weights, correction, v, 0, dims);
    } else {
      const uint16_t* scales = value_scales(v, dims);
      for (uint32_t d = 0; d < dims; d += kKvGroup, scales += kKvBlock) {
        float scaled[kKvBlock];
        scale_weights(weights, scales, scaled);
        const uint32_t to = dims - d < kKvGroup ? dims : d + kKvGroup;
        add_selected(args, seen, scaled, correction, v, d, to);
      }
    }
  }
  for (uint32_t i = 0; i < dims; ++i) args.out[i] /= running.total;
}

void attention_selected(const AttentionArgs& args) {
  attend_by_type(&args, 1,
                 []<class T>(const AttentionArgs* a, uint32_t) { attend_selected<T>(*a); });
}

}  // namespace
}  // namespace millrace::kernels
