// OLMo 2 and 3: norms on the sublayers' outputs only, q and k normed over all heads; OLMo 3 adds
// windows.
#include "model/families/builders.h"

namespace millrace::model {
namespace {

void post_norm(ModelSpec* spec) {
  for (auto& layer : spec->layers) {
    layer.mixer_in_norm = layer.ffn_in_norm = false;
    layer.mixer_out_norm = layer.ffn_out_norm = true;
    layer.attention.qk_norm = QkNorm::kFull;
  }
}

}  // namespace

Status build_olmo2(Config& config, ModelSpec* spec) {
  // GGUF files of OLMo 3 carry this architecture name too, with a window.
  const bool windows = config.is_gguf() && config.has("sliding_window");
  MILLRACE_TRY(llama_like(
      config, spec, {.sliding_rope_theta = windows ? config.number("rope_theta", 10000.0) : 0.0}));
  post_norm(spec);
  if (windows) return apply_windows(config, spec, [](uint32_t i) { return (i + 1) % 4 != 0; });
  return {};
}

Status build_olmo3(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec));
  post_norm(spec);
  return apply_windows(config, spec, [](uint32_t i) { return (i + 1) % 4 != 0; });
}

void names_olmo2(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (gguf) return;
  const std::string layer = "model.layers.{i}.";
  put_first(rules, {{Role::kMixerOutNorm, layer + "post_attention_layernorm.weight"},
                    {Role::kFfnOutNorm, layer + "post_feedforward_layernorm.weight"}});
}

}  // namespace millrace::model
