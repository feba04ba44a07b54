// Attention of one query over cached blocks, compiled once per instruction set (see ops_impl.h).
//
// Blocks are cut at absolute multiples of 64 positions and merged in order with the online softmax,
// so that a result depends on the query and the positions begin..end alone:
//   s_p = softcap(scale * dot(q, k_p)), the dot one fma chain over d ascending
//   m' = max(m, max s); c = exp(m - m'); w_p = exp(s_p - m'); l = fma(l, c, sum w)
//   acc = acc * c; acc = fma(w_p, v_p, acc) for p ascending;      out = acc / l at the end
// sum w runs in 16 partial sums as every reduction here. A sink starts m at the sink and l at 1.
// With scales (q8, q4) a dot is such a chain over the codes of each group of channels, and a chain of
// scale * group over the groups; values are added as fma(w_p * scale, code, acc). The query is turned
// as keys are then, and the result turned back (kv_store.h).
#pragma once

#include "kernels/cpu/kv_codes.h"
#include "kernels/cpu/kv_store.h"
#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

constexpr uint32_t kLanesOfBlock = kKvBlock / 8;

// Softmax weights of positions low..high of a block from its dots; 0 elsewhere. Updates m and l.
struct Running {
  float most;
  float total;
};
inline float block_weights(const AttentionArgs& args, const F8 (&dots)[kLanesOfBlock], uint32_t low,
                           uint32_t high, Running& running, float* weights) {
  const F8 factor = set1(args.scale), cap = set1(args.softcap);
  const F8 nothing = set1(-__builtin_inff());
  F8 s[kLanesOfBlock];
  F8 most = nothing;
  for (uint32_t g = 0; g < kLanesOfBlock; ++g) {
    s[g] = nothing;
    if (8 * g >= high || 8 * g + 8 <= low) continue;
    F8 t = dots[g] * factor;
    if (args.softcap > 0.0f) t = cap * tanh(t / cap);
    const I8 position = lane_numbers() + iset1(static_cast<int32_t>(8 * g));
    t = if_less(position, iset1(static_cast<int32_t>(low)), nothing, t);
    s[g] = if_less(position, iset1(static_cast<int32_t>(high)), t, nothing);
    most = max(most, s[g]);
  }
  const float block_most = max_lane(most);
  const float now = block_most > running.most ? block_most : running.most;
  float corrections[8];
  store(corrections, exp(set1(running.most - now)));
  F8 even = set1(0.0f), odd = even;
  for (uint32_t g = 0; g < kLanesOfBlock; ++g) {
    const bool outside = 8 * g >= high || 8 * g + 8 <= low;
    const F8 w = outside ? set1(0.0f) : exp(s[g] - set1(now));
    store(weights + 8 * g, w);
    if (g % 2 == 0) {
      even = even + w;
    } else {
      odd = odd + w;
    }
  }
  running.total = fma1(running.total, corrections[0], sum(even + odd));
  running.most = now;
  return corrections[0];
}

// Several queries of one kv head (the heads of a group, the rows of a pass): each key and value is
// read and widened once for all of them. Every query's chains are its own.

// Vectors of positions or dims that go with kQueries queries in one sweep: eight sums in registers,
// and with two queries whole cache lines of f16.
template <int kQueries>
constexpr int kSweep = 8 / kQueries;

// Asks for what the next sweep of this kind will read: blocks lie far apart, so that the hardware
// does not see it coming. One line (64 bytes) a step.
struct Ahead {
  const char* at;
  uint32_t lines;
  void step() {
    if (lines == 0) return;
    __builtin_prefetch(at, 0, 2);
    at += 64;
    --lines;
  }
};

inline uint32_t lines_of(uint64_t bytes) { return static_cast<uint32_t>(bytes / 64); }

template <uint32_t kIndex>
struct Channel {
  constexpr operator uint32_t() const { return kIndex; }
};

template <int kQueries, int kVectors>
inline void clear(F8 (&sums)[kQueries][kVectors]) {
  for (int i = 0; i < kQueries; ++i)
    for (int j = 0; j < kVectors; ++j) sums[i][j] = set1(0.0f);
}

