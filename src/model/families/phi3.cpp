// Phi-3: fused qkv and gate_up, longrope.
#include "model/families/builders.h"

namespace millrace::model {

Status build_phi3(Config& config, ModelSpec* spec) {
  config.ignore({"original_max_position_embeddings"});
  MILLRACE_TRY(llama_like(config, spec));
  return apply_windows(config, spec, every_layer(config));
}

void names_phi3(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  using format::Role;
  if (!gguf) return;
  // As in configs (see rope.cpp), the long divisors serve.
  put_first(rules, {{Role::kRopeFactors, "rope_factors_long.weight"}});
  drops->push_back("rope_factors_short.weight");
  put_first(rules, {{Role::kGate, "blk.{i}.ffn_up.weight", false, false, Part::kFirstHalf},
                    {Role::kUp, "blk.{i}.ffn_up.weight", false, false, Part::kSecondHalf}});
}

}  // namespace millrace::model
