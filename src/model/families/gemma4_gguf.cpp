// Gemma 4 in GGUF: full layers' sizes under the plain keys and sliding layers' under their own, one
// number a layer where layers differ, and the pairs that do not turn as divisors of frequencies.
#include "model/families/builders.h"

namespace millrace::model {

void gemma4_from_gguf(Config& config, Gemma4Lists* lists) {
  lists->kv_heads = per_layer(config, "num_key_value_heads");
  lists->widths = per_layer(config, "intermediate_size");
  const auto theta = config.number("rope_theta", 1e6);
  const nlohmann::json full = {{"rope_theta", theta}, {"rope_type", "default"}};
  const nlohmann::json sliding = {{"rope_theta", config.number("rope_local_base_freq", theta)},
                                  {"rope_type", "default"}};
  config.put("rope_parameters", {{"full_attention", full}, {"sliding_attention", sliding}});
  const uint32_t full_dim = config.uint("head_dim"), dim = config.uint("head_dim_swa");
  if (config.uint("value_head_dim", full_dim) != full_dim)
    config.fail_key("value_head_dim", "differs from 'head_dim'");
  if (config.uint("value_head_dim_swa", dim) != dim)
    config.fail_key("value_head_dim_swa", "differs from 'head_dim_swa'");
  if (config.uint("rope_dims", full_dim) != full_dim)
    config.fail_key("rope_dims", "differs from 'head_dim'");
  if (config.uint("rope_dims_swa", dim) != dim)
    config.fail_key("rope_dims_swa", "differs from 'head_dim_swa'");
  config.put("global_head_dim", full_dim);
  config.put("head_dim", dim);
  config.put("value_head_dim", dim);
  config.put("rope_dims", dim);
  config.put("use_double_wide_mlp", false);  // the widths say it
  config.put("enable_moe_block", config.uint("num_experts", 0) > 0);
}

void names_gemma4_gguf(NameRules* rules) {
  using format::Role;
  const std::string b = "blk.{i}.";
  put_first(rules,
            {{Role::kLayerTable, "per_layer_token_embd.weight"},
             {Role::kLayerInProjection, "per_layer_model_proj.weight", false, false, Part::kLayer},
             {Role::kLayerInNorm, "per_layer_proj_norm.weight"},
             {Role::kLayerInGate, b + "inp_gate.weight"},
             {Role::kLayerInOut, b + "proj.weight"},
             {Role::kLayerInOutNorm, b + "post_norm.weight"},
             {Role::kLayerScale, b + "layer_output_scale.weight"},
             {Role::kSharedOutNorm, b + "post_ffw_norm_1.weight"},
             {Role::kExpertInNorm, b + "pre_ffw_norm_2.weight"},
             {Role::kExpertOutNorm, b + "post_ffw_norm_2.weight"},
             {Role::kRouterScale, b + "ffn_gate_inp.scale"},
             {Role::kExpertScale, b + "ffn_down_exps.scale"},
             {Role::kSharedGate, b + "ffn_gate.weight"},
             {Role::kSharedUp, b + "ffn_up.weight"},
             {Role::kSharedDown, b + "ffn_down.weight"}});
}

}  // namespace millrace::model