// Continues the chains of kQueries queries with kVectors * 8 positions, over channels first..last;
// `row` are those positions at channel `first`.
template <int kQueries, int kVectors, class T>
inline const T* dot_chains(const AttentionArgs* args, uint32_t first, uint32_t last, const T* row,
                           Ahead& ahead, F8 (&sums)[kQueries][kVectors]) {
  using Elements = decltype(load_elements(row));
  for (uint32_t d = first; d < last; d += kChannels<T>, row += kKvBlock) {
    ahead.step();
    Elements elements[kVectors];
    for (int j = 0; j < kVectors; ++j) elements[j] = load_elements(row + 8 * j);
    const auto add = [&](auto of) {
      F8 keys[kVectors];
      for (int j = 0; j < kVectors; ++j) keys[j] = channel<of>(row, elements[j]);
      for (int i = 0; i < kQueries; ++i) {
        const F8 x = set1(args[i].q[d + of]);
        for (int j = 0; j < kVectors; ++j) sums[i][j] = fma(x, keys[j], sums[i][j]);
      }
    };
    add(Channel<0>{});
    if constexpr (kChannels<T> == 2) {
      if (d + 1 < last) add(Channel<1>{});
    }
  }
  return row;
}

// Dots of kQueries queries with kVectors * 8 positions from `position` on; dots [query][vector].
template <int kQueries, int kVectors, class T>
inline void group_dot_positions(const AttentionArgs* args, const T* k, uint32_t position,
                                Ahead& ahead, F8 (*dots)[kLanesOfBlock]) {
  const uint32_t dim = args->key_dim;
  const T* row = k + position;
  if constexpr (!kScaled<T>) {
    F8 sums[kQueries][kVectors];
    clear(sums);
    dot_chains<kQueries, kVectors>(args, 0, dim, row, ahead, sums);
    for (int i = 0; i < kQueries; ++i)
      for (int j = 0; j < kVectors; ++j) dots[i][j] = sums[i][j];
  } else {
    const uint16_t* scales = key_scales(k, dim) + position;
    for (int i = 0; i < kQueries; ++i)
      for (int j = 0; j < kVectors; ++j) dots[i][j] = set1(0.0f);
    for (uint32_t d = 0; d < dim; d += kKvGroup, scales += kKvBlock) {
      F8 sums[kQueries][kVectors];
      clear(sums);
      const uint32_t last = dim - d < kKvGroup ? dim : d + kKvGroup;
      row = dot_chains<kQueries, kVectors>(args, d, last, row, ahead, sums);
      for (int j = 0; j < kVectors; ++j) {
        const F8 scale = load_f16(scales + 8 * j);
        for (int i = 0; i < kQueries; ++i) dots[i][j] = fma(scale, sums[i][j], dots[i][j]);
      }
    }
  }
}

