// Mistral (one window for all layers, if any) and Ministral 3 (yarn, queries scaled with their
// position).
#include "model/families/builders.h"

namespace millrace::model {

Status build_mistral(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec));
  return apply_windows(config, spec, every_layer(config));
}

Status build_ministral3(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec, {.interleaved = config.is_gguf()}));
  const auto rope = config.is_gguf() ? config.json("rope_scaling") : config.json("rope_parameters");
  float beta = static_cast<float>(config.number("llama_4_scaling_beta", 0.0));
  const auto has = [&](const char* key) {
    return rope.is_object() && rope.contains(key) && !rope[key].is_null();
  };
  if (has("llama_4_scaling_beta")) {
    if (!rope["llama_4_scaling_beta"].is_number())
      return fail(Code::kInvalid, "config: 'llama_4_scaling_beta' must be a number");
    beta = rope["llama_4_scaling_beta"].get<float>();
  }
  if (beta != 0.0f) {
    if (!has("original_max_position_embeddings") ||
        !rope["original_max_position_embeddings"].is_number_unsigned() ||
        rope["original_max_position_embeddings"].get<uint32_t>() == 0) {
      return fail(Code::kInvalid,
                  "config: 'llama_4_scaling_beta' needs 'original_max_position_embeddings'");
    }
    for (auto& layer : spec->layers) {
      layer.attention.position_beta = beta;
      layer.attention.position_period = rope["original_max_position_embeddings"].get<uint32_t>();
    }
  }
  return apply_windows(config, spec, every_layer(config));
}

// Mistral 3: a vision model around one of the two.
Status build_mistral3(Config& config, ModelSpec* spec) {
  const bool wrapped = config.json("text_config").is_object();
  config.enter("text_config");
  const std::string inner = wrapped ? config.text("model_type", "mistral") : "mistral";
  if (inner == "ministral3") return build_ministral3(config, spec);
  if (inner != "mistral") config.fail_key("model_type", "is neither mistral nor ministral3");
  return build_mistral(config, spec);
}

void names_mistral3(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  if (gguf) return;
  accept_wrapped(rules);
  drop_vision(drops);
}

}  // namespace millrace::model
