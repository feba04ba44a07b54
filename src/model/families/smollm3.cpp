// SmolLM3: llama with every fourth layer without positions.
#include "model/families/builders.h"

namespace millrace::model {

Status build_smollm3(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec, {.interleaved = config.is_gguf(), .rope_theta = 2e6}));
  const auto rope_layers =
      config.json("no_rope_layers");  // 1: has rope, 0: none (the key's name says the opposite)
  const uint32_t interval = config.uint("no_rope_layer_interval", 4);
  if (rope_layers.is_array() && rope_layers.size() != spec->layers.size()) {
    config.fail_key("no_rope_layers", "does not list every layer");
  }
  MILLRACE_TRY(config.status());
  for (uint32_t i = 0; i < spec->layers.size(); ++i) {
    const bool none =
        rope_layers.is_array() ? rope_layers[i] == 0 : interval > 0 && (i + 1) % interval == 0;
    if (none) spec->layers[i].attention.rope = -1;
  }
  const bool windows = config.flag("use_sliding_window", false);
  if (windows) return apply_windows(config, spec);
  config.ignore({"layer_types", "sliding_window"});
  return {};
}

}  // namespace millrace::model
