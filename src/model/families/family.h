// A family: how one architecture's config becomes a ModelSpec, and how its tensors are called.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/names.h"
#include "model/spec.h"

namespace millrace::model {

struct Family {
  const char* name;                      // of the table, and of the fixture
  std::vector<const char*> model_types;  // "model_type" values of Hugging Face configs
  std::vector<const char*> gguf_types;   // "general.architecture" values
  Status (*build)(Config&, ModelSpec*);
  // Puts the family's own rules in front of the defaults and adds drops. Null: defaults.
  void (*names)(bool gguf, NameRules*, std::vector<std::string>* drops) = nullptr;
  const char* fixtures = "";  // folders under tests/data/golden
};

const std::vector<Family>& all_families();

// An error names the type and lists those that are known.
Expected<const Family*> find_family(const Config& config);

// Shared by the families: the fields nearly all decoder-only configs have, with plain pre-norm
// llama layers.
//   hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
//   intermediate_size, rms_norm_eps, vocab_size, max_position_embeddings, tie_word_embeddings,
//   rope_theta / rope_scaling / rope_parameters.
struct LlamaOptions {
  bool interleaved = false;     // rope pairs (2j, 2j+1)
  const char* act = "silu";     // the only hidden_act / hidden_activation that is right
  double rope_theta = 10000.0;  // when the config has none
  double partial = 1.0;         // of a head that rotates, when the config does not say
  // Sliding layers have a rope of their own: of the base given here unless the config names one,
  // and without the scaling of the full layers'.
  double sliding_rope_theta = 0.0;
};
Status llama_like(Config& config, ModelSpec* spec, const LlamaOptions& options = {});

// Sets windows from layer_types (or GGUF's list of sliding layers or the distance of full ones; or,
// without either, from `sliding(layer)`), using sliding_window.
Status apply_windows(Config& config, ModelSpec* spec, bool (*sliding)(uint32_t layer) = nullptr);

// For apply_windows: all layers when the config has a window, else none.
bool (*every_layer(Config& config))(uint32_t layer);

// Every layer's FFN (or those where sparse(layer)) becomes experts: num_experts |
// num_local_experts, num_experts_per_tok.
MoeSpec read_moe(Config& config);

// Layers get experts as decoder_sparse_step and mlp_only_layers say.
Status add_experts(Config& config, ModelSpec* spec, const MoeSpec& moe);

// The router of DeepSeek and those after it: sigmoid scores, corrected for the choice; n_group,
// topk_group, norm_topk_prob, routed_scaling_factor.
void sigmoid_router(Config& config, MoeSpec* moe, double normalize_eps);

// Groups of experts: n_group, topk_group.
void read_groups(Config& config, MoeSpec* moe);

// The router and experts of DeepSeek V3 and those after it, and which layers have them:
// n_routed_experts, n_shared_experts, first_k_dense_replace.
MoeSpec read_deepseek_moe(Config& config);
void dense_then_experts(Config& config, ModelSpec* spec, const MoeSpec& moe);

// GGUF counts the layers that predict further tokens among the layers; they are left out.
void drop_predicted(Config& config, ModelSpec* spec);

// Which layers have attention: "full_attention" or "attention" in layer_types, the others being
// called `other`; without layer_types, those where full(layer). In GGUF files, those that have kv
// heads.
Expected<std::vector<bool>> attention_layers(Config& config, const char* other,
                                             const std::function<bool(uint32_t)>& full);

// GGUF: a key that may hold one number a layer becomes its largest; the numbers are returned.
std::vector<uint32_t> per_layer(Config& config, const char* key);

// Rules for checkpoints whose language model lies inside another: model.language_model.* and
// language_model.*.
void accept_wrapped(NameRules* rules);

// Drops what such checkpoints hold for pictures and sound.
void drop_vision(std::vector<std::string>* drops);

// Prepends rules.
void put_first(NameRules* rules, NameRules own);

}  // namespace millrace::model
