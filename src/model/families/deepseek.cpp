// DeepSeek V2, V3 and V3.2, GLM 5 (glm_moe_dsa), Youtu: latent attention, over positions that an
// indexer selects in the sparse ones.
#include "model/families/builders.h"

namespace millrace::model {

namespace {

Status build_sigmoid(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(read_latent_base(config, spec));
  MILLRACE_TRY(read_latent(config, spec, config.flag("rope_interleave", true)));
  dense_then_experts(config, spec, read_deepseek_moe(config));
  return config.status();
}

}  // namespace

Status build_deepseek_v3(Config& config, ModelSpec* spec) {
  // GGUF has one architecture for all: without experts Youtu, without a sigmoid V2.
  if (config.is_gguf() && config.uint("num_experts", 0) == 0) return build_youtu(config, spec);
  if (config.is_gguf() && config.uint("router_function", 1) != 2)
    return build_deepseek_v2(config, spec);
  return build_sigmoid(config, spec);
}

Status build_deepseek_v2(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(read_latent_base(config, spec));
  MILLRACE_TRY(read_latent(config, spec, true));
  config.alias("n_routed_experts", "num_experts");
  MoeSpec moe = read_moe(config);
  // Published with false only; for true the references differ (divided by the sum, scaled, or both).
  config.expect("norm_topk_prob", false);
  moe.scale = static_cast<float>(config.number("routed_scaling_factor", 1.0));
  moe.shared_width = moe.width * config.uint("n_shared_experts", 0);
  config.expect("scoring_func", "softmax");
  config.expect("router_function", 1);
  if (config.is_gguf() && config.uint("n_group", 1) > 1)
    config.put("topk_method", "group_limited_greedy");
  config.ignore({"n_group", "topk_group", "aux_loss_alpha", "seq_aux"});
  if (config.text("topk_method", "greedy") == "group_limited_greedy") {
    read_groups(config, &moe);
    moe.group_best = true;
  } else {
    config.expect("topk_method", "greedy");
  }
  dense_then_experts(config, spec, moe);
  return config.status();
}

Status build_youtu(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(read_latent_base(config, spec));
  spec->tied = config.flag("tie_word_embeddings", true);
  config.alias("rope_traditional", "rope_interleave");  // as MLX calls it
  if (config.is_gguf())                                 // written without experts too
    config.ignore({"moe_intermediate_size", "n_shared_experts", "num_dense_layers"});
  return read_latent(config, spec, config.flag("rope_interleave", true));
}

Status build_deepseek_v32(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build_sigmoid(config, spec));
  return read_indexers(config, spec, config.flag("indexer_rope_interleave", false));
}

Status build_glm_moe_dsa(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build_sigmoid(config, spec));
  return read_indexers(config, spec, config.flag("indexer_rope_interleave", true));
}

}  // namespace millrace::model
