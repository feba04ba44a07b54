// Granite: llama with four multipliers.
#include "model/families/builders.h"

namespace millrace::model {

Status build_granite(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec, {.interleaved = config.is_gguf()}));
  spec->embed_scale = static_cast<float>(config.number("embedding_multiplier", 1.0));
  spec->residual_scale = static_cast<float>(config.number("residual_multiplier", 1.0));
  const double divisor = config.number("logits_scaling", 1.0);
  if (!(divisor > 0)) config.fail_key("logits_scaling", "must be positive");
  spec->logit_scale = static_cast<float>(1.0 / divisor);
  for (auto& layer : spec->layers)
    layer.attention.scale = static_cast<float>(config.number("attention_multiplier", 1.0));
  return config.status();
}

}  // namespace millrace::model
