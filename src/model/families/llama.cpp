// Llama 1-3 and everything that kept its shape. GGUF files of this architecture store q and k
// permuted for interleaved rotation, and also carry Mixtral (then there are experts).
#include "model/families/builders.h"

namespace millrace::model {

Status build_llama(Config& config, ModelSpec* spec) {
  const bool moe = config.is_gguf() && config.uint("num_experts", 0) > 0;
  MILLRACE_TRY(llama_like(
      config, spec, {.interleaved = config.is_gguf() || config.flag("rope_traditional", false)}));
  if (moe) {
    MoeSpec experts = read_moe(config);
    experts.score = RouterScore::kSoftmaxSelected;
    for (auto& layer : spec->layers) layer.ffn.moe = experts;
  }
  // A full-attention window the length of the context is none.
  if (config.has("layer_types") || config.has("sliding_window")) return apply_windows(config, spec);
  return {};
}

}  // namespace millrace::model
