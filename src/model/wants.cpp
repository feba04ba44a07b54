#include "model/wants.h"

namespace millrace::model {

using format::Role;

namespace {
constexpr size_t kMostWants = 32;  // of one piece

void attention_wants(const ModelSpec& spec, const AttentionSpec& a, std::vector<Want>* wants) {
  const uint32_t q = a.heads * a.key_dim, k = a.kv_heads * a.key_dim, v = a.kv_heads * a.value_dim,
                 o = a.heads * a.value_dim, q_rows = a.gate ? q + o : q;
  wants->push_back({Role::kQ, q_rows, spec.hidden});
  if (a.kv_from < 0) wants->push_back({Role::kK, k, spec.hidden});
  if (a.kv_from < 0 && !a.k_eq_v) wants->push_back({Role::kV, v, spec.hidden});
  wants->push_back({Role::kO, spec.hidden, o});
  if (a.own_gate) wants->push_back({Role::kAttentionGate, o, spec.hidden});
  if (a.q_bias) wants->push_back({Role::kQBias, 0, q_rows});
  if (a.k_bias) wants->push_back({Role::kKBias, 0, k});
  if (a.v_bias) wants->push_back({Role::kVBias, 0, v});
  if (a.o_bias) wants->push_back({Role::kOBias, 0, spec.hidden});
  if (a.qk_norm != QkNorm::kNone && a.qk_norm != QkNorm::kHeadNoScale) {
    const bool full = a.qk_norm == QkNorm::kFull;
    wants->push_back({Role::kQNorm, 0, full ? q : a.key_dim});
    if (a.kv_from < 0) wants->push_back({Role::kKNorm, 0, full ? k : a.key_dim});
  }
  if (a.sinks) wants->push_back({Role::kSinks, 0, a.heads});
}

void mla_wants(const ModelSpec& spec, const MlaSpec& m, std::vector<Want>* wants) {
  wants->reserve(kMostWants + 2 * m.heads);
  if (m.q_rank) {
    wants->push_back({Role::kQDown, m.q_rank, spec.hidden});
    if (m.bias) wants->push_back({Role::kQDownBias, 0, m.q_rank});
    wants->push_back({Role::kQDownNorm, 0, m.q_rank});
  }
  wants->push_back(
      {Role::kQ, m.heads * (m.nope_dim + m.rope_dim), m.q_rank ? m.q_rank : spec.hidden});
  wants->push_back({Role::kKvDown, m.rank + m.rope_dim, spec.hidden});
  if (m.bias) wants->push_back({Role::kKvDownBias, 0, m.rank + m.rope_dim});
  wants->push_back({Role::kKvDownNorm, 0, m.rank});
  for (uint32_t h = 0; h < m.heads; ++h) {
    const auto head = static_cast<int>(h);
    if (m.key_up_transposed) {
      wants->push_back({Role::kKeyUpTransposed, m.rank, m.nope_dim, false, 0, head});
    } else {
      wants->push_back({Role::kKeyUp, m.nope_dim, m.rank, false, 0, head});
    }
  }
  for (uint32_t h = 0; h < m.heads; ++h)
    wants->push_back({Role::kValueUp, m.value_dim, m.rank, false, 0, static_cast<int>(h)});
  wants->push_back({Role::kO, spec.hidden, m.heads * m.value_dim});
  if (m.bias) wants->push_back({Role::kOBias, 0, spec.hidden});
  if (!m.indexer || m.indexer->shared) return;
  const IndexerSpec& x = *m.indexer;
  wants->push_back({Role::kIndexQ, x.heads * x.dim, m.q_rank ? m.q_rank : spec.hidden});
  wants->push_back({Role::kIndexK, x.dim, spec.hidden});
  wants->push_back({Role::kIndexKNorm, 0, x.dim});
  wants->push_back({Role::kIndexKNormBias, 0, x.dim});
  wants->push_back({Role::kIndexWeights, x.heads, spec.hidden});
}

void conv_wants(const ModelSpec& spec, const ShortConvSpec& c, std::vector<Want>* wants) {
  wants->push_back({Role::kMixIn, 3 * spec.hidden, spec.hidden});
  wants->push_back({Role::kConv, 0, spec.hidden * c.kernel, false, c.kernel});
  wants->push_back({Role::kMixOut, spec.hidden, spec.hidden});
  if (!c.bias) return;
  wants->push_back({Role::kMixInBias, 0, 3 * spec.hidden});
  wants->push_back({Role::kConvBias, 0, spec.hidden});
  wants->push_back({Role::kMixOutBias, 0, spec.hidden});
}

void delta_wants(const ModelSpec& spec, const DeltaSpec& d, std::vector<Want>* wants) {
  const uint32_t inner = d.value_heads * d.value_dim, channels = d.channels();
  wants->push_back({Role::kMixIn, d.fused_qkvz ? channels + inner : channels, spec.hidden});
  if (!d.fused_qkvz) wants->push_back({Role::kMixGate, inner, spec.hidden});
  wants->push_back({Role::kMixBeta, d.fused_ba ? 2 * d.value_heads : d.value_heads, spec.hidden});
  if (!d.fused_ba) wants->push_back({Role::kMixAlpha, d.value_heads, spec.hidden});
  wants->push_back({Role::kConv, 0, channels * d.kernel, false, d.kernel});
  wants->push_back({Role::kDecay, 0, d.value_heads});
  wants->push_back({Role::kTimeBias, 0, d.value_heads});
  wants->push_back({Role::kMixNorm, 0, d.value_dim});
  wants->push_back({Role::kMixOut, spec.hidden, inner});
}

void mamba_wants(const ModelSpec& spec, const Mamba2Spec& m, std::vector<Want>* wants) {
  wants->push_back({Role::kMixIn, m.columns(), spec.hidden});
  if (m.in_bias) wants->push_back({Role::kMixInBias, 0, m.columns()});
  wants->push_back({Role::kConv, 0, m.channels() * m.kernel, false, m.kernel});
  if (m.conv_bias) wants->push_back({Role::kConvBias, 0, m.channels()});
  wants->push_back({Role::kDecay, 0, m.heads});
  wants->push_back({Role::kTimeBias, 0, m.heads});
  wants->push_back({Role::kSkip, 0, m.heads});
  if (m.norm) wants->push_back({Role::kMixNorm, 0, m.inner(), false, m.inner() / m.groups});
  wants->push_back({Role::kMixOut, spec.hidden, m.inner()});
  if (m.out_bias) wants->push_back({Role::kMixOutBias, 0, spec.hidden});
}

}  // namespace

std::vector<Want> mixer_wants(const ModelSpec& spec, const LayerSpec& layer) {
  std::vector<Want> wants;
  wants.reserve(kMostWants);
  if (layer.mixer_in_norm) wants.push_back({Role::kMixerInNorm, 0, spec.hidden});
  if (layer.attention.heads) attention_wants(spec, layer.attention, &wants);
  if (layer.mla) mla_wants(spec, *layer.mla, &wants);
  if (layer.conv) conv_wants(spec, *layer.conv, &wants);
  if (layer.delta) delta_wants(spec, *layer.delta, &wants);
  if (layer.mamba) mamba_wants(spec, *layer.mamba, &wants);
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
    if (f.moe->apart) {
      wants.push_back({Role::kSharedOutNorm, 0, spec.hidden});
      wants.push_back({Role::kExpertInNorm, 0, spec.hidden});
      wants.push_back({Role::kExpertOutNorm, 0, spec.hidden});
      wants.push_back({Role::kRouterScale, 0, spec.hidden});
    }
    if (f.moe->expert_scale) wants.push_back({Role::kExpertScale, 0, f.moe->experts});
    if (f.moe->correction) wants.push_back({Role::kRouterCorrection, 0, f.moe->experts});
    if (f.moe->shared_width) {
      if (f.gated) wants.push_back({Role::kSharedGate, f.moe->shared_width, spec.hidden});
      wants.push_back({Role::kSharedUp, f.moe->shared_width, spec.hidden});
      wants.push_back({Role::kSharedDown, spec.hidden, f.moe->shared_width});
      if (f.moe->shared_gate) wants.push_back({Role::kSharedRouter, 1, spec.hidden});
    }
  } else {
    if (f.gated) wants.push_back({Role::kGate, f.width, spec.hidden});
    wants.push_back({Role::kUp, f.width, spec.hidden});
    wants.push_back({Role::kDown, spec.hidden, f.width});
    if (f.xielu && !f.xielu_values) {
      wants.push_back({Role::kActPositive, 0, 1});
      wants.push_back({Role::kActNegative, 0, 1});
      wants.push_back({Role::kActBeta, 0, 1, true});
      wants.push_back({Role::kActEps, 0, 1, true});
    }
    if (f.bias) {
      if (f.gated) wants.push_back({Role::kGateBias, 0, f.width});
      wants.push_back({Role::kUpBias, 0, f.width});
      wants.push_back({Role::kDownBias, 0, spec.hidden});
    }
  }
  if (layer.ffn_out_norm) wants.push_back({Role::kFfnOutNorm, 0, spec.hidden});
  if (spec.layer_input) {
    wants.push_back({Role::kLayerInProjection, spec.layer_input, spec.hidden});
    wants.push_back({Role::kLayerInGate, spec.layer_input, spec.hidden});
    wants.push_back({Role::kLayerInOut, spec.hidden, spec.layer_input});
    wants.push_back({Role::kLayerInOutNorm, 0, spec.hidden});
  }
  if (layer.scaled) wants.push_back({Role::kLayerScale, 0, 1});
  return wants;
}

std::vector<Want> expert_wants(const ModelSpec& spec, const FfnSpec& ffn) {
  const MoeSpec& moe = *ffn.moe;
  std::vector<Want> wants;
  wants.reserve(kMostWants);
  if (ffn.gated) wants.push_back({Role::kGate, moe.width, spec.hidden});
  wants.push_back({Role::kUp, moe.width, spec.hidden});
  wants.push_back({Role::kDown, spec.hidden, moe.width});
  if (moe.expert_bias) {
    if (ffn.gated) wants.push_back({Role::kGateBias, 0, moe.width});
    wants.push_back({Role::kUpBias, 0, moe.width});
    wants.push_back({Role::kDownBias, 0, spec.hidden});
  }
  return wants;
}

}  // namespace millrace::model
