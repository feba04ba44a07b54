// Qwen 2 (biases on q, k, v), Qwen 3 (norms on q and k), and their mixtures of experts.
#include "model/families/builders.h"

namespace millrace::model {
namespace {

Status build(Config& config, ModelSpec* spec, double theta) {
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = theta}));
  const bool windows = config.flag("use_sliding_window", false);
  const bool typed = config.has("layer_types");
  config.ignore({"sliding_window"});
  if (!windows) return {};
  if (typed) return apply_windows(config, spec);
  // Older configs: layers from max_window_layers on are sliding.
  const uint32_t first = config.uint("max_window_layers", 0),
                 window = config.uint("sliding_window", 0);
  for (uint32_t i = first; i < spec->layers.size(); ++i) spec->layers[i].attention.window = window;
  return {};
}

void qkv_bias(ModelSpec* spec) {
  for (auto& layer : spec->layers)
    layer.attention.q_bias = layer.attention.k_bias = layer.attention.v_bias = true;
}

void head_norms(ModelSpec* spec) {
  for (auto& layer : spec->layers) layer.attention.qk_norm = QkNorm::kHead;
}

}  // namespace

Status build_qwen2(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, 1e6));
  qkv_bias(spec);
  return {};
}

Status build_qwen2_moe(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, 1e6));
  if (config.flag("qkv_bias", true)) qkv_bias(spec);
  MoeSpec moe = read_moe(config);
  moe.normalize = config.flag("norm_topk_prob", false);
  moe.shared_width = config.uint("shared_expert_intermediate_size", 0);
  moe.shared_gate = moe.shared_width != 0;
  return add_experts(config, spec, moe);
}

Status build_qwen3(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, 1e6));
  head_norms(spec);
  return {};
}

Status build_qwen3_moe(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, 1e6));
  head_norms(spec);
  MoeSpec moe = read_moe(config);
  moe.normalize = config.flag("norm_topk_prob", config.is_gguf());
  return add_experts(config, spec, moe);
}

}  // namespace millrace::model
