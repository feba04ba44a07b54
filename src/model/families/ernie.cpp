// Ernie 4.5 (dense) and Helium: llama with interleaved rope; Ernie may have biases everywhere.
#include "model/families/builders.h"

namespace millrace::model {

Status build_ernie4_5(Config& config, ModelSpec* spec) {
  config.alias("use_bias", "attention_bias");
  config.alias("use_bias", "mlp_bias");
  config.expect("compression_ratio", 1.0);
  config.expect("use_rmsnorm", true);
  config.ignore({"fuse_rms_norm"});
  return llama_like(config, spec, {.interleaved = true, .rope_theta = 5e5});
}

Status build_helium(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec, {.interleaved = true}));
  for (auto& layer : spec->layers) layer.attention.o_bias = false;
  return {};
}

}  // namespace millrace::model
