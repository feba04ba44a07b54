// Gemma 2 and 3: norms before and after each sublayer, scaled embedding, tanh GELU, alternating
// windows. Checkpoints store norm weights minus one; GGUF files store them whole.
#include <cmath>

#include "model/families/builders.h"

namespace millrace::model {
namespace {

Status build(Config& config, ModelSpec* spec, LlamaOptions options) {
  options.act = "gelu_pytorch_tanh";
  MILLRACE_TRY(llama_like(config, spec, options));
  spec->norm = config.is_gguf() ? NormKind::kRms : NormKind::kRmsPlusOne;
  spec->embed_scale = static_cast<float>(std::sqrt(static_cast<double>(spec->hidden)));
  spec->tied = config.flag("tie_word_embeddings", true);
  spec->logit_softcap = static_cast<float>(config.number("final_logit_softcapping", 0.0));
  const double query_scalar =
      config.number("query_pre_attn_scalar", spec->layers[0].attention.key_dim);
  const auto softcap = static_cast<float>(config.number("attn_logit_softcapping", 0.0));
  for (auto& layer : spec->layers) {
    layer.mixer_out_norm = layer.ffn_out_norm = true;
    layer.ffn.act = kernels::Activation::kGeluTanh;
    layer.attention.scale = static_cast<float>(1.0 / std::sqrt(query_scalar));
    layer.attention.softcap = softcap;
  }
  return {};
}

}  // namespace

Status build_gemma2(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(build(config, spec, {}));
  // 27B divides by hidden / heads instead; GGUF files do not say so.
  if (config.is_gguf() && spec->layers.size() == 46) {
    const auto& a = spec->layers[0].attention;
    for (auto& layer : spec->layers)
      layer.attention.scale =
          1.0f / std::sqrt(static_cast<float>(spec->hidden) / static_cast<float>(a.heads));
  }
  return apply_windows(config, spec, [](uint32_t i) { return i % 2 == 0; });
}

Status build_gemma3(Config& config, ModelSpec* spec) {
  if (config.json("text_config").is_object()) {
    config.enter("text_config");
    // Published wrappers leave out what equals the class's defaults.
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, double>>{{"vocab_size", 262208},
                                                               {"num_attention_heads", 8},
                                                               {"num_key_value_heads", 4},
                                                               {"head_dim", 256},
                                                               {"max_position_embeddings", 131072},
                                                               {"query_pre_attn_scalar", 256}}) {
      if (!config.has(key)) config.put(key, value);
    }
  }
  // Two ropes: full layers with rope_theta and its scaling, sliding ones with the local base.
  config.ignore({"cache_implementation"});
  MILLRACE_TRY(build(config, spec, {.rope_theta = 1e6, .sliding_rope_theta = 1e4}));
  if (config.is_gguf() && spec->layers.size() == 62) {  // 27B, as in Gemma 2
    const auto& a = spec->layers[0].attention;
    for (auto& layer : spec->layers)
      layer.attention.scale =
          1.0f / std::sqrt(static_cast<float>(spec->hidden) / static_cast<float>(a.heads));
  }
  for (auto& layer : spec->layers) layer.attention.qk_norm = QkNorm::kHead;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    if (config.uint(key, 6) != 6 && !config.has("layer_types"))
      config.fail_key(key, "is not 6; give layer_types");
  }
  MILLRACE_TRY(config.status());
  return apply_windows(config, spec, [](uint32_t i) { return (i + 1) % 6 != 0; });
}

void names_gemma(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (gguf) return;
  const std::string layer = "model.layers.{i}.";
  put_first(rules, {{Role::kMixerOutNorm, layer + "post_attention_layernorm.weight"},
                    {Role::kFfnInNorm, layer + "pre_feedforward_layernorm.weight"},
                    {Role::kFfnOutNorm, layer + "post_feedforward_layernorm.weight"}});
}

void names_gemma3(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  names_gemma(gguf, rules, drops);
  if (gguf) return;
  accept_wrapped(rules);
  drop_vision(drops);
}

}  // namespace millrace::model
