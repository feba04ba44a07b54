// Sparse attention: the scores by which an indexer selects positions, and attention over a
// selection. Included by ops_impl.h.
#pragma once

#include "kernels/cpu/attention_impl.h"

namespace millrace::kernels {
namespace {

template <class T>
inline void index_block(const IndexArgs& args) {
  const F8 factor = set1(args.scale), zero = set1(0.0f);
  const T* keys = static_cast<const T*>(args.keys);
  for (uint32_t g = 0; g < kLanesOfBlock; ++g) {
    F8 total = zero;
    for (uint32_t h = 0; h < args.heads; ++h) {
      const float* q = args.q + h * args.dim;
      F8 dot = zero;
      for (uint32_t d = 0; d < args.dim; ++d)
        dot = fma(set1(q[d]), load_kv(keys + uint64_t{d} * kKvBlock + 8 * g), dot);
      total = fma(set1(args.weights[h]), max(zero, dot * factor), total);
    }
    store(args.out + 8 * g, total);
  }
}

void index_scores(const IndexArgs& args) {
  if (args.kv_type == KvType::kF16) {
    index_block<uint16_t>(args);
  } else {
    index_block<float>(args);
  }
}

// attend() where the tile's positions outside the selection count as masked: every chain skips
// them.
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
      F8 dot = set1(0.0f);
      if ((seen >> (8 * g) & 0xff) != 0) {
        for (uint32_t d = 0; d < args.key_dim; ++d)
          dot = fma(set1(args.q[d]), load_kv(k + uint64_t{d} * kKvBlock + 8 * g), dot);
      }
      store(lanes + 8 * g, dot);
    }
    for (uint32_t p = 0; p < kKvBlock; ++p) {
      // A scale is positive, so that what is not seen gets weight 0; softcap bounds what is.
      if ((seen >> p & 1) == 0) lanes[p] = -__builtin_inff();
    }
    F8 dots[kLanesOfBlock];
    for (uint32_t g = 0; g < kLanesOfBlock; ++g) dots[g] = load(lanes + 8 * g);
    float weights[kKvBlock];
    const float correction = block_weights(args, dots, 0, kKvBlock, running, weights);
    uint32_t d = 0;
    for (; d + 8 <= dims; d += 8) {
      F8 acc = load(args.out + d) * set1(correction);
      for (uint64_t left = seen; left != 0; left &= left - 1) {
        const auto p = static_cast<uint32_t>(__builtin_ctzll(left));
        acc = fma(set1(weights[p]), load_kv(v + uint64_t{p} * dims + d), acc);
      }
      store(args.out + d, acc);
    }
    for (; d < dims; ++d) {
      float acc = args.out[d] * correction;
      for (uint64_t left = seen; left != 0; left &= left - 1) {
        const auto p = static_cast<uint32_t>(__builtin_ctzll(left));
        acc = fma1(weights[p], load_kv1(v + uint64_t{p} * dims + d), acc);
      }
      args.out[d] = acc;
    }
  }
  for (uint32_t i = 0; i < dims; ++i) args.out[i] /= running.total;
}

void attention_selected(const AttentionArgs& args) {
  if (args.kv_type == KvType::kF16) {
    attend_selected<uint16_t>(args);
  } else {
    attend_selected<float>(args);
  }
}

}  // namespace
}  // namespace millrace::kernels
