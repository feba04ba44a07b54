#include "model/names.h"

namespace millrace::model {
namespace {

using format::Role;

struct Projection {
  Role weight, bias;
  const char* name;
};

NameRules projections(const std::string& prefix, std::initializer_list<Projection> list) {
  NameRules rules;
  for (const Projection& p : list) {
    rules.push_back({p.weight, prefix + p.name + ".weight"});
    rules.push_back({p.bias, prefix + p.name + ".bias"});
  }
  return rules;
}

void append(NameRules* to, const NameRules& more) {
  to->insert(to->end(), more.begin(), more.end());
}

NameRules hugging_face_names() {
  const std::string layer = "model.layers.{i}.";
  const std::string attention = layer + "self_attn.";
  NameRules rules = {
      {Role::kEmbedding, "model.embed_tokens.weight"},
      {Role::kHead, "lm_head.weight"},
      {Role::kFinalNorm, "model.norm.weight"},
      {Role::kMixerInNorm, layer + "input_layernorm.weight"},
      {Role::kFfnInNorm, layer + "post_attention_layernorm.weight"},
      {Role::kQNorm, attention + "q_norm.weight"},
      {Role::kKNorm, attention + "k_norm.weight"},
      {Role::kSinks, attention + "sinks"},
      {Role::kQ, attention + "qkv_proj.weight", false, false, Part::kQ},
      {Role::kK, attention + "qkv_proj.weight", false, false, Part::kK},
      {Role::kV, attention + "qkv_proj.weight", false, false, Part::kV},
      {Role::kGate, layer + "mlp.gate_up_proj.weight", false, false, Part::kFirstHalf},
      {Role::kUp, layer + "mlp.gate_up_proj.weight", false, false, Part::kSecondHalf},
      {Role::kRouter, layer + "mlp.gate.weight"},
      {Role::kRouterCorrection, layer + "mlp.gate.e_score_correction_bias"},
      {Role::kRouter, layer + "mlp.router.weight"},
      {Role::kRouterBias, layer + "mlp.router.bias"},
      {Role::kSharedRouter, layer + "mlp.shared_expert_gate.weight"},
  };
  append(&rules, attention_names(attention));
  struct Mlp {
    Role weight, bias, shared;
    const char* name;
  };
  for (const auto& p : {Mlp{Role::kGate, Role::kGateBias, Role::kSharedGate, "gate_proj"},
                        Mlp{Role::kUp, Role::kUpBias, Role::kSharedUp, "up_proj"},
                        Mlp{Role::kDown, Role::kDownBias, Role::kSharedDown, "down_proj"}}) {
    const std::string name = p.name;
    rules.push_back({p.shared, layer + "mlp.shared_expert." + name + ".weight"});
    rules.push_back({p.shared, layer + "mlp.shared_experts." + name + ".weight"});
    for (const std::string stack : {"mlp.switch_mlp.", "mlp.experts."}) {
      rules.push_back({p.weight, layer + stack + name + ".weight", true});
      rules.push_back({p.bias, layer + stack + name + ".bias", true});
    }
    rules.push_back({p.weight, layer + "mlp.experts.{e}." + name + ".weight"});
  }
  append(&rules, dense_names(layer + "mlp."));
  return rules;
}

NameRules gguf_names() {
  const std::string b = "blk.{i}.";
  NameRules rules = {
      {Role::kEmbedding, "token_embd.weight"},
      {Role::kHead, "output.weight"},
      {Role::kFinalNorm, "output_norm.weight"},
      {Role::kRopeFactors, "rope_freqs.weight"},
      {Role::kMixerInNorm, b + "attn_norm.weight"},
      {Role::kMixerOutNorm, b + "post_attention_norm.weight"},
      {Role::kFfnInNorm, b + "ffn_norm.weight"},
      {Role::kFfnOutNorm, b + "post_ffw_norm.weight"},
      {Role::kQNorm, b + "attn_q_norm.weight"},
      {Role::kKNorm, b + "attn_k_norm.weight"},
      {Role::kSinks, b + "attn_sinks.weight"},
      {Role::kQ, b + "attn_qkv.weight", false, false, Part::kQ},
      {Role::kK, b + "attn_qkv.weight", false, false, Part::kK},
      {Role::kV, b + "attn_qkv.weight", false, false, Part::kV},
      {Role::kQBias, b + "attn_qkv.bias", false, false, Part::kQ},
      {Role::kKBias, b + "attn_qkv.bias", false, false, Part::kK},
      {Role::kVBias, b + "attn_qkv.bias", false, false, Part::kV},
      {Role::kRouter, b + "ffn_gate_inp.weight"},
      {Role::kRouterBias, b + "ffn_gate_inp.bias"},
      {Role::kRouterCorrection, b + "exp_probs_b.bias"},
      {Role::kGate, b + "ffn_gate_up_exps.weight", true, false, Part::kFirstHalf},
      {Role::kUp, b + "ffn_gate_up_exps.weight", true, false, Part::kSecondHalf},
      {Role::kSharedRouter, b + "ffn_gate_inp_shexp.weight"},
  };
  append(&rules, projections(b, {{Role::kQ, Role::kQBias, "attn_q"},
                                 {Role::kK, Role::kKBias, "attn_k"},
                                 {Role::kV, Role::kVBias, "attn_v"},
                                 {Role::kO, Role::kOBias, "attn_output"}}));
  struct Mlp {
    Role weight, bias, shared;
    const char* name;
  };
  for (const auto& p : {Mlp{Role::kGate, Role::kGateBias, Role::kSharedGate, "ffn_gate"},
                        Mlp{Role::kUp, Role::kUpBias, Role::kSharedUp, "ffn_up"},
                        Mlp{Role::kDown, Role::kDownBias, Role::kSharedDown, "ffn_down"}}) {
    const std::string name = b + p.name;
    rules.push_back({p.weight, name + "_exps.weight", true});
    rules.push_back({p.bias, name + "_exps.bias", true});
    rules.push_back({p.weight, name + ".{e}.weight"});  // files older than stacked experts
    rules.push_back({p.shared, name + "_shexp.weight"});
    rules.push_back({p.weight, name + ".weight"});
    rules.push_back({p.bias, name + ".bias"});
  }
  return rules;
}

}  // namespace

NameRules attention_names(const std::string& prefix) {
  return projections(prefix, {{Role::kQ, Role::kQBias, "q_proj"},
                              {Role::kK, Role::kKBias, "k_proj"},
                              {Role::kV, Role::kVBias, "v_proj"},
                              {Role::kO, Role::kOBias, "o_proj"}});
}

NameRules dense_names(const std::string& prefix) {
  return projections(prefix, {{Role::kGate, Role::kGateBias, "gate_proj"},
                              {Role::kUp, Role::kUpBias, "up_proj"},
                              {Role::kDown, Role::kDownBias, "down_proj"}});
}

NameRules default_names(bool gguf) { return gguf ? gguf_names() : hugging_face_names(); }

std::vector<std::string> default_drops(bool gguf) {
  if (gguf) return {};
  return {"*.rotary_emb.inv_freq", "*.self_attn.bias", "*.self_attn.masked_bias"};
}

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t at = star; at <= name.size(); ++at) {
    if (matches(rest, name.substr(at))) return true;
  }
  return false;
}

std::string expand(const std::string& pattern, int layer, int expert) {
  std::string out = pattern;
  if (auto at = out.find("{i}"); at != std::string::npos) out.replace(at, 3, std::to_string(layer));
  if (auto at = out.find("{e}"); at != std::string::npos)
    out.replace(at, 3, std::to_string(expert));
  return out;
}

}  // namespace millrace::model
