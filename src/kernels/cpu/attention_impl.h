// Attention of one query over cached blocks, compiled once per instruction set (see ops_impl.h).
//
// Blocks are cut at absolute multiples of 64 positions and merged in order with the online softmax,
// so that a result depends on the query and the positions begin..end alone:
//   s_p = softcap(scale * dot(q, k_p)), the dot one fma chain over d ascending
//   m' = max(m, max s); c = exp(m - m'); w_p = exp(s_p - m'); l = fma(l, c, sum w)
//   acc = acc * c; acc = fma(w_p, v_p, acc) for p ascending;      out = acc / l at the end
// sum w runs in 16 partial sums as every reduction here. A sink starts m at the sink and l at 1.
#pragma once

#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

inline F8 load_kv(const float* p) { return load(p); }
inline F8 load_kv(const uint16_t* p) { return load_f16(p); }
inline float load_kv1(const float* p) { return *p; }
inline float load_kv1(const uint16_t* p) {
  uint16_t part[8] = {*p};
  float t[8];
  store(t, load_f16(part));
  return t[0];
}

constexpr uint32_t kLanesOfBlock = kKvBlock / 8;

// Dots of q with the 32 positions at `k`, in four vectors.
template <class T>
inline void dot_positions(const float* q, uint32_t dim, const T* k, F8 (&acc)[4]) {
  F8 a = set1(0.0f), b = a, c = a, d = a;
  for (uint32_t i = 0; i < dim; ++i, k += kKvBlock) {
    const F8 x = set1(q[i]);
    a = fma(x, load_kv(k), a);
    b = fma(x, load_kv(k + 8), b);
    c = fma(x, load_kv(k + 16), c);
    d = fma(x, load_kv(k + 24), d);
  }
  acc[0] = a;
  acc[1] = b;
  acc[2] = c;
  acc[3] = d;
}

// out = out * correction + sum over positions low..high of weight * value, kVectors * 8 dims at
// once.
template <int kVectors, class T>
inline void add_values(const float* weights, uint32_t low, uint32_t high, const T* v,
                       uint32_t stride, float correction, float* out) {
  F8 acc[kVectors];
  const F8 c = set1(correction);
  for (int i = 0; i < kVectors; ++i) acc[i] = load(out + 8 * i) * c;
  for (uint32_t p = low; p < high; ++p) {
    const F8 w = set1(weights[p]);
    for (int i = 0; i < kVectors; ++i) acc[i] = fma(w, load_kv(v + p * stride + 8 * i), acc[i]);
  }
  for (int i = 0; i < kVectors; ++i) store(out + 8 * i, acc[i]);
}

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

template <class T>
inline void attend(const AttentionArgs& args) {
  const uint32_t dims = args.value_dim;
  for (uint32_t i = 0; i < dims; ++i) args.out[i] = 0.0f;
  if (args.begin >= args.end) return;
  Running running{args.sink ? *args.sink : -__builtin_inff(), args.sink ? 1.0f : 0.0f};
  for (uint32_t block = args.begin / kKvBlock; block * kKvBlock < args.end; ++block) {
    const uint32_t first = block * kKvBlock;
    const uint32_t low = args.begin > first ? args.begin - first : 0;
    const uint32_t high = args.end - first < kKvBlock ? args.end - first : kKvBlock;
    const T* k = static_cast<const T*>(args.k_blocks[block]);
    const T* v = static_cast<const T*>(args.v_blocks[block]);

    F8 dots[kLanesOfBlock] = {};
    for (uint32_t half = 0; half < 2; ++half) {
      if (32 * half >= high || 32 * half + 32 <= low) continue;
      F8 part[4];
      dot_positions(args.q, args.key_dim, k + 32 * half, part);
      for (uint32_t i = 0; i < 4; ++i) dots[4 * half + i] = part[i];
    }
    float weights[kKvBlock];
    const float correction = block_weights(args, dots, low, high, running, weights);

    uint32_t d = 0;
    for (; d + 64 <= dims; d += 64) {
      add_values<8>(weights, low, high, v + d, dims, correction, args.out + d);
    }
    for (; d + 8 <= dims; d += 8) {
      add_values<1>(weights, low, high, v + d, dims, correction, args.out + d);
    }
    for (; d < dims; ++d) {
      float acc = args.out[d] * correction;
      for (uint32_t p = low; p < high; ++p) acc = fma1(weights[p], load_kv1(v + p * dims + d), acc);
      args.out[d] = acc;
    }
  }
  for (uint32_t i = 0; i < dims; ++i) args.out[i] /= running.total;
}

// Several queries of one kv head (the heads of a group, the rows of a pass): each key and value is
// read and widened once for all of them. Every chain is the one of attend(), so the bits are too.

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

