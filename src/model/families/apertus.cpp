// Apertus: no gate in the feed-forward part, and an activation whose shape each layer learned.
#include "model/families/builders.h"

namespace millrace::model {

Status build_apertus(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec, {.act = "xielu", .rope_theta = 12e6}));
  config.expect("qk_norm", true);
  config.expect("post_norm", false);
  for (auto& layer : spec->layers) {
    layer.attention.qk_norm = QkNorm::kHead;
    layer.ffn.gated = false;
    layer.ffn.xielu = true;
  }
  return {};
}

void names_apertus(bool, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  const std::string layer = "model.layers.{i}.";
  put_first(rules, {{Role::kMixerInNorm, layer + "attention_layernorm.weight"},
                    {Role::kFfnInNorm, layer + "feedforward_layernorm.weight"},
                    {Role::kActPositive, layer + "mlp.act_fn.alpha_p"},
                    {Role::kActNegative, layer + "mlp.act_fn.alpha_n"},
                    {Role::kActBeta, layer + "mlp.act_fn.beta"},
                    {Role::kActEps, layer + "mlp.act_fn.eps"}});
}

}  // namespace millrace::model
