// ModelSpec: an architecture as data. A family fills it from a config; one forward pass interprets
// it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace millrace::model {

enum class NormKind : uint8_t {
  kRms,         // x / rms(x) * w
  kRmsPlusOne,  // x / rms(x) * (1 + w)
};

// Rotary embedding of one kind of layer.
struct RopeSpec {
  std::vector<float> inv_freq;  // [dims / 2] radians a position
  uint32_t dims = 0;            // rotated dimensions, the rest passes through
  bool interleaved = false;     // pairs (2j, 2j+1) instead of (j, j + dims/2)
  float scale = 1.0f;           // multiplies cos and sin (yarn, longrope)
  bool divided = true;          // by the divisors of the frequencies, when the file has such
};

enum class QkNorm : uint8_t {
  kNone,
  kHead,  // each head by itself, before rope
  kFull,  // over all heads together, before rope
  kHeadAfterRope,
  kHeadNoScale,  // as kHead without weights
};

struct AttentionSpec {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  float scale = 1.0f;   // of q.k
  uint32_t window = 0;  // 0: full; else a query sees this many positions, itself included
  int rope = -1;        // index into ModelSpec::ropes; -1: no positions
  QkNorm qk_norm = QkNorm::kNone;
  bool sinks = false;          // a learned logit for each head joins the softmax
  float softcap = 0.0f;        // 0: off
  float position_beta = 0.0f;  // q *= 1 + beta * ln(1 + floor(position / position_period)); 0: off
  uint32_t position_period = 1;
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false;
  bool gate = false;       // q has a gate behind each head: the head's output *= sigmoid(gate)
  float out_scale = 1.0f;  // of the sublayer's output
  bool own_gate = false;   // the heads' output *= sigmoid(gate(h)), of a projection of its own
  float q_scale = 1.0f;    // of q after its norm
  bool v_norm = false;     // each head of v / rms(v)
  bool k_eq_v = false;     // v is k as projected, before norm and rope
  int kv_from = -1;        // reads the keys and values of that layer and has none of its own
};

// Which positions a row attends to: the `top` that match best; all while there are no more.
struct IndexerSpec {
  uint32_t heads = 0, dim = 0, top = 0;
  int rope = -1;        // of the first dims of queries and keys
  bool shared = false;  // has no weights: the choice of the indexer before it, for the same rows
};

// Latent attention: keys and values of all heads are projections of one cached latent, and every
// head shares one rotated key. Computed in the latent's space ("absorbed"), for every row.
struct MlaSpec {
  uint32_t heads = 0, q_rank = 0 /* 0: q is projected at once */, rank = 0;
  uint32_t nope_dim = 0, rope_dim = 0, value_dim = 0;
  float scale = 1.0f, latent_eps = 1e-6f;
  int rope = -1;
  bool bias = false;               // of the down projections and the output
  bool key_up_transposed = false;  // the file keeps W_uk as [heads, rank, nope_dim]
  std::optional<IndexerSpec> indexer;
};

// Gated short convolution (LFM2): [B | C | x] = in(h); out(C * conv(B * x)).
struct ShortConvSpec {
  uint32_t kernel = 0;
  bool bias = false;  // of the projections and the convolution
};

// Gated DeltaNet: each value head keeps a matrix [key_dim, value_dim], updated by the delta rule.
struct DeltaSpec {
  uint32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, kernel = 0;
  bool fused_qkvz = false;  // one projection [q | k | v | z] cut by key head
  bool fused_ba = false;    // one projection [beta | alpha] cut by key head
  bool tiled = false;       // value head h reads key head h mod key_heads, not h / (their ratio)
  bool log_decay = true;    // the file keeps log A; else -A

  uint32_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

// Mamba-2: each head keeps a matrix [state_dim, head_dim]; in(h) = [gate | x | B | C | dt].
struct Mamba2Spec {
  uint32_t heads = 0, head_dim = 0, state_dim = 0, groups = 0, kernel = 0;
  bool norm = true;               // of the output, by group
  bool norm_before_gate = false;  // norm(y) * silu(gate), not norm(y * silu(gate))
  bool in_bias = false, conv_bias = false, out_bias = false;
  bool log_decay = true;
  float least_dt = 0.0f, most_dt = std::numeric_limits<float>::infinity();
  std::array<float, 5> in_scale = {1, 1, 1, 1, 1};  // of the parts of in(h)
  float out_scale = 1.0f;