// Dots of kQueries queries with the 8 * kSweep positions at `k`; dots [query][lanes of block].
template <int kQueries, class T>
inline void group_dot_positions(const AttentionArgs* args, const T* k, Ahead& ahead,
                                F8 (*dots)[kLanesOfBlock]) {
  constexpr int kVectors = kSweep<kQueries>;
  F8 sums[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i)
    for (int j = 0; j < kVectors; ++j) sums[i][j] = set1(0.0f);
  for (uint32_t d = 0; d < args->key_dim; ++d, k += kKvBlock) {
    ahead.step();
    F8 keys[kVectors];
    for (int j = 0; j < kVectors; ++j) keys[j] = load_kv(k + 8 * j);
    for (int i = 0; i < kQueries; ++i) {
      const F8 x = set1(args[i].q[d]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] = fma(x, keys[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kQueries; ++i)
    for (int j = 0; j < kVectors; ++j) dots[i][j] = sums[i][j];
}

// As add_values for kQueries queries, kVectors vectors of dims.
template <int kQueries, int kVectors, class T>
inline void group_add_values(const AttentionArgs* args, const float (*weights)[kKvBlock],
                             const float* corrections, uint32_t low, uint32_t high, const T* v,
                             uint32_t stride, uint32_t dim, Ahead& ahead) {
  F8 sums[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i)
    for (int j = 0; j < kVectors; ++j)
      sums[i][j] = load(args[i].out + dim + 8 * j) * set1(corrections[i]);
  for (uint32_t p = low; p < high; ++p) {
    ahead.step();
    F8 values[kVectors];
    for (int j = 0; j < kVectors; ++j) values[j] = load_kv(v + p * stride + 8 * j);
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
                            uint32_t dims, uint32_t d, Ahead& ahead) {
  for (int i = 0; i < kQueries; ++i) {
    const uint32_t stop = sees.high[i] < sees.all_low ? sees.high[i] : sees.all_low;
    if (sees.low[i] >= stop) continue;
    add_values<kVectors>(weights[i], sees.low[i], stop, v + d, dims, corrections[i],
                         args[i].out + d);
  }
  if (sees.all_low == sees.all_high) return;
  float rest[kQueries];  // the correction is applied once
  for (int i = 0; i < kQueries; ++i) rest[i] = sees.low[i] < sees.all_low ? 1.0f : corrections[i];
  group_add_values<kQueries, kVectors>(args, weights, rest, sees.all_low, sees.all_high, v + d,
                                       dims, d, ahead);
  for (int i = 0; i < kQueries; ++i) {
    if (sees.all_high >= sees.high[i]) continue;
    add_values<kVectors>(weights[i], sees.all_high, sees.high[i], v + d, dims, 1.0f,
                         args[i].out + d);
  }
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
                 more ? static_cast<uint32_t>(args->key_dim * sizeof(T)) : 0};
    Ahead next_v{more ? static_cast<const char*>(args->v_blocks[block + 1]) : nullptr,
                 more ? static_cast<uint32_t>(dims * sizeof(T)) : 0};
    constexpr uint32_t kPositions = 8 * kSweep<kQueries>;
    F8 dots[kQueries][kLanesOfBlock] = {};
    for (uint32_t g = sees.any_low / kPositions; kPositions * g < sees.any_high; ++g) {
      F8 part[kQueries][kLanesOfBlock];
      group_dot_positions<kQueries>(args, k + kPositions * g, next_k, part);
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
    uint32_t d = 0;
    for (; d + kPositions <= dims; d += kPositions)
      group_add_block<kQueries, kSweep<kQueries>>(args, sees, weights, corrections, v, dims, d,
                                                  next_v);
    for (; d + 8 <= dims; d += 8)
      group_add_block<kQueries, 1>(args, sees, weights, corrections, v, dims, d, next_v);
    for (int i = 0; i < kQueries; ++i) {
      if (sees.high[i] == 0) continue;
      for (uint32_t e = d; e < dims; ++e) {
        float acc = args[i].out[e] * corrections[i];
        for (uint32_t p = sees.low[i]; p < sees.high[i]; ++p) {
          acc = fma1(weights[i][p], load_kv1(v + p * dims + e), acc);
        }
        args[i].out[e] = acc;
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
  if (count != 0) attend<T>(*args);
}

void attention_group(const AttentionArgs* args, uint32_t count) {
  if (count == 0) return;
  if (args->kv_type == KvType::kF16) {
    attend_all<uint16_t>(args, count);
  } else {
    attend_all<float>(args, count);
  }
}

void attention(const AttentionArgs& args) {
  if (args.kv_type == KvType::kF16) {
    attend<uint16_t>(args);
  } else {
    attend<float>(args);
  }
}

inline void to_f16(const float* x, uint32_t n, uint16_t* y, uint32_t stride) {
  for (uint32_t i = 0; i < n; i += 8) {
    const uint32_t part = n - i < 8 ? n - i : 8;
    float wide[8] = {};
    for (uint32_t j = 0; j < part; ++j) wide[j] = x[i + j];
    uint16_t narrow[8];
    store_f16(narrow, load(wide));
    for (uint32_t j = 0; j < part; ++j) y[(i + j) * stride] = narrow[j];
  }
}

void store_kv(KvType type, const float* k, uint32_t key_dim, const float* v, uint32_t value_dim,
              uint32_t slot, void* k_block, void* v_block) {
  if (type == KvType::kF16) {
    to_f16(k, key_dim, static_cast<uint16_t*>(k_block) + slot, kKvBlock);
    to_f16(v, value_dim, static_cast<uint16_t*>(v_block) + uint64_t{slot} * value_dim, 1);
    return;
  }
  float* keys = static_cast<float*>(k_block) + slot;
  float* values = static_cast<float*>(v_block) + uint64_t{slot} * value_dim;
  for (uint32_t i = 0; i < key_dim; ++i) keys[uint64_t{i} * kKvBlock] = k[i];
  for (uint32_t i = 0; i < value_dim; ++i) values[i] = v[i];
}

}  // namespace
}  // namespace millrace::kernels
