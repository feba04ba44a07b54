// Mixtral: experts w1 (gate), w3 (up), w2 (down); softmax over the selected.
#include "model/families/builders.h"

namespace millrace::model {

Status build_mixtral(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec));
  MoeSpec moe = read_moe(config);
  moe.score = RouterScore::kSoftmaxSelected;
  for (auto& layer : spec->layers) layer.ffn.moe = moe;
  return apply_windows(config, spec, every_layer(config));
}

void names_mixtral(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (gguf) return;
  const std::string block = "model.layers.{i}.block_sparse_moe.";
  put_first(rules, {{Role::kRouter, block + "gate.weight"},
                    {Role::kGate, block + "experts.{e}.w1.weight"},
                    {Role::kUp, block + "experts.{e}.w3.weight"},
                    {Role::kDown, block + "experts.{e}.w2.weight"},
                    {Role::kGate, block + "switch_mlp.gate_proj.weight", true},
                    {Role::kUp, block + "switch_mlp.up_proj.weight", true},
                    {Role::kDown, block + "switch_mlp.down_proj.weight", true}});
}

}  // namespace millrace::model
