// ModelSpec: an architecture as data. A family fills it from a config; one forward pass interprets
// it.
#pragma once

#include <cstdint>
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
};

enum class QkNorm : uint8_t {
  kNone,
  kHead,  // each head by itself, before rope
  kFull,  // over all heads together, before rope
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
};

enum class RouterScore : uint8_t { kSoftmax, kSoftmaxSelected, kSigmoid };

struct MoeSpec {
  uint32_t experts = 0;
  uint32_t used = 0;   // top-k
  uint32_t width = 0;  // inner width of an expert
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = false;     // weights of the selected divided by their sum
  float scale = 1.0f;         // then multiplied by this
  bool router_bias = false;   // added to the router's logits
  bool expert_bias = false;   // gate, up and down of an expert have biases
  uint32_t shared_width = 0;  // shared expert; 0: none
  bool shared_gate = false;   // its output times sigmoid(router row)
};

struct FfnSpec {
  uint32_t width = 0;  // dense width; 0 with moe
  kernels::Activation act = kernels::Activation::kSilu;
  float alpha = 0.0f, limit = 0.0f;  // kSwigluOai
  bool bias = false;                 // dense gate, up, down
  std::optional<MoeSpec> moe;
};

struct LayerSpec {
  AttentionSpec attention;
  FfnSpec ffn;
  // Norms around the two sublayers: in = before it, out = on its output before the residual sum.
  bool mixer_in_norm = true, mixer_out_norm = false;
  bool ffn_in_norm = true, ffn_out_norm = false;
};

struct ModelSpec {
  std::string family;  // "qwen3_moe"
  uint32_t hidden = 0;
  uint32_t vocab = 0;        // rows of the head
  uint32_t max_context = 0;  // positions the model was made for
  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-6f;
  float embed_scale = 1.0f;
  float residual_scale = 1.0f;  // on each sublayer's output
  float logit_scale = 1.0f;     // logits *= this
  float logit_softcap = 0.0f;   // then cap * tanh(logits / cap); 0: off
  bool tied = false;            // head = embedding
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
};

}  // namespace millrace::model
