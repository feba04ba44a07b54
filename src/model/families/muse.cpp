// Muse Glimmer: embeddings normed, norms around both sublayers, queries and keys normed without
// weights, a gate on the attention's output; every fourth layer, counted from the last, sees all
// positions and has no rope.
#include "model/families/builders.h"

namespace millrace::model {

Status build_muse_glimmer(Config& config, ModelSpec* spec) {
  config.enter("text_config");
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = 5e5}));
  spec->norm = NormKind::kRmsPlusOne;
  spec->out_norm_eps = static_cast<float>(config.number("post_norm_eps", 1e-8));
  spec->final_norm_plain = spec->embed_norm = true;
  spec->logit_scale = static_cast<float>(config.number("output_multiplier", 1.0));
  spec->logit_softcap = static_cast<float>(config.number("final_logit_softcapping", 0.0));
  const auto layers = static_cast<uint32_t>(spec->layers.size());
  const auto types = config.json("layer_types"), thetas = config.json("layer_rope_theta");
  const uint32_t window = config.uint("sliding_window", 2048);
  if ((types.is_array() && types.size() != layers) ||
      (thetas.is_array() && thetas.size() != layers))
    return fail(Code::kInvalid,
                "config: 'layer_types' and 'layer_rope_theta' must list every layer");
  for (uint32_t i = 0; i < layers; ++i) {
    auto& layer = spec->layers[i];
    layer.mixer_out_norm = layer.ffn_out_norm = true;
    auto& a = layer.attention;
    const bool full = types.is_array() ? types[i] == "full_attention" : (layers - 1 - i) % 4 == 0;
    if (!full) a.window = window;
    if (thetas.is_array() ? thetas[i] == 0 : full) a.rope = -1;
    a.qk_norm = QkNorm::kHeadNoScale;
    a.q_scale = static_cast<float>(config.number("qk_scale_factor", 1.0));
    a.own_gate = true;
  }
  return config.status();
}

void names_muse(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  names_gemma(gguf, rules, drops);
  put_first(rules, {{format::Role::kAttentionGate, "model.layers.{i}.self_attn.gate_proj.weight"}});
  accept_wrapped(rules);
  drop_vision(drops);
}

}  // namespace millrace::model
