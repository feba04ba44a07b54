// The attention sublayer: norms, projections, rope, KV, softmax over paged blocks.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

void Forward::Impl::attention(uint32_t layer, const Held& held, RowBuffer in, bool add) {
  const AttentionSpec& a = spec.layers[layer].attention;
  // With a gate, each head's query has it behind it.
  const uint32_t q_head = a.key_dim + (a.gate ? a.value_dim : 0), q_cols = a.heads * q_head,
                 k_cols = a.kv_heads * a.key_dim, v_cols = a.kv_heads * a.value_dim;
  uint32_t slot = 0;
  push(held, Role::kQ, in.view(count), b.q, q_cols);
  const bool own = a.kv_from < 0;  // has keys and values
  if (own) push(held, Role::kK, in.view(count), b.k, k_cols);
  if (own && !a.k_eq_v) push(held, Role::kV, in.view(count), b.v, v_cols);
  if (a.own_gate)
    push(held, Role::kAttentionGate, in.view(count), b.own_gate, a.heads * a.value_dim);
  flush();
  add_bias(b.q, q_cols, q_cols, count, vector(held, Role::kQBias, &slot));
  add_bias(b.k, k_cols, k_cols, count, vector(held, Role::kKBias, &slot));
  add_bias(b.v, v_cols, v_cols, count, vector(held, Role::kVBias, &slot));

  const float* q_norm = vector(held, Role::kQNorm, &slot);
  const float* k_norm = vector(held, Role::kKNorm, &slot);
  const bool plus_one = spec.norm == NormKind::kRmsPlusOne;
  const KvPlace& place = place_of(layer);
  const uint64_t pairs = extents.rope_pairs;
  over_rows(count, q_cols + k_cols, [&](uint32_t r) {
    float* q = b.q + uint64_t{r} * q_cols;
    float* k = b.k + uint64_t{r} * k_cols;
    float* v = b.v + uint64_t{r} * v_cols;
    if (own && a.k_eq_v) std::copy_n(k, v_cols, v);
    for (uint32_t h = 0; own && a.v_norm && h < a.kv_heads; ++h)
      ops.rms_norm(v + h * a.value_dim, nullptr, false, spec.norm_eps, a.value_dim,
                   v + h * a.value_dim);
    const auto norm_heads = [&] {
      for (uint32_t h = 0; h < a.heads; ++h)
        ops.rms_norm(q + h * q_head, q_norm, plus_one, spec.norm_eps, a.key_dim, q + h * q_head);
      for (uint32_t h = 0; own && h < a.kv_heads; ++h)
        ops.rms_norm(k + h * a.key_dim, k_norm, plus_one, spec.norm_eps, a.key_dim,
                     k + h * a.key_dim);
    };
    if (a.qk_norm == QkNorm::kFull) {
      ops.rms_norm(q, q_norm, plus_one, spec.norm_eps, q_cols, q);
      ops.rms_norm(k, k_norm, plus_one, spec.norm_eps, k_cols, k);
    } else if (a.qk_norm == QkNorm::kHead || a.qk_norm == QkNorm::kHeadNoScale) {
      norm_heads();
    }
    if (a.q_scale != 1.0f) ops.scale(q, a.q_scale, q_cols);
    if (a.rope >= 0) {
      const RopeSpec& rope = ropes[static_cast<size_t>(a.rope)];
      const uint64_t at = (static_cast<uint64_t>(a.rope) * options.max_rows + r) * pairs;
      for (uint32_t h = 0; h < a.heads; ++h)
        ops.rope(q + h * q_head, b.cos + at, b.sin + at, rope.dims, rope.interleaved);
      for (uint32_t h = 0; own && h < a.kv_heads; ++h)
        ops.rope(k + h * a.key_dim, b.cos + at, b.sin + at, rope.dims, rope.interleaved);
    }
    if (a.qk_norm == QkNorm::kHeadAfterRope) norm_heads();
    if (a.position_beta != 0.0f) {
      const double period = std::floor(static_cast<double>(rows[r].position) / a.position_period);
      ops.scale(q,
                static_cast<float>(1.0 + static_cast<double>(a.position_beta) * std::log1p(period)),
                q_cols);
    }
    if (!own) return;
    std::byte* page =
        rows[r].sequence->page(place.group, rows[r].position / kernels::kKvBlock) + place.offset;
    for (uint32_t h = 0; h < a.kv_heads; ++h) {
      std::byte* block = page + h * place.head_bytes;
      ops.store_kv(kv.type, k + h * a.key_dim, a.key_dim, v + h * a.value_dim, a.value_dim,
                   rows[r].position % kernels::kKvBlock, block, block + place.k_bytes);
    }
  });
  attend(layer, vector(held, Role::kSinks, &slot));
  if (a.own_gate) {
    const uint32_t n = a.heads * a.value_dim;
    over_rows(count, uint64_t{n} * 8, [&](uint32_t r) {
      float* gate = b.own_gate + uint64_t{r} * n;
      ops.sigmoid(gate, n, gate);
      ops.multiply(b.attended.f32 + uint64_t{r} * n, gate, n, b.attended.f32 + uint64_t{r} * n);
    });
  }
  if (a.gate) {
    over_rows(count, uint64_t{a.heads} * a.value_dim * 8, [&](uint32_t r) {
      for (uint32_t h = 0; h < a.heads; ++h) {
        float* gate = b.q + uint64_t{r} * q_cols + h * q_head + a.key_dim;
        float* out = b.attended.f32 + (uint64_t{r} * a.heads + h) * a.value_dim;
        ops.sigmoid(gate, a.value_dim, gate);
        ops.multiply(out, gate, a.value_dim, out);
      }
    });
  }
  mixed_output(held, Role::kO, Role::kOBias, a.heads * a.value_dim, a.out_scale, add);
}

