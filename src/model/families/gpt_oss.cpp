// gpt-oss: alternating windows (sliding first), attention sinks, biases everywhere, clamped swiglu
// experts.
#include "model/families/builders.h"

namespace millrace::model {

Status build_gpt_oss(Config& config, ModelSpec* spec) {
  // GGUF loses "truncate": the published models do not round yarn's correction range.
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = 150000.0}));
  MoeSpec moe = read_moe(config);
  moe.score = RouterScore::kSoftmaxSelected;
  moe.router_bias = moe.expert_bias = true;
  for (auto& layer : spec->layers) {
    auto& a = layer.attention;
    a.q_bias = a.k_bias = a.v_bias = a.o_bias = a.sinks = true;
    layer.ffn.act = kernels::Activation::kSwigluOai;
    layer.ffn.alpha = 1.702f;
    layer.ffn.limit = static_cast<float>(config.number("swiglu_limit", 7.0));
    layer.ffn.moe = moe;
  }
  config.ignore({"experts_per_token"});
  return apply_windows(config, spec, [](uint32_t i) { return i % 2 == 0; });
}

void names_gpt_oss(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (gguf) {
    put_first(rules, {{Role::kFfnInNorm, "blk.{i}.post_attention_norm.weight"}});
    return;
  }
  const std::string experts = "model.layers.{i}.mlp.experts.";
  put_first(rules, {
                       // bf16: [experts, inner, outputs], gate and up interleaved.
                       {Role::kGate, experts + "gate_up_proj", true, true, Part::kEven},
                       {Role::kUp, experts + "gate_up_proj", true, true, Part::kOdd},
                       {Role::kDown, experts + "down_proj", true, true},
                       // mxfp4: [experts, outputs, groups, 16] with scales beside it.
                       {Role::kGate, experts + "gate_up_proj_blocks", true, false, Part::kEven},
                       {Role::kUp, experts + "gate_up_proj_blocks", true, false, Part::kOdd},
                       {Role::kDown, experts + "down_proj_blocks", true},
                       {Role::kGateBias, experts + "gate_up_proj_bias", true, false, Part::kEven},
                       {Role::kUpBias, experts + "gate_up_proj_bias", true, false, Part::kOdd},
                       {Role::kDownBias, experts + "down_proj_bias", true},
                   });
}

}  // namespace millrace::model
