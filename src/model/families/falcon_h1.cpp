// Falcon-H1: attention and Mamba-2 side by side in every layer, with a multiplier at each joint
// (GGUF files have them multiplied into the weights).
#include <algorithm>
#include <array>
#include <span>

#include "model/families/builders.h"

namespace millrace::model {
namespace {

// Multipliers of a list, 1 where there is none.
Status multipliers(Config& config, const char* key, std::span<float> out) {
  const auto list = config.json(key);
  std::fill(out.begin(), out.end(), 1.0f);
  if (list.is_null()) return {};
  if (!list.is_array() || list.size() != out.size())
    return fail(Code::kInvalid, "config: '{}' must list {} numbers", key, out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (!list[i].is_number())
      return fail(Code::kInvalid, "config: '{}'[{}] must be a number", key, i);
    out[i] = list[i].get<float>();
  }
  return {};
}

}  // namespace

Status build_falcon_h1(Config& config, ModelSpec* spec) {
  for (const auto& [other, key] : {std::pair{"mamba_n_heads", "mamba_num_heads"},
                                   {"mamba_d_head", "mamba_head_dim"},
                                   {"mamba_d_state", "ssm_state_size"},
                                   {"mamba_n_groups", "n_groups"},
                                   {"mamba_d_conv", "conv_kernel"},
                                   {"mamba_conv_bias", "use_conv_bias"}})
    config.alias(other, key);
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = 1e11}));
  MILLRACE_ASSIGN(Mamba2Spec mamba, read_mamba2(config));
  mamba.norm = config.is_gguf() ? !config.shape_of(".ssm_norm.weight").empty()
                                : config.flag("mamba_rms_norm", false);
  mamba.norm_before_gate = !config.is_gguf() && config.flag("mamba_norm_before_gate", true);
  mamba.out_bias = config.flag("projectors_bias", false);
  config.expect("mamba_use_mlp", true);
  config.expect("attn_layer_indices", nullptr);
  config.ignore({"mamba_d_ssm", "mamba_expand", "mamba_chunk_size", "num_logits_to_keep"});

  const auto number = [&](const char* key) { return static_cast<float>(config.number(key, 1.0)); };
  spec->embed_scale = number("embedding_multiplier");
  spec->logit_scale = number("lm_head_multiplier");
  const float in = number("attention_in_multiplier"), ssm_in = number("ssm_in_multiplier");
  if ((in != 1.0f && spec->layers[0].attention.q_bias) || (ssm_in != 1.0f && mamba.in_bias))
    config.fail_key("attention_in_multiplier", "or ssm_in_multiplier meets a bias behind it");
  MILLRACE_TRY(multipliers(config, "ssm_multipliers", mamba.in_scale));
  for (float& scale : mamba.in_scale) scale *= ssm_in;
  mamba.out_scale = number("ssm_out_multiplier");
  std::array<float, 2> mlp;
  MILLRACE_TRY(multipliers(config, "mlp_multipliers", mlp));
  for (auto& layer : spec->layers) {
    // Attention is linear in v, and its scores in q and in k.
    layer.attention.scale *= in * in * number("key_multiplier");
    layer.attention.out_scale = in * number("attention_out_multiplier");
    layer.mamba = mamba;
    layer.ffn.gate_scale = mlp[0];
    layer.ffn.out_scale = mlp[1];
  }
  return config.status();
}

void names_falcon_h1(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  names_mamba2(gguf, gguf ? "" : "model.layers.{i}.mamba.", rules);
  // The converter writes this one name without ".weight".
  if (gguf) return put_first(rules, {{Role::kFfnInNorm, "blk.{i}.ffn_norm"}});
  const std::string l = "model.layers.{i}.";
  put_first(rules, {{Role::kFinalNorm, "model.final_layernorm.weight"},
                    {Role::kFfnInNorm, l + "pre_ff_layernorm.weight"}});
  put_first(rules, dense_names(l + "feed_forward."));
}

}  // namespace millrace::model
