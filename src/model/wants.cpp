#include "model/wants.h"

namespace millrace::model {

using format::Role;

namespace {
constexpr size_t kMostWants = 32;  // of one piece
}

std::vector<Want> mixer_wants(const ModelSpec& spec, const LayerSpec& layer) {
  const AttentionSpec& a = layer.attention;
  const uint32_t q = a.heads * a.key_dim, k = a.kv_heads * a.key_dim, v = a.kv_heads * a.value_dim,
                 o = a.heads * a.value_dim;
  std::vector<Want> wants;
  wants.reserve(kMostWants);
  if (layer.mixer_in_norm) wants.push_back({Role::kMixerInNorm, 0, spec.hidden});
  wants.push_back({Role::kQ, q, spec.hidden});
  wants.push_back({Role::kK, k, spec.hidden});
  wants.push_back({Role::kV, v, spec.hidden});
  wants.push_back({Role::kO, spec.hidden, o});
  if (a.q_bias) wants.push_back({Role::kQBias, 0, q});
  if (a.k_bias) wants.push_back({Role::kKBias, 0, k});
  if (a.v_bias) wants.push_back({Role::kVBias, 0, v});
  if (a.o_bias) wants.push_back({Role::kOBias, 0, spec.hidden});
  if (a.qk_norm != QkNorm::kNone) {
    const bool full = a.qk_norm == QkNorm::kFull;
    wants.push_back({Role::kQNorm, 0, full ? q : a.key_dim});
    wants.push_back({Role::kKNorm, 0, full ? k : a.key_dim});
  }
  if (a.sinks) wants.push_back({Role::kSinks, 0, a.heads});
  if (layer.mixer_out_norm) wants.push_back({Role::kMixerOutNorm, 0, spec.hidden});
  return wants;
}

std::vector<Want> ffn_wants(const ModelSpec& spec, const LayerSpec& layer) {
  const FfnSpec& f = layer.ffn;
  std::vector<Want> wants;
  wants.reserve(kMostWants);
  if (layer.ffn_in_norm) wants.push_back({Role::kFfnInNorm, 0, spec.hidden});
  if (f.moe) {
    wants.push_back({Role::kRouter, f.moe->experts, spec.hidden});
    if (f.moe->router_bias) wants.push_back({Role::kRouterBias, 0, f.moe->experts});
    if (f.moe->shared_width) {
      wants.push_back({Role::kSharedGate, f.moe->shared_width, spec.hidden});
      wants.push_back({Role::kSharedUp, f.moe->shared_width, spec.hidden});
      wants.push_back({Role::kSharedDown, spec.hidden, f.moe->shared_width});
      if (f.moe->shared_gate) wants.push_back({Role::kSharedRouter, 1, spec.hidden});
    }
  } else {
    wants.push_back({Role::kGate, f.width, spec.hidden});
    wants.push_back({Role::kUp, f.width, spec.hidden});
    wants.push_back({Role::kDown, spec.hidden, f.width});
    if (f.bias) {
      wants.push_back({Role::kGateBias, 0, f.width});
      wants.push_back({Role::kUpBias, 0, f.width});
      wants.push_back({Role::kDownBias, 0, spec.hidden});
    }
  }
  if (layer.ffn_out_norm) wants.push_back({Role::kFfnOutNorm, 0, spec.hidden});
  return wants;
}

std::vector<Want> expert_wants(const ModelSpec& spec, const MoeSpec& moe) {
  std::vector<Want> wants;
  wants.reserve(kMostWants);
  wants.push_back({Role::kGate, moe.width, spec.hidden});
  wants.push_back({Role::kUp, moe.width, spec.hidden});
  wants.push_back({Role::kDown, spec.hidden, moe.width});
  if (moe.expert_bias) {
    wants.push_back({Role::kGateBias, 0, moe.width});
    wants.push_back({Role::kUpBias, 0, moe.width});
    wants.push_back({Role::kDownBias, 0, spec.hidden});
  }
  return wants;
}

}  // namespace millrace::model
