// Latent attention in absorbed form: what is cached of a position is one latent and one rotated
// key, and the up projections are applied to queries and results. Optionally over the positions
// that an indexer selects.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/numeric.h"
#include "model/forward_impl.h"
#include "model/reference_ties.h"

namespace millrace::model {

using format::Role;
using kernels::kKvBlock;

void Forward::Impl::latent_attention(uint32_t layer, const Held& held, RowBuffer in) {
  const MlaSpec& m = *spec.layers[layer].mla;
  const uint32_t head_cols = m.nope_dim + m.rope_dim, key = m.rank + m.rope_dim;
  const KvPlace& place = place_of(layer);
  uint32_t slot = 0;
  RowBuffer latent = b.latent_q;
  latent.cols = m.q_rank;
  push(held, Role::kKvDown, in.view(count), b.k, key);
  if (m.q_rank) push(held, Role::kQDown, in.view(count), latent.f32, m.q_rank);
  flush();
  add_bias(b.k, key, key, count, vector(held, Role::kKvDownBias, &slot));
  if (m.q_rank) {
    add_bias(latent.f32, m.q_rank, m.q_rank, count, vector(held, Role::kQDownBias, &slot));
    const float* weight = vector(held, Role::kQDownNorm, &slot);
    over_rows(count, m.q_rank, [&](uint32_t r) {
      float* row = latent.f32 + uint64_t{r} * m.q_rank;
      ops.rms_norm(row, weight, false, m.latent_eps, m.q_rank, row);
    });
    if (quantizes(held, Role::kQ) || quantizes(held, Role::kIndexQ)) quantize(latent, count);
  } else {
    latent = in;
    if (quantizes(held, Role::kQ)) quantize(latent, count);
  }
  push(held, Role::kQ, latent.view(count), b.q, uint64_t{m.heads} * head_cols);
  flush();

  const float* norm_weight = vector(held, Role::kKvDownNorm, &slot);
  const RopeSpec& rope = ropes[static_cast<size_t>(m.rope)];
  const uint64_t pairs = extents.rope_pairs;
  over_rows(count, uint64_t{m.heads} * head_cols, [&](uint32_t r) {
    const uint64_t at = (static_cast<uint64_t>(m.rope) * options.max_rows + r) * pairs;
    float* k = b.k + uint64_t{r} * key;
    ops.rms_norm(k, norm_weight, false, m.latent_eps, m.rank, k);
    ops.rope(k + m.rank, b.cos + at, b.sin + at, rope.dims, rope.interleaved);
    for (uint32_t h = 0; h < m.heads; ++h) {
      float* q = b.q + (uint64_t{r} * m.heads + h) * head_cols;
      ops.rope(q + m.nope_dim, b.cos + at, b.sin + at, rope.dims, rope.interleaved);
      std::memcpy(b.absorbed + (uint64_t{r} * m.heads + h) * key + m.rank, q + m.nope_dim,
                  m.rope_dim * sizeof(float));
      std::memcpy(b.nope.f32 + (uint64_t{h} * count + r) * m.nope_dim, q,
                  m.nope_dim * sizeof(float));
    }
    std::byte* page =
        rows[r].sequence->page(place.group, rows[r].position / kKvBlock) + place.offset;
    ops.store_kv(kv.type, k, key, k, m.rank, rows[r].position % kKvBlock, page,
                 page + place.k_bytes);
  });
  absorb(m, held);
  const bool sparse = m.indexer.has_value();
  if (sparse && !m.indexer->shared) index_positions(layer, held, latent);

  block_pointers(layer, 1);
  const uint64_t blocks = (uint64_t{options.max_context} + kKvBlock - 1) / kKvBlock;
  const auto args_of = [&](uint32_t r, uint32_t h) {
    kernels::AttentionArgs args;
    args.q = b.absorbed + (uint64_t{r} * m.heads + h) * key;
    args.key_dim = key;
    args.value_dim = m.rank;
    args.kv_type = kv.type;
    args.k_blocks = b.blocks + uint64_t{sequence_of[r]} * 2 * blocks;
    args.v_blocks = args.k_blocks + blocks;
    args.end = rows[r].position + 1;
    args.scale = m.scale;
    args.out = b.latents.f32 + (uint64_t{h} * count + r) * m.rank;
    return args;
  };
  const auto queries = query_blocks(1, m.heads);
  threads.parallel(queries.size(), 1, [&](uint64_t begin, uint64_t end, unsigned) {
    std::array<kernels::AttentionArgs, kAtOnce> at_once;
    for (uint64_t task = begin; task < end; ++task) {
      uint32_t n = 0;
      for (uint32_t r = queries[task].row_begin; r < queries[task].row_end; ++r) {
        const bool chosen = sparse && rows[r].position + 1 > m.indexer->top;
        for (uint32_t h = queries[task].head_begin; h < queries[task].head_end; ++h) {
          kernels::AttentionArgs args = args_of(r, h);
          if (chosen) {
            args.selected = b.selected + r * blocks;
            ops.attention_selected(args);
            continue;
          }
          at_once[n++] = args;
          if (n == at_once.size()) ops.attention_group(at_once.data(), std::exchange(n, 0));
        }
      }
      ops.attention_group(at_once.data(), n);
    }
  });

  RowBuffer latents = b.latents;
  latents.cols = m.rank;
  if (quantizes(held, Role::kValueUp)) quantize(latents, count * m.heads);
  const auto first = static_cast<size_t>(held.find(Role::kValueUp));
  const uint64_t out = uint64_t{m.heads} * m.value_dim;
  for (uint32_t h = 0; h < m.heads; ++h) {
    push_tensor(held, first + h, latents.view(count, h * count),
                b.attended.f32 + uint64_t{h} * m.value_dim, out);
  }
  flush();
  mixed_output(held, Role::kO, Role::kOBias, m.heads * m.value_dim, 1.0f, false);
}

// absorbed[row, head, 0 .. rank) = W_uk[head]^T q_nope[row, head].
void Forward::Impl::absorb(const MlaSpec& m, const Held& held) {
  const uint64_t key = m.rank + m.rope_dim;
  if (m.key_up_transposed) {
    RowBuffer nope = b.nope;
    nope.cols = m.nope_dim;
    if (quantizes(held, Role::kKeyUpTransposed)) quantize(nope, count * m.heads);
    const auto first = static_cast<size_t>(held.find(Role::kKeyUpTransposed));
    for (uint32_t h = 0; h < m.heads; ++h)
      push_tensor(held, first + h, nope.view(count, h * count), b.absorbed + h * key,
                  m.heads * key);
    flush();
    return;
  }
  // The file keeps [nope_dim, rank]: the sum runs over its rows, in order, with the value that each
  // code stands for. Every row of the step shares a decoded one.
  const auto first = static_cast<size_t>(held.find(Role::kKeyUp));
  threads.parallel(m.heads, 1, [&](uint64_t begin, uint64_t end, unsigned) {
    for (uint64_t h = begin; h < end; ++h) {
      const auto& tensor = held.piece->tensors[first + h];
      float* decoded = b.decoded + h * extents.latent;
      for (uint32_t r = 0; r < count; ++r)
        std::memset(b.absorbed + (r * m.heads + h) * key, 0, m.rank * sizeof(float));
      for (uint32_t i = 0; i < m.nope_dim; ++i) {
        format::dequantize_row(tensor.view.layout, held.data + tensor.offset, i, decoded);
        for (uint32_t r = 0; r < count; ++r)
          ops.add_scaled(b.absorbed + (r * m.heads + h) * key, decoded,
                         b.nope.f32[(h * count + r) * m.nope_dim + i], m.rank);
      }
    }
  });
}

// Caches the rows' index keys and selects, for each row with more positions than it may attend to,
// the best matching ones.
void Forward::Impl::index_positions(uint32_t layer, const Held& held, RowBuffer latent) {
  const IndexerSpec& x = *spec.layers[layer].mla->indexer;
  const KvPlace& place = place_of(layer);
  const uint32_t q_cols = x.heads * x.dim;
  push(held, Role::kIndexQ, latent.view(count), b.index_q, q_cols);
  push(held, Role::kIndexK, b.h.view(count), b.index_k, x.dim);
  push(held, Role::kIndexWeights, b.h.view(count), b.index_weights, x.heads);
  flush();
  uint32_t slot = 0;
  const float* weight = vector(held, Role::kIndexKNorm, &slot);
  const float* bias = vector(held, Role::kIndexKNormBias, &slot);
  const RopeSpec& rope = ropes[static_cast<size_t>(x.rope)];
  const uint64_t pairs = extents.rope_pairs;
  const float head_scale = 1.0f / __builtin_sqrtf(static_cast<float>(x.heads));
  over_rows(count, q_cols + x.dim, [&](uint32_t r) {
    const uint64_t at = (static_cast<uint64_t>(x.rope) * options.max_rows + r) * pairs;
    float* k = b.index_k + uint64_t{r} * x.dim;
    ops.layer_norm(k, weight, bias, 1e-6f, x.dim, k);
    ops.rope(k, b.cos + at, b.sin + at, rope.dims, rope.interleaved);
    for (uint32_t h = 0; h < x.heads; ++h)
      ops.rope(b.index_q + uint64_t{r} * q_cols + h * x.dim, b.cos + at, b.sin + at, rope.dims,
               rope.interleaved);
    ops.scale(b.index_weights + uint64_t{r} * x.heads, head_scale, x.heads);
    std::byte* page =
        rows[r].sequence->page(place.group, rows[r].position / kKvBlock) + place.index_offset;
    ops.store_kv(kv.type, k, x.dim, k, 0, rows[r].position % kKvBlock, page, page);
  });
  const uint64_t blocks = (uint64_t{options.max_context} + kKvBlock - 1) / kKvBlock;
  for (uint32_t r = 0; r < count; ++r) {
    const uint32_t seen = rows[r].position + 1;
    if (seen <= x.top) continue;
    threads.parallel(
        uint64_t{seen + kKvBlock - 1} / kKvBlock, 4, [&](uint64_t begin, uint64_t end, unsigned) {
          kernels::IndexArgs args;
          args.q = b.index_q + uint64_t{r} * q_cols;
          args.weights = b.index_weights + uint64_t{r} * x.heads;
          args.heads = x.heads;
          args.dim = x.dim;
          args.scale = 1.0f / __builtin_sqrtf(static_cast<float>(x.dim));
          args.kv_type = kv.type;
          for (uint64_t block = begin; block < end; ++block) {
            args.keys = rows[r].sequence->page(place.group, static_cast<uint32_t>(block)) +
                        place.index_offset;
            args.out = b.index_scores + block * kKvBlock;
            ops.index_scores(args);
          }
        });
    if (rows[r].tie_length >= seen) {
      reference_top_k({b.index_scores, seen}, rows[r].tie_length, x.top, b.ranked);
    } else {
      kernels::top_k(b.index_scores, seen, x.top, b.ranked);
    }
    uint64_t* selected = b.selected + r * blocks;
    std::memset(selected, 0, blocks * sizeof(uint64_t));
    for (uint32_t i = 0; i < x.top; ++i)
      selected[b.ranked[i] / kKvBlock] |= uint64_t{1} << (b.ranked[i] % kKvBlock);
  }
}

}  // namespace millrace::model
