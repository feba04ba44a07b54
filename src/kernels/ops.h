// Everything in the forward pass that is not a matrix product. The same source is compiled once per
// instruction set (see ops_impl.h); IEEE arithmetic without contraction makes the bits equal.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu.h"
#include "kernels/kv_layout.h"
#include "kernels/recurrent.h"

namespace millrace::kernels {

enum class Activation : uint8_t {
  kSilu,      // x * sigmoid(x)
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kGeluErf,   // 0.5 x (1 + erf(x / sqrt(2)))
  kRelu2,     // max(x, 0)^2
  kSwigluOai,  // gated only: g = min(gate, limit); u = clip(up, -limit, limit); g sigmoid(alpha g) (u + 1)
};

struct AttentionArgs {
  const float* q = nullptr;  // [key_dim], one query head, after rope; scale not applied
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  KvType kv_type = KvType::kF16;
  const void* const* k_blocks = nullptr;  // [blocks] of this kv head (kv_layout.h)
  const void* const* v_blocks = nullptr;  // [blocks]
  uint32_t begin = 0;                     // first visible position (window), absolute
  uint32_t end = 0;  // one past the last visible position (the query's own + 1)
  float scale = 1.0f;
  float softcap = 0.0f;         // 0 = off: s = cap * tanh(s / cap)
  const float* sink = nullptr;  // per-head learned logit, or null
  float* out = nullptr;         // [value_dim]
  // attention_selected only: bit p of word b says whether position 64 b + p is seen.
  const uint64_t* selected = nullptr;
};

// How well the positions of one block of index keys match an indexer's query (sparse attention):
//   out[p] = sum over heads, ascending, of weights[h] * max(0, scale * dot(q[h], key[p]))
struct IndexArgs {
  const float* q = nullptr;        // [heads, dim]
  const float* weights = nullptr;  // [heads]
  uint32_t heads = 0;
  uint32_t dim = 0;
  float scale = 1.0f;
  KvType kv_type = KvType::kF16;
  const void* keys = nullptr;  // a K block of `dim` channels
  float* out = nullptr;        // [64]
};

// One table for each instruction set; all entries give the same bits.
// Reductions over a row use 16 partial sums (element i goes to partial i mod 16, ascending), combined
// as a tree: p[j] += p[j + 8], + 4, + 2, + 1.
struct Ops {
  const char* name;  // "scalar", "avx2"
  // y = x / sqrt(mean(x^2) + eps) * w ; plus_one: * (1 + w); w may be null (no scale). In place allowed.
  void (*rms_norm)(const float* x, const float* w, bool plus_one, float eps, uint32_t n, float* y);
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, uint32_t n,
                     float* y);
  void (*add)(float* x, const float* y, uint32_t n);                  // x += y
  void (*add_scaled)(float* x, const float* y, float s, uint32_t n);  // x = fma(s, y, x)
  void (*scale)(float* x, float s, uint32_t n);                       // x *= s
  // out = act(gate) * up (gated); gate and up [n]
  void (*gated)(Activation act, const float* gate, const float* up, float alpha, float limit,
                uint32_t n, float* out);
  void (*activate)(Activation act, const float* x, uint32_t n, float* out);
  void (*sigmoid)(const float* x, uint32_t n, float* out);
  void (*softmax)(float* x, uint32_t n);             // in place, max-subtracted
  void (*softcap)(float* x, float cap, uint32_t n);  // cap * tanh(x / cap)
  // Rotates pairs of x[0..dims): half-split (j, j + dims/2) or interleaved (2j, 2j+1). cos/sin [dims/2].
  void (*rope)(float* x, const float* cos, const float* sin, uint32_t dims, bool interleaved);
  // cos/sin of float(position) * inv_freq[j] (product rounded to f32, then reduced exactly), times `scale`.
  void (*rope_table)(float position, const float* inv_freq, float scale, uint32_t pairs, float* cos,
                     float* sin);
  // Writes key/value of one head at position `slot` (0..63) of a block.
  void (*store_kv)(KvType type, const float* k, uint32_t key_dim, const float* v,
                   uint32_t value_dim, uint32_t slot, void* k_block, void* v_block);
  // Online softmax over blocks cut at absolute multiples of 64; masked positions are not touched.
  void (*attention)(const AttentionArgs&);
  // The same for several queries over the same blocks (dims, type and block tables equal; spans, sinks
  // and the rest as they like): the bits of `attention` on each, with every key and value read once
  // for four queries. Queries of one position or of near ones share most.
  void (*attention_group)(const AttentionArgs* args, uint32_t count);
  // As `attention` over the selected positions of begin..end alone.
  void (*attention_selected)(const AttentionArgs&);
  void (*index_scores)(const IndexArgs&);
  // x > 0: positive x^2 + beta x; else (expm1(min(x, eps)) - x) negative + beta x.
  void (*xielu)(const float* x, float positive, float negative, float beta, float eps, uint32_t n,
                float* out);
  void (*quantize_row)(const float* x, uint32_t cols, int8_t* q, float* scale, int16_t* sum);
  // Sources of vectors: f32/f16/bf16 bytes to f32.
  void (*f16_to_f32)(const uint16_t* x, uint64_t n, float* y);
  void (*bf16_to_f32)(const uint16_t* x, uint64_t n, float* y);
  // Recurrent mixers (recurrent.h).
  void (*multiply)(const float* x, const float* y, uint32_t n, float* out);  // out = x * y
  void (*time_steps)(const DecayArgs&);
  void (*causal_conv)(const ConvArgs&);
  void (*delta_step)(const DeltaArgs&);
  void (*ssm_step)(const SsmArgs&);
};

// The tables, best first; the first whose set the processor has is taken.
struct OpsRung {
  Isa isa;
  const Ops* ops;
};
const std::vector<OpsRung>& ops_ladder();
const Ops& select_ops(const Cpu& cpu);
const Ops& scalar_ops();

// The k largest of x[0..n), largest first; equal values rank by lower index.
void top_k(const float* x, uint32_t n, uint32_t k, uint32_t* index);

}  // namespace millrace::kernels
