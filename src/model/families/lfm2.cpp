// LFM2: gated short convolutions with attention in between; the mixture of experts starts after a
// few dense layers.
#include <algorithm>

#include "model/families/builders.h"

namespace millrace::model {
namespace {

// Older configs give the width before it is cut to two thirds and rounded.
void adjust_width(Config& config) {
  config.alias("block_ff_dim", "intermediate_size");
  const uint32_t multiple = std::max(1u, config.uint("block_multiple_of", 256));
  const double factor = config.number("block_ffn_dim_multiplier", 1.0);
  if (!config.flag("block_auto_adjust_ff_dim", false)) return;
  auto width = static_cast<uint32_t>(2.0 * config.uint("intermediate_size") / 3.0);
  width = static_cast<uint32_t>(factor * width);
  config.put("intermediate_size", (width + multiple - 1) / multiple * multiple);
}

}  // namespace

Status build_lfm2(Config& config, ModelSpec* spec) {
  config.alias("norm_eps", "rms_norm_eps");
  config.alias("block_norm_eps", "rms_norm_eps");
  config.alias("tie_embedding", "tie_word_embeddings");
  config.alias("theta", "rope_theta");
  if (!config.has("tie_word_embeddings")) config.put("tie_word_embeddings", true);
  // Said twice, or about training.
  config.ignore({"block_dim", "block_mlp_init_scale", "block_out_init_scale", "num_heads",
                 "block_use_xavier_init", "conv_use_xavier_init", "conv_dim", "conv_dim_out"});
  for (const char* key : {"block_use_swiglu", "use_pos_enc"}) config.expect(key, true);
  adjust_width(config);
  const auto listed = config.json("full_attn_idxs");
  const auto kv_heads = per_layer(config, "num_key_value_heads");
  MILLRACE_ASSIGN(const auto attention, attention_layers(config, "conv", [&](uint32_t i) {
                    if (config.is_gguf()) return i < kv_heads.size() && kv_heads[i] > 0;
                    return std::find(listed.begin(), listed.end(), i) != listed.end();
                  }));
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = 1e6}));
  const ShortConvSpec conv{config.uint("conv_L_cache"), config.flag("conv_bias", false)};
  for (size_t i = 0; i < attention.size(); ++i) {
    auto& layer = spec->layers[i];
    layer.attention.qk_norm = QkNorm::kHead;
    if (attention[i]) continue;
    layer.attention = {};
    layer.conv = conv;
  }
  return config.status();
}

Status build_lfm2_moe(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build_lfm2(config, spec));
  MoeSpec moe = read_moe(config);
  sigmoid_router(config, &moe, 1e-6);
  moe.correction = config.flag("use_expert_bias", true);
  for (size_t i = config.uint("num_dense_layers", 0); i < spec->layers.size(); ++i)
    spec->layers[i].ffn.moe = moe;
  return config.status();
}

void names_lfm2(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  const std::string l = gguf ? "blk.{i}." : "model.layers.{i}.", f = l + "feed_forward.";
  const std::string conv = l + (gguf ? "shortconv." : "conv.");
  put_first(rules,
            {{Role::kFinalNorm, gguf ? "token_embd_norm.weight" : "model.embedding_norm.weight"},
             {Role::kMixIn, conv + "in_proj.weight"},
             {Role::kMixInBias, conv + "in_proj.bias"},
             {Role::kConv, conv + "conv.weight"},
             {Role::kConvBias, conv + "conv.bias"},
             {Role::kMixOut, conv + "out_proj.weight"},
             {Role::kMixOutBias, conv + "out_proj.bias"}});
  if (gguf) return;
  put_first(rules, {{Role::kMixerInNorm, l + "operator_norm.weight"},
                    {Role::kFfnInNorm, l + "ffn_norm.weight"},
                    {Role::kQNorm, l + "self_attn.q_layernorm.weight"},
                    {Role::kKNorm, l + "self_attn.k_layernorm.weight"},
                    {Role::kO, l + "self_attn.out_proj.weight"},
                    {Role::kRouter, f + "gate.weight"},
                    {Role::kRouterCorrection, f + "expert_bias"}});
  const struct {
    Role role;
    std::string plain, mlx;
  } projections[] = {{Role::kGate, "w1", "gate_proj"},
                     {Role::kUp, "w3", "up_proj"},
                     {Role::kDown, "w2", "down_proj"}};
  for (const auto& p : projections) {
    put_first(rules, {{p.role, f + p.plain + ".weight"},
                      {p.role, f + p.mlx + ".weight"},
                      {p.role, f + "experts.{e}." + p.plain + ".weight"},
                      {p.role, f + "switch_mlp." + p.mlx + ".weight", true}});
  }
}

}  // namespace millrace::model