// out = out * correction + sum over positions low..high of weight * value, for kVectors * 8 dims from
// `dim` on, of every query.
template <int kQueries, int kVectors, class T>
inline void group_add_values(const AttentionArgs* args, const float (*weights)[kKvBlock],
                             const float* corrections, uint32_t low, uint32_t high, const T* v,
                             uint32_t dim, Ahead& ahead) {
  F8 sums[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i)
    for (int j = 0; j < kVectors; ++j)
      sums[i][j] = load(args[i].out + dim + 8 * j) * set1(corrections[i]);
  for (uint32_t p = low; p < high; ++p) {
    ahead.step();
    F8 values[kVectors];
    load_values(value_row(v, args->value_dim, p), dim, values);
    for (int i = 0; i < kQueries; ++i) {
      const F8 w = set1(weights[i][p]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] = fma(w, values[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kQueries; ++i)
    for (int j = 0; j < kVectors; ++j) store(args[i].out + dim + 8 * j, sums[i][j]);
}

// What each query sees of a block, what all see (empty: all_low == all_high == 64), and what any
// sees.
template <int kQueries>
struct Sights {
  uint32_t low[kQueries], high[kQueries];
  uint32_t all_low = 0, all_high = kKvBlock, any_low = kKvBlock, any_high = 0;

  Sights(const AttentionArgs* args, uint32_t start) {
    for (int i = 0; i < kQueries; ++i) {
      const AttentionArgs& a = args[i];
      low[i] = a.begin > start ? a.begin - start : 0;
      high[i] = a.end <= start ? 0 : a.end - start < kKvBlock ? a.end - start : kKvBlock;
      if (low[i] >= high[i]) low[i] = high[i] = 0;
      all_low = low[i] > all_low ? low[i] : all_low;
      all_high = high[i] < all_high ? high[i] : all_high;
      any_low = high[i] != 0 && low[i] < any_low ? low[i] : any_low;
      any_high = high[i] > any_high ? high[i] : any_high;
    }
    if (all_low >= all_high) all_low = all_high = kKvBlock;  // nothing in common: each alone
  }
};

// Adds the values of one block at dims d .. d + 8 * kVectors to every query.
template <int kQueries, int kVectors, class T>
inline void group_add_block(const AttentionArgs* args, const Sights<kQueries>& sees,
                            const float (*weights)[kKvBlock], const float* corrections, const T* v,
                            uint32_t d, Ahead& ahead) {
  Ahead none{nullptr, 0};
  for (int i = 0; i < kQueries; ++i) {
    const uint32_t stop = sees.high[i] < sees.all_low ? sees.high[i] : sees.all_low;
    if (sees.low[i] >= stop) continue;
    group_add_values<1, kVectors>(args + i, weights + i, corrections + i, sees.low[i], stop, v, d,
                                  none);
  }
  if (sees.all_low == sees.all_high) return;
  float rest[kQueries];  // the correction is applied once
  for (int i = 0; i < kQueries; ++i) rest[i] = sees.low[i] < sees.all_low ? 1.0f : corrections[i];
  group_add_values<kQueries, kVectors>(args, weights, rest, sees.all_low, sees.all_high, v, d,
                                       ahead);
  const float one = 1.0f;
  for (int i = 0; i < kQueries; ++i) {
    if (sees.all_high >= sees.high[i]) continue;
    group_add_values<1, kVectors>(args + i, weights + i, &one, sees.all_high, sees.high[i], v, d,
                                  none);
  }
}

// The same at dims from..to, in sweeps and what is left in single channels.
template <int kQueries, class T>
inline void group_add_dims(const AttentionArgs* args, const Sights<kQueries>& sees,
                           const float (*weights)[kKvBlock], const float* corrections, const T* v,
                           uint32_t from, uint32_t to, Ahead& ahead) {
  // A sweep stays in a group of channels.
  constexpr int kVectors = kScaled<T> && kQueries == 1 ? 4 : kSweep<kQueries>;
  constexpr uint32_t kDims = 8 * kVectors;
  constexpr int kLeast = kTypeOf<T> == KvType::kQ4 ? 2 : 1;  // vectors
  uint32_t d = from;
  for (; d + kDims <= to; d += kDims)
    group_add_block<kQueries, kVectors>(args, sees, weights, corrections, v, d, ahead);
  for (; d + 8 * kLeast <= to; d += 8 * kLeast)
    group_add_block<kQueries, kLeast>(args, sees, weights, corrections, v, d, ahead);
  for (int i = 0; i < kQueries; ++i) {
    if (sees.high[i] == 0) continue;
    for (uint32_t e = d; e < to; ++e) {
      float acc = args[i].out[e] * corrections[i];
      for (uint32_t p = sees.low[i]; p < sees.high[i]; ++p)
        acc = fma1(weights[i][p], load_value(value_row(v, args->value_dim, p), e), acc);
      args[i].out[e] = acc;
    }
  }
}

// Weights times the scales of a group of channels.
inline void scale_weights(const float* weights, const uint16_t* scales, float* scaled) {
  for (uint32_t p = 0; p < kKvBlock; p += 8)
    store(scaled + p, load(weights + p) * load_f16(scales + p));
}

template <int kQueries, class T>
inline void attend_group(const AttentionArgs* args) {
  const uint32_t dims = args->value_dim;
  Running running[kQueries];
  uint32_t first_block = UINT32_MAX, end = 0;
  for (int i = 0; i < kQueries; ++i) {
    const AttentionArgs& a = args[i];
    for (uint32_t d = 0; d < dims; ++d) a.out[d] = 0.0f;
    running[i] = {a.sink ? *a.sink : -__builtin_inff(), a.sink ? 1.0f : 0.0f};
    if (a.begin >= a.end) continue;
    first_block = a.begin / kKvBlock < first_block ? a.begin / kKvBlock : first_block;
    end = a.end > end ? a.end : end;
  }
  for (uint32_t block = first_block; block < UINT32_MAX / kKvBlock && block * kKvBlock < end;
       ++block) {
    const uint32_t start = block * kKvBlock;
    const T* k = static_cast<const T*>(args->k_blocks[block]);
    const T* v = static_cast<const T*>(args->v_blocks[block]);
    const Sights<kQueries> sees(args, start);
    const bool more = start + kKvBlock < end;
    Ahead next_k{more ? static_cast<const char*>(args->k_blocks[block + 1]) : nullptr,
                 more ? lines_of(kv_key_bytes(kTypeOf<T>, args->key_dim)) : 0};
    Ahead next_v{more ? static_cast<const char*>(args->v_blocks[block + 1]) : nullptr,
                 more ? lines_of(kv_value_bytes(kTypeOf<T>, dims)) : 0};
    constexpr uint32_t kPositions = 8 * kSweep<kQueries>;
    F8 dots[kQueries][kLanesOfBlock] = {};
    for (uint32_t g = sees.any_low / kPositions; kPositions * g < sees.any_high; ++g) {
      F8 part[kQueries][kLanesOfBlock];
      group_dot_positions<kQueries, kSweep<kQueries>>(args, k, kPositions * g, next_k, part);
      for (int i = 0; i < kQueries; ++i)
        for (int j = 0; j < kSweep<kQueries>; ++j)
          dots[i][kSweep<kQueries> * static_cast<int>(g) + j] = part[i][j];
    }
    float weights[kQueries][kKvBlock];
    float corrections[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      corrections[i] = 1.0f;
      if (sees.high[i] == 0) continue;
      corrections[i] =
          block_weights(args[i], dots[i], sees.low[i], sees.high[i], running[i], weights[i]);
    }
    if constexpr (!kScaled<T>) {
      group_add_dims<kQueries>(args, sees, weights, corrections, v, 0, dims, next_v);
    } else {
      const uint16_t* scales = value_scales(v, dims);
      for (uint32_t d = 0; d < dims; d += kKvGroup, scales += kKvBlock) {
        float scaled[kQueries][kKvBlock];
        for (int i = 0; i < kQueries; ++i)
          if (sees.high[i] != 0) scale_weights(weights[i], scales, scaled[i]);
        const uint32_t to = dims - d < kKvGroup ? dims : d + kKvGroup;
        group_add_dims<kQueries>(args, sees, scaled, corrections, v, d, to, next_v);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    if (args[i].begin >= args[i].end) continue;
    for (uint32_t d = 0; d < dims; ++d) args[i].out[d] /= running[i].total;
  }
}

template <class T>
inline void attend_all(const AttentionArgs* args, uint32_t count) {
  for (; count >= 4; count -= 4, args += 4) attend_group<4, T>(args);
  for (; count >= 2; count -= 2, args += 2) attend_group<2, T>(args);
  if (count != 0) attend_group<1, T>(args);
}

// Runs `attend` over turned queries, and turns the results back.
template <class F>
inline void with_turned(const AttentionArgs* args, uint32_t count, F attend) {
  constexpr uint32_t kMost = 4;
  float queries[kMost][kMostTurned];
  AttentionArgs turned[kMost];
  for (uint32_t done = 0; done < count;) {
    const uint32_t n = count - done < kMost ? count - done : kMost;
    for (uint32_t i = 0; i < n; ++i) {
      turned[i] = args[done + i];
      for (uint32_t d = 0; d < turned[i].key_dim; ++d) queries[i][d] = turned[i].q[d];
      turn_back(queries[i], turned[i].key_dim);
      turned[i].q = queries[i];
    }
    attend(turned, n);
    for (uint32_t i = 0; i < n; ++i) turn_back(turned[i].out, turned[i].value_dim);
    done += n;
  }
}

// attend.operator()<T>(args, count), T the elements of the queries' KV; they are turned where the keys are.
template <class Attend>
inline void attend_by_type(const AttentionArgs* args, uint32_t count, Attend attend) {
  if (count == 0) return;
  const auto of = [&]<class T>() {
    const auto run = [&](const AttentionArgs* a, uint32_t n) {
      attend.template operator()<T>(a, n);
    };
    if constexpr (kScaled<T>) {
      with_turned(args, count, run);
    } else {
      run(args, count);
    }
  };
  switch (args->kv_type) {
    case KvType::kF16:
      return of.template operator()<uint16_t>();
    case KvType::kF32:
      return of.template operator()<float>();
    case KvType::kQ8:
      return of.template operator()<Q8>();
    case KvType::kQ4:
      return of.template operator()<Q4>();
  }
}

void attention_group(const AttentionArgs* args, uint32_t count) {
  attend_by_type(args, count,
                 []<class T>(const AttentionArgs* a, uint32_t n) { attend_all<T>(a, n); });
}

void attention(const AttentionArgs& args) { attention_group(&args, 1); }

}  // namespace
}  // namespace millrace::kernels
