// Seed-OSS: llama with biases on q, k and v, and one on the output that has a key of its own.
#include "model/families/builders.h"

namespace millrace::model {

Status build_seed_oss(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec));
  config.ignore({"residual_dropout"});
  const bool out_bias = config.flag("attention_out_bias", false);
  if (config.is_gguf()) return {};
  for (auto& layer : spec->layers) layer.attention.o_bias = out_bias;
  return {};
}

void names_seed_oss(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (gguf) put_first(rules, {{Role::kFfnInNorm, "blk.{i}.post_attention_norm.weight"}});
}

}  // namespace millrace::model
