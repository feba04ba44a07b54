// MiniMax M2: partial rope, q and k normed over all heads, corrected sigmoid router.
#include "model/families/builders.h"

namespace millrace::model {

Status build_minimax_m2(Config& config, ModelSpec* spec) {
  // The older key for the rotated part; with rope_parameters, partial_rotary_factor alone counts.
  if (config.json("rope_parameters").is_object()) {
    config.ignore({"rotary_dim"});
  } else {
    config.alias("rotary_dim", "rope_dims");
  }
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = 5e6}));
  config.expect("use_qk_norm", true);
  config.expect("qk_norm_type", "per_layer");
  config.expect("scoring_func", "sigmoid");
  config.expect("use_routing_bias", true);
  config.expect("shared_intermediate_size", 0);
  config.ignore({"use_mtp", "num_mtp_modules", "mtp_transformer_layers"});
  for (const auto& type : config.json("attn_type_list"))
    if (type != 1) config.fail_key("attn_type_list", "has a layer that is not softmax attention");
  MoeSpec moe = read_moe(config);
  sigmoid_router(config, &moe, 0.0);
  for (auto& layer : spec->layers) {
    layer.attention.qk_norm = QkNorm::kFull;
    layer.ffn.moe = moe;
  }
  return config.status();
}

void names_minimax_m2(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  names_mixtral(gguf, rules, drops);
  if (gguf) return;
  const std::string block = "model.layers.{i}.block_sparse_moe.";
  put_first(rules, {{format::Role::kRouterCorrection, block + "e_score_correction_bias"}});
  drops->push_back("model.mtp*");
}

}  // namespace millrace::model
