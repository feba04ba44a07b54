#include "model/families/samples.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace millrace::model {
namespace {

// What the samples below change.
constexpr char kBase[] = R"({"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 320,
  "max_position_embeddings": 256, "tie_word_embeddings": false})";

constexpr char kExperts[] =
    R"({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32})";
constexpr char kSharedExperts[] = R"({"num_experts": 8, "num_experts_per_tok": 2,
  "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32})";
constexpr char kWindow[] = R"({"sliding_window": 8})";
// Latent attention, and experts after the first layer.
constexpr char kLatent[] = R"({"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
  "v_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
  "moe_intermediate_size": 32, "first_k_dense_replace": 1})";
constexpr char kIndexer[] =
    R"({"q_lora_rank": 32, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8})";
constexpr char kDelta[] = R"({"linear_num_key_heads": 2, "linear_num_value_heads": 4,
  "linear_key_head_dim": 16, "linear_value_head_dim": 16})";
constexpr char kMamba[] = R"({"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
  "n_groups": 2, "conv_kernel": 4})";
constexpr char kGemma4[] = R"({"sliding_window": 8, "layer_types": ["sliding_attention",
  "full_attention", "sliding_attention", "full_attention"], "rope_parameters": {
  "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
  "sliding_attention": {}}})";

// A sample is the base with these laid over it, in order.
using Sample = std::vector<std::string_view>;

const std::vector<std::pair<std::string_view, Sample>>& samples() {
  static const std::vector<std::pair<std::string_view, Sample>> list = {
      {"mistral", {kWindow}},
      {"mixtral", {kExperts}},
      {"qwen2_moe", {kSharedExperts}},
      {"qwen3_moe", {kExperts, R"({"mlp_only_layers": [0]})"}},
      {"gemma2", {kWindow}},
      {"gemma3", {kWindow, R"({"num_hidden_layers": 6})"}},
      {"gpt_oss", {kExperts, kWindow}},
      {"olmo3", {kWindow}},
      {"glm4_moe", {kExperts, R"({"n_shared_experts": 1, "first_k_dense_replace": 1})"}},
      {"minimax_m2", {kExperts}},
      {"gemma4", {kGemma4}},
      {"gemma4", {kGemma4, R"({"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16})"}},
      {"gemma4", {kGemma4, kExperts, R"({"enable_moe_block": true})"}},
      {"deepseek_v2", {kLatent}},
      {"deepseek_v3", {kLatent}},
      {"youtu", {kLatent}},
      {"deepseek_v32", {kLatent, kIndexer}},
      {"glm_moe_dsa", {kLatent, kIndexer}},
      {"muse_glimmer", {kWindow}},
      {"lfm2", {R"({"conv_L_cache": 3, "full_attn_idxs": [2]})"}},
      {"lfm2_moe",
       {kExperts, R"({"conv_L_cache": 3, "full_attn_idxs": [2], "num_dense_layers": 1})"}},
      {"qwen3_next", {kDelta, kSharedExperts}},
      {"qwen3_5", {kDelta}},
      {"qwen3_5_moe", {kDelta, kSharedExperts}},
      {"nemotron_h", {kMamba, kExperts, R"({"hybrid_override_pattern": "M*E",
         "moe_shared_expert_intermediate_size": 32})"}},
      {"nemotron_h", {kMamba, R"({"hybrid_override_pattern": "M*-"})"}},
      {"falcon_h1", {kMamba}},
  };
  return list;
}

Status add_sample(const Family& family, const Sample& sample, Axes* axes) {
  auto values = nlohmann::json::parse(kBase);
  for (const std::string_view part : sample) values.update(nlohmann::json::parse(part));
  values["model_type"] = family.model_types.front();
  Config config(std::move(values), fmt::format("sample of {}", family.name));
  ModelSpec spec;
  MILLRACE_TRY(family.build(config, &spec));
  add_axes(spec, axes);
  return {};
}

bool drops_predicting_layers(const Family& family) {
  NameRules rules;
  std::vector<std::string> drops;
  if (family.names) family.names(false, &rules, &drops);
  return std::any_of(drops.begin(), drops.end(), [](const std::string& pattern) {
    return pattern.find("{beyond}") != std::string::npos ||
           pattern.find("mtp") != std::string::npos;
  });
}

}  // namespace

Expected<Axes> axes_of(const Family& family) {
  Axes axes;
  bool any = false;
  for (const auto& [name, sample] : samples()) {
    if (name != family.name) continue;
    any = true;
    MILLRACE_TRY(add_sample(family, sample, &axes));
  }
  if (!any) MILLRACE_TRY(add_sample(family, {}, &axes));
  if (drops_predicting_layers(family)) axes.ports.push_back("mtp");
  return axes;
}

}  // namespace millrace::model