// Block pointers of every sequence and kv head, once a layer.
void Forward::Impl::block_pointers(uint32_t layer, uint32_t heads) {
  const KvPlace& place = place_of(layer);
  const uint64_t blocks =
      (uint64_t{options.max_context} + kernels::kKvBlock - 1) / kernels::kKvBlock;
  for (size_t s = 0; s < sequences.size(); ++s) {
    uint32_t last = 0;
    for (uint32_t r = 0; r < count; ++r) {
      if (sequence_of[r] == s) last = std::max(last, rows[r].position / kernels::kKvBlock);
    }
    for (uint32_t h = 0; h < heads; ++h) {
      const void** k = b.blocks + (s * heads + h) * 2 * blocks;
      const void** v = k + blocks;
      for (uint32_t block = 0; block <= last; ++block) {
        const std::byte* page = sequences[s]->page(place.group, block);
        k[block] = page ? page + place.offset + h * place.head_bytes : nullptr;
        v[block] = page ? page + place.offset + h * place.head_bytes + place.k_bytes : nullptr;
      }
    }
  }
}

std::vector<QueryBlock> Forward::Impl::query_blocks(uint32_t kv_heads, uint32_t group) const {
  // Heads of one row first: they see the same positions. A few rows more amortise each key and value
  // further; beyond that, threads would go short of work.
  constexpr uint32_t kQueries = 16;
  uint32_t heads = group;
  const uint32_t most_rows = std::max(1u, kQueries / group);
  std::vector<QueryBlock> blocks;
  for (uint32_t begin = 0; begin < count;) {
    uint32_t end = begin + 1;
    while (end < count && end - begin < most_rows && sequence_of[end] == sequence_of[begin]) ++end;
    blocks.push_back({begin, end, 0, group});
    begin = end;
  }
  // Too few for the threads: heads apart, in fours as long as that is enough.
  const auto parts_of = [&](uint32_t n) {
    return blocks.size() * kv_heads * ((group + n - 1) / n);
  };
  while (heads > 4 && parts_of(heads) < 4 * threads.count()) heads = (heads + 1) / 2;
  while (heads > 1 && parts_of(heads) < threads.count()) heads = (heads + 1) / 2;
  if (heads == group) return blocks;
  std::vector<QueryBlock> parts;
  for (const QueryBlock& block : blocks) {
    for (uint32_t h = 0; h < group; h += heads)
      parts.push_back({block.row_begin, block.row_end, h, std::min(group, h + heads)});
  }
  return parts;
}

void Forward::Impl::attend(uint32_t layer, const float* sinks) {
  const AttentionSpec& a = spec.layers[layer].attention;
  const uint64_t blocks =
      (uint64_t{options.max_context} + kernels::kKvBlock - 1) / kernels::kKvBlock;
  block_pointers(layer, a.kv_heads);
  const uint32_t group = a.heads / a.kv_heads;
  const auto queries = query_blocks(a.kv_heads, group);
  const uint64_t tasks = queries.size() * a.kv_heads;
  threads.parallel(tasks, 1, [&](uint64_t begin, uint64_t end, unsigned) {
    std::array<kernels::AttentionArgs, kAtOnce> at_once;
    for (uint64_t task = begin; task < end; ++task) {
      const QueryBlock& block = queries[task / a.kv_heads];
      const auto kv_head = static_cast<uint32_t>(task % a.kv_heads);
      uint32_t n = 0;
      for (uint32_t r = block.row_begin; r < block.row_end; ++r) {
        for (uint32_t g = block.head_begin; g < block.head_end; ++g) {
          const uint32_t h = kv_head * group + g;
          kernels::AttentionArgs& args = at_once[n++];
          args = {};
          args.q = b.q + (uint64_t{r} * a.heads + h) * (a.key_dim + (a.gate ? a.value_dim : 0));
          args.key_dim = a.key_dim;
          args.value_dim = a.value_dim;
          args.kv_type = kv.type;
          args.k_blocks = b.blocks + (uint64_t{sequence_of[r]} * a.kv_heads + kv_head) * 2 * blocks;
          args.v_blocks = args.k_blocks + blocks;
          args.end = rows[r].position + 1;
          args.begin = a.window && args.end > a.window ? args.end - a.window : 0;
          args.scale = a.scale;
          args.softcap = a.softcap;
          args.sink = sinks ? sinks + h : nullptr;
          args.out = b.attended.f32 + (uint64_t{r} * a.heads + h) * a.value_dim;
          if (n == at_once.size()) ops.attention_group(at_once.data(), std::exchange(n, 0));
        }
      }
      ops.attention_group(at_once.data(), n);
    }
  });
}

}  // namespace millrace::model