  uint32_t inner() const { return heads * head_dim; }
  uint32_t channels() const { return inner() + 2 * groups * state_dim; }
  uint32_t columns() const { return inner() + channels() + heads; }  // of in(h)
};

enum class RouterScore : uint8_t { kSoftmax, kSoftmaxSelected, kSigmoid };

struct MoeSpec {
  uint32_t experts = 0;
  uint32_t used = 0;   // top-k
  uint32_t width = 0;  // inner width of an expert
  RouterScore score = RouterScore::kSoftmax;
  bool correction = false;     // added to the scores, for the choice only
  uint32_t groups = 1;         // of neighbouring experts; only the best ones' are chosen from:
  uint32_t groups_used = 1;    // those with the largest sums of their two best,
  bool group_best = false;     // or with the largest best alone
  bool normalize = false;      // weights of the selected divided by their sum
  float normalize_eps = 0.0f;  // plus this
  float scale = 1.0f;          // then multiplied by this
  bool router_bias = false;    // added to the router's logits
  bool expert_bias = false;    // gate, up and down of an expert have biases
  uint32_t shared_width = 0;   // shared expert; 0: none
  bool shared_gate = false;    // its output times sigmoid(router row)
  // The shared expert is a dense part of its own: it alone reads the normed input; experts read x
  // with another norm, the router x / rms(x) times a vector; each output is normed before the sum.
  bool apart = false;
  bool expert_scale = false;  // weights of the selected times a learned scale of each expert
};

struct FfnSpec {
  uint32_t width = 0;  // dense width; 0 with moe
  kernels::Activation act = kernels::Activation::kSilu;
  float alpha = 0.0f, limit = 0.0f;  // kSwigluOai
  bool bias = false;                 // dense gate, up, down
  bool gated = true;                 // act(gate) * up; else act(up), and there is no gate
  float gate_scale = 1.0f;           // of gate, before act
  float out_scale = 1.0f;            // of the sublayer's output
  bool xielu = false;                // xIELU with the layer's own parameters, in place of act
  // The parameters, when they are not tensors: positive, negative, beta, eps.
  std::optional<std::array<float, 4>> xielu_values;
  std::optional<MoeSpec> moe;
};

struct LayerSpec {
  // Mixers that are there read the same normed input, and their outputs are added up.
  AttentionSpec attention;  // heads == 0: none
  std::optional<MlaSpec> mla;
  std::optional<ShortConvSpec> conv;
  std::optional<DeltaSpec> delta;
  std::optional<Mamba2Spec> mamba;
  FfnSpec ffn;  // width 0 and no moe: none
  // Norms around the two sublayers: in = before it, out = on its output before the residual sum.
  bool mixer_in_norm = true, mixer_out_norm = false;
  bool ffn_in_norm = true, ffn_out_norm = false;

  bool scaled = false;  // x *= a learned scalar, after the layer

  bool has_mixer() const { return attention.heads || mla || conv || delta || mamba; }
  bool has_ffn() const { return ffn.width || ffn.moe; }
};

struct ModelSpec {
  std::string family;  // "qwen3_moe"
  uint32_t hidden = 0;
  uint32_t vocab = 0;        // rows of the head
  uint32_t max_context = 0;  // positions the model was made for
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-6f;
  float out_norm_eps = 0.0f;      // of the norms on sublayers' outputs; 0: norm_eps
  bool final_norm_plain = false;  // the final norm is kRms whatever `norm` says
  bool embed_norm = false;        // embedding / rms(embedding)
  float embed_scale = 1.0f;
  float residual_scale = 1.0f;  // on each sublayer's output
  float logit_scale = 1.0f;     // logits *= this
  float logit_softcap = 0.0f;   // then cap * tanh(logits / cap); 0: off
  bool tied = false;            // head = embedding
  uint32_t loops = 1;           // times that the layers run
  bool loop_norm = false;       // the final norm also between the times
  uint32_t layer_input = 0;     // width of per-layer embeddings; 0: none
  uint32_t predicting = 0;  // layers behind these, in the file only, that predict further tokens
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
};

}  // namespace millrace::model
