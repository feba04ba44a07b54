// Qwen3-Next and Qwen 3.5: three gated DeltaNet layers to one of gated attention with partial rope.
// Qwen 3.5 has the projections apart, and may be wrapped with a vision tower.
#include "model/families/builders.h"

namespace millrace::model {
namespace {

DeltaSpec read_delta(Config& config, bool grouped) {
  DeltaSpec d;
  if (config.is_gguf()) {
    d.kernel = config.uint("ssm_conv_kernel");
    d.key_dim = config.uint("ssm_state_size");
    d.key_heads = config.uint("ssm_group_count");
    d.value_heads = config.uint("ssm_time_step_rank");
    d.value_dim = config.uint("ssm_inner_size") / d.value_heads;
    d.fused_qkvz = !config.shape_of(".ssm_in.weight").empty();
    d.fused_ba = !config.shape_of(".ssm_ba.weight").empty();
    d.tiled = !grouped;  // the converter reorders the value heads of Qwen 3.5
    d.log_decay = false;
  } else {
    d.kernel = config.uint("linear_conv_kernel_dim", 4);
    d.key_dim = config.uint("linear_key_head_dim");
    d.value_dim = config.uint("linear_value_head_dim");
    d.key_heads = config.uint("linear_num_key_heads");
    d.value_heads = config.uint("linear_num_value_heads");
    d.fused_qkvz = d.fused_ba = grouped;
  }
  if (d.value_heads % d.key_heads != 0)
    config.fail_key("linear_num_value_heads", "is not a multiple of linear_num_key_heads");
  return d;
}

Status build(Config& config, ModelSpec* spec, bool grouped) {
  config.enter("text_config");
  if (!config.has("partial_rotary_factor")) config.put("partial_rotary_factor", 0.25);
  const uint32_t interval = config.uint("full_attention_interval", 4);
  MILLRACE_ASSIGN(const auto attention,
                  attention_layers(config, "linear_attention", [&](uint32_t i) {
                    return interval && (i + 1) % interval == 0;
                  }));
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = grouped ? 1e7 : 1e5}));
  // Checkpoints as published keep norms minus one; MLX adds it, and turns the convolution round.
  const auto conv = config.shape_of("linear_attn.conv1d.weight");
  if (conv.size() == 3 && conv[1] == 1) spec->norm = NormKind::kRmsPlusOne;
  const DeltaSpec delta = read_delta(config, grouped);
  for (size_t i = 0; i < attention.size(); ++i) {
    auto& layer = spec->layers[i];
    layer.attention.qk_norm = QkNorm::kHead;
    layer.attention.gate = config.flag("attn_output_gate", true);
    if (attention[i]) continue;
    layer.attention = {};
    layer.delta = delta;
  }
  // About training, caches and draft layers (whose tensors are dropped).
  config.ignore({"mlp_only_layers", "mamba_ssm_dtype", "mtp_num_hidden_layers",
                 "mtp_use_dedicated_embeddings"});
  return config.status();
}

Status experts(Config& config, ModelSpec* spec) {
  MoeSpec moe = read_moe(config);
  moe.normalize = config.flag("norm_topk_prob", true);
  moe.shared_width = config.uint("shared_expert_intermediate_size", 0);
  moe.shared_gate = moe.shared_width != 0;
  return add_experts(config, spec, moe);
}

}  // namespace

Status build_qwen3_next(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, true));
  return experts(config, spec);
}

Status build_qwen3_5(Config& config, ModelSpec* spec) { return build(config, spec, false); }

Status build_qwen3_5_moe(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, false));
  return experts(config, spec);
}

void names_qwen3_next(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  using format::Role;
  if (gguf) {
    const std::string b = "blk.{i}.";
    return put_first(rules, {{Role::kFfnInNorm, b + "post_attention_norm.weight"},
                             {Role::kMixIn, b + "attn_qkv.weight"},
                             {Role::kMixIn, b + "ssm_in.weight"},
                             {Role::kMixGate, b + "attn_gate.weight"},
                             {Role::kMixBeta, b + "ssm_ba.weight"},
                             {Role::kMixBeta, b + "ssm_beta.weight"},
                             {Role::kMixAlpha, b + "ssm_alpha.weight"},
                             {Role::kConv, b + "ssm_conv1d.weight"},
                             {Role::kDecay, b + "ssm_a"},
                             {Role::kTimeBias, b + "ssm_dt.bias"},
                             {Role::kMixNorm, b + "ssm_norm.weight"},
                             {Role::kMixOut, b + "ssm_out.weight"}});
  }
  const std::string l = "model.layers.{i}.", d = l + "linear_attn.", e = l + "mlp.experts.";
  put_first(rules, {{Role::kMixIn, d + "in_proj_qkvz.weight"},
                    {Role::kMixIn, d + "in_proj_qkv.weight"},
                    {Role::kMixGate, d + "in_proj_z.weight"},
                    {Role::kMixBeta, d + "in_proj_ba.weight"},
                    {Role::kMixBeta, d + "in_proj_b.weight"},
                    {Role::kMixAlpha, d + "in_proj_a.weight"},
                    {Role::kConv, d + "conv1d.weight"},
                    {Role::kDecay, d + "A_log"},
                    {Role::kTimeBias, d + "dt_bias"},
                    {Role::kMixNorm, d + "norm.weight"},
                    {Role::kMixOut, d + "out_proj.weight"},
                    {Role::kGate, e + "gate_up_proj", true, false, Part::kFirstHalf},
                    {Role::kUp, e + "gate_up_proj", true, false, Part::kSecondHalf},
                    {Role::kDown, e + "down_proj", true}});
  accept_wrapped(rules);
  drops->insert(drops->end(),
                {"mtp.*", "language_model.mtp.*", "model.visual.*", "visual.*", "vision_tower.*"});
}

}  // namespace millrace::model
