// Nemotron-H: every layer is one sublayer - Mamba-2, attention without positions, a relu^2 MLP, or
// relu^2 experts.
#include <algorithm>

#include "model/families/builders.h"

namespace millrace::model {
namespace {

// 'M' Mamba-2, '*' attention, '-' MLP, 'E' experts; or '?' for a name that is none of them.
Expected<std::string> kinds_of(Config& config) {
  std::string kinds = config.text("hybrid_override_pattern", "");
  const auto types = config.json("layers_block_type");
  if (!kinds.empty()) return kinds;
  for (const auto& entry : types) {
    const auto type = entry.is_string() ? entry.get<std::string>() : std::string();
    if (type == "mamba" || type == "linear_attention") {
      kinds += 'M';
    } else if (type == "attention" || type == "full_attention") {
      kinds += '*';
    } else if (type == "mlp" || type == "moe") {
      kinds += type == "mlp" ? '-' : 'E';
    } else {
      return fail(Code::kUnsupported, "config: layers_block_type {} is not supported",
                  entry.dump().substr(0, 60));
    }
  }
  if (!config.is_gguf()) return kinds;
  const auto kv_heads = per_layer(config, "num_key_value_heads");
  const auto widths = per_layer(config, "intermediate_size");
  const bool moe = config.uint("num_experts", 0) > 0;
  for (size_t i = 0; i < kv_heads.size(); ++i)
    kinds += kv_heads[i] ? '*' : widths[i] == 0 ? 'M' : moe ? 'E' : '-';
  return kinds;
}

Expected<MoeSpec> read_experts(Config& config) {
  config.alias("n_routed_experts", "num_experts");
  config.expect("moe_latent_size", 0);
  MoeSpec moe = read_moe(config);
  sigmoid_router(config, &moe, 1e-20);
  if (config.uint("n_shared_experts", 1))
    moe.shared_width = config.is_gguf() ? config.uint("shared_expert_intermediate_size", 0)
                                        : config.uint("moe_shared_expert_intermediate_size", 0);
  MILLRACE_TRY(config.status());
  return moe;
}

}  // namespace

Status build_nemotron_h(Config& config, ModelSpec* spec) {
  config.alias("layer_norm_epsilon", "rms_norm_eps");
  config.alias("norm_eps", "rms_norm_eps");
  config.alias("attention_head_dim", "head_dim");
  MILLRACE_ASSIGN(const std::string kinds, kinds_of(config));
  config.put("num_hidden_layers", kinds.size());
  MILLRACE_TRY(llama_like(config, spec));
  MILLRACE_ASSIGN(Mamba2Spec mamba, read_mamba2(config));
  // transformers' plain path clips to this one (its kernels do not, and GGUF files do not say it).
  mamba.least_dt =
      std::max(mamba.least_dt, static_cast<float>(config.number("time_step_min", 0.0)));
  spec->ropes.clear();
  for (size_t i = 0; i < kinds.size(); ++i) {
    auto& layer = spec->layers[i];
    layer.attention.rope = -1;
    layer.ffn.act = kernels::Activation::kRelu2;
    layer.ffn.gated = false;
    if (kinds[i] == 'M') layer.mamba = mamba;
    if (kinds[i] != '*') layer.attention = {};
    if (kinds[i] != '-') layer.ffn.width = 0;
    if (kinds[i] != 'E') continue;
    MILLRACE_ASSIGN(layer.ffn.moe, read_experts(config));
  }
  if (kinds.find_first_not_of("M*-E") != std::string::npos)
    config.fail_key("hybrid_override_pattern", "has a letter other than M, *, - and E");
  config.expect("mlp_hidden_act", "relu2");
  config.expect("mamba_hidden_act", "silu");
  // Training, kernels and draft layers.
  config.ignore({"chunk_size",
                 "expand",
                 "mamba_ssm_cache_dtype",
                 "moe_shared_expert_overlap",
                 "mtp_layers_block_type",
                 "mtp_hybrid_override_pattern",
                 "num_logits_to_keep",
                 "num_nextn_predict_layers",
                 "rescale_prenorm_residual",
                 "residual_in_fp32",
                 "time_step_floor",
                 "time_step_max",
                 "use_mamba_kernels",
                 "n_group",
                 "topk_group",
                 "norm_topk_prob",
                 "routed_scaling_factor",
                 "n_routed_experts",
                 "num_experts_per_tok",
                 "moe_intermediate_size",
                 "moe_shared_expert_intermediate_size",
                 "n_shared_experts"});
  return config.status();
}

void names_nemotron_h(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  using format::Role;
  names_mamba2(gguf, gguf ? "" : "backbone.layers.{i}.mixer.", rules);
  if (gguf) {
    return put_first(rules, {{Role::kFfnInNorm, "blk.{i}.attn_norm.weight"}});
  }
  const std::string l = "backbone.layers.{i}.", m = l + "mixer.", s = m + "shared_experts.";
  put_first(rules, {{Role::kEmbedding, "backbone.embeddings.weight"},
                    {Role::kFinalNorm, "backbone.norm_f.weight"},
                    {Role::kMixerInNorm, l + "norm.weight"},
                    {Role::kFfnInNorm, l + "norm.weight"},
                    {Role::kRouter, m + "gate.weight"},
                    {Role::kRouterCorrection, m + "gate.e_score_correction_bias"},
                    {Role::kUp, m + "experts.{e}.up_proj.weight"},
                    {Role::kDown, m + "experts.{e}.down_proj.weight"},
                    {Role::kUp, m + "experts.up_proj", true},
                    {Role::kDown, m + "experts.down_proj", true},
                    {Role::kUp, m + "switch_mlp.fc1.weight", true},
                    {Role::kDown, m + "switch_mlp.fc2.weight", true},
                    {Role::kSharedUp, s + "up_proj.weight"},
                    {Role::kSharedDown, s + "down_proj.weight"}});
  put_first(rules, attention_names(m));
  put_first(rules, dense_names(m));
  drops->push_back("mtp.*");
}

}  // namespace millrace::model
