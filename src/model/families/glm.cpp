// GLM 4 (dense): partial interleaved rope, biases on q, k and v, fused gate and up; the 0414 models
// (glm4) add norms on the sublayers' outputs. GLM 4.5 and later (glm4_moe): DeepSeek's experts.
#include "model/families/builders.h"

namespace millrace::model {
namespace {

Status build(Config& config, ModelSpec* spec, bool interleaved) {
  MILLRACE_TRY(llama_like(config, spec, {.interleaved = interleaved, .partial = 0.5}));
  for (auto& layer : spec->layers) layer.attention.o_bias = false;
  return {};
}

}  // namespace

Status build_glm(Config& config, ModelSpec* spec) { return build(config, spec, true); }

Status build_glm4(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, true));
  drop_predicted(config, spec);
  for (auto& layer : spec->layers) layer.mixer_out_norm = layer.ffn_out_norm = true;
  return {};
}

Status build_glm4_moe(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, false));
  drop_predicted(config, spec);
  const bool norm = config.is_gguf() ? !config.shape_of("blk.0.attn_q_norm.weight").empty()
                                     : config.flag("use_qk_norm", false);
  for (auto& layer : spec->layers) layer.attention.qk_norm = norm ? QkNorm::kHead : QkNorm::kNone;
  dense_then_experts(config, spec, read_deepseek_moe(config));
  return config.status();
}

void names_glm(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (!gguf) return;
  put_first(rules, {{Role::kGate, "blk.{i}.ffn_up.weight", false, false, Part::kFirstHalf},
                    {Role::kUp, "blk.{i}.ffn_up.weight", false, false, Part::kSecondHalf}});
}

void names_glm4(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  using format::Role;
  names_glm(gguf, rules, drops);
  if (gguf) return drops->push_back("blk.{beyond}");
  const std::string layer = "model.layers.{i}.";
  put_first(rules, {{Role::kMixerOutNorm, layer + "post_self_attn_layernorm.weight"},
                    {Role::kFfnOutNorm, layer + "post_mlp_layernorm.weight"}});
}

void names_glm4_moe(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  using format::Role;
  drops->push_back(gguf ? "blk.{beyond}" : "model.layers.{beyond}");
  if (gguf) put_first(rules, {{Role::kFfnInNorm, "blk.{i}.post_attention_norm.weight"}});
}

}  // namespace millrace::model
