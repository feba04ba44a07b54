// Apertus: no gate in the feed-forward part, and an activation whose shape each layer learned.
#include <array>

#include "model/families/builders.h"

namespace millrace::model {

namespace {

// GGUF keeps the activations' parameters in its metadata: lists, or one number for all layers.
Expected<std::array<float, 4>> metadata_values(Config& config, size_t layer, size_t layers) {
  std::array<float, 4> values{};
  const std::array keys = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
  for (size_t k = 0; k < keys.size(); ++k) {
    const auto value = config.json(keys[k]);
    const auto& own = value.is_array() && value.size() == layers ? value[layer] : value;
    if (!own.is_number())
      return fail(Code::kInvalid, "'{}' must be a number or list {}", keys[k], layers);
    values[k] = own.get<float>();
  }
  return values;
}

}  // namespace

Status build_apertus(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec, {.act = "xielu", .rope_theta = 12e6}));
  config.expect("qk_norm", true);
  config.expect("post_norm", false);
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    auto& layer = spec->layers[i];
    if (config.is_gguf()) {
      MILLRACE_ASSIGN(layer.ffn.xielu_values, metadata_values(config, i, spec->layers.size()));
    }
    layer.attention.qk_norm = QkNorm::kHead;
    layer.ffn.gated = false;
    layer.ffn.xielu = true;
  }
  return {};
}

void names_apertus(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (gguf) return;
  const std::string layer = "model.layers.{i}.";
  put_first(rules, {{Role::kMixerInNorm, layer + "attention_layernorm.weight"},
                    {Role::kFfnInNorm, layer + "feedforward_layernorm.weight"},
                    {Role::kActPositive, layer + "mlp.act_fn.alpha_p"},
                    {Role::kActNegative, layer + "mlp.act_fn.alpha_n"},
                    {Role::kActBeta, layer + "mlp.act_fn.beta"},
                    {Role::kActEps, layer + "mlp.act_fn.eps"}});
}

}  // namespace millrace::model
