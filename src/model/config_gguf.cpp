// GGUF metadata in the keys of Hugging Face configs, so that a family reads one vocabulary.
#include <array>
#include <string_view>

#include "model/config.h"

namespace millrace::model {
namespace {

struct KeyPair {
  std::string_view gguf;  // after "{arch}."
  const char* key;
};
constexpr std::array kKeys = {
    KeyPair{"block_count", "num_hidden_layers"},
    KeyPair{"context_length", "max_position_embeddings"},
    KeyPair{"embedding_length", "hidden_size"},
    KeyPair{"feed_forward_length", "intermediate_size"},
    KeyPair{"attention.head_count", "num_attention_heads"},
    KeyPair{"attention.head_count_kv", "num_key_value_heads"},
    KeyPair{"attention.key_length", "head_dim"},
    KeyPair{"attention.value_length", "value_head_dim"},
    KeyPair{"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    KeyPair{"attention.sliding_window", "sliding_window"},
    KeyPair{"attention.sliding_window_pattern", "sliding_window_layers"},
    KeyPair{"rope.freq_base", "rope_theta"},
    KeyPair{"rope.freq_base_swa", "rope_local_base_freq"},
    KeyPair{"rope.dimension_count", "rope_dims"},
    KeyPair{"expert_count", "num_experts"},
    KeyPair{"expert_used_count", "num_experts_per_tok"},
    KeyPair{"expert_feed_forward_length", "moe_intermediate_size"},
    KeyPair{"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
    KeyPair{"expert_weights_norm", "norm_topk_prob"},
    KeyPair{"expert_weights_scale", "routed_scaling_factor"},
    KeyPair{"attn_logit_softcapping", "attn_logit_softcapping"},
    KeyPair{"final_logit_softcapping", "final_logit_softcapping"},
    KeyPair{"embedding_scale", "embedding_multiplier"},
    KeyPair{"residual_scale", "residual_multiplier"},
    KeyPair{"attention.scale", "attention_multiplier"},
    KeyPair{"logit_scale", "logits_scaling"},
    KeyPair{"attention.temperature_scale", "llama_4_scaling_beta"},
    KeyPair{"vocab_size", "vocab_size"},
    KeyPair{"nextn_predict_layers", "num_nextn_predict_layers"},
    KeyPair{"attention.q_lora_rank", "q_lora_rank"},
    KeyPair{"attention.kv_lora_rank", "kv_lora_rank"},
    KeyPair{"attention.key_length_mla", "qk_head_dim"},
    KeyPair{"attention.value_length_mla", "v_head_dim"},
    KeyPair{"attention.indexer.head_count", "index_n_heads"},
    KeyPair{"attention.indexer.key_length", "index_head_dim"},
    KeyPair{"attention.indexer.top_k", "index_topk"},
    KeyPair{"attention.shared_kv_layers", "num_kv_shared_layers"},
    KeyPair{"attention.key_length_swa", "head_dim_swa"},
    KeyPair{"attention.value_length_swa", "value_head_dim_swa"},
    KeyPair{"rope.dimension_count_swa", "rope_dims_swa"},
    KeyPair{"embedding_length_per_layer_input", "hidden_size_per_layer_input"},
    KeyPair{"shortconv.l_cache", "conv_L_cache"},
    KeyPair{"ssm.conv_kernel", "ssm_conv_kernel"},
    KeyPair{"ssm.state_size", "ssm_state_size"},
    KeyPair{"ssm.group_count", "ssm_group_count"},
    KeyPair{"ssm.time_step_rank", "ssm_time_step_rank"},
    KeyPair{"ssm.inner_size", "ssm_inner_size"},
    KeyPair{"full_attention_interval", "full_attention_interval"},
    KeyPair{"leading_dense_block_count", "num_dense_layers"},
    KeyPair{"expert_group_count", "n_group"},
    KeyPair{"expert_group_used_count", "topk_group"},
    KeyPair{"expert_shared_count", "n_shared_experts"},
    KeyPair{"expert_gating_func", "router_function"},
};
constexpr std::array kRopeKeys = {
    KeyPair{"rope.scaling.type", "rope_type"},
    KeyPair{"rope.scaling.factor", "factor"},
    KeyPair{"rope.scaling.original_context_length", "original_max_position_embeddings"},
    KeyPair{"rope.scaling.attn_factor", "attention_factor_extra"},
    KeyPair{"rope.scaling.yarn_log_multiplier", "yarn_log_multiplier"},
    KeyPair{"rope.scaling.yarn_beta_fast", "beta_fast"},
    KeyPair{"rope.scaling.yarn_beta_slow", "beta_slow"},
};
// Say nothing about the math of a causal language model, or are settled by tensors.
constexpr std::array kIgnored = {
    std::string_view("rope.scaling.finetuned"), std::string_view("tokenizer_pre"),
    std::string_view("rope.scale_linear"),      std::string_view("attention.layer_norm_epsilon"),
    std::string_view("tensor_data_layout"),     std::string_view("rope.dimension_sections"),
};

// Lists of flags, one a layer, in the words that configs have for them.
struct FlagList {
  std::string_view gguf;
  const char *key, *yes, *no;
};
constexpr std::array kFlagLists = {
    FlagList{"attention.recurrent_layers", "layer_types", "linear_attention", "full_attention"},
    FlagList{"attention.indexer.types", "indexer_types", "full", "shared"},
};
// Keys without the architecture's prefix.
constexpr std::array kGlobalKeys = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};

nlohmann::json to_json(const format::GgufValue& value) {
  return std::visit(
      [](const auto& v) -> nlohmann::json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else {
          return nlohmann::json(v);
        }
      },
      value.value);
}

}  // namespace

Expected<nlohmann::json> gguf_config(const format::ModelSource& source) {
  auto found = source.gguf.find("general.architecture");
  const auto* arch =
      found == source.gguf.end() ? nullptr : std::get_if<std::string>(&found->second.value);
  if (!arch || arch->empty()) {
    return fail(Code::kInvalid, "{}: metadata 'general.architecture' is missing or not a string",
                source.path);
  }
  nlohmann::json config = {{"model_type", *arch}};
  nlohmann::json rope = nlohmann::json::object();
  const std::string prefix = *arch + ".";
  for (const auto& [key, value] : source.gguf) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view suffix = std::string_view(key).substr(prefix.size());
    if (suffix == "attention.causal" && to_json(value) == false)
      return fail(Code::kUnsupported, "{}: '{}' is false: the model does not generate text",
                  source.path, key);
    bool known = suffix == "attention.causal";
    for (const auto& list : kFlagLists) {
      const auto* flags = std::get_if<std::vector<bool>>(&value.value);
      if (list.gguf != suffix || !flags) continue;
      known = true;
      auto words = nlohmann::json::array();
      for (const bool flag : *flags) words.push_back(flag ? list.yes : list.no);
      config[list.key] = words;
    }
    for (const auto& pair : kKeys) {
      if (pair.gguf == suffix) config[pair.key] = to_json(value), known = true;
    }
    for (const auto& pair : kRopeKeys) {
      if (pair.gguf == suffix) rope[pair.key] = to_json(value), known = true;
    }
    for (const auto ignored : kIgnored) known = known || ignored == suffix;
    if (!known)
      config[key] = to_json(value);  // left for the family, or for Config::finish to refuse
  }
  for (const char* key : kGlobalKeys) {
    if (auto value = source.gguf.find(key); value != source.gguf.end())
      config[key] = to_json(value->second);
  }
  if (!rope.empty()) config["rope_scaling"] = rope;
  config["tie_word_embeddings"] = source.find("output.weight") == nullptr;
  if (const auto* embedding = source.find("token_embd.weight");
      embedding && embedding->shape.size() == 2) {
    config["vocab_size"] = embedding->shape[0];
  }
  return config;
}

std::string in_gguf_terms(const std::string& message, const std::string& architecture) {
  std::string out = message;
  const auto replace = [&](const char* key, std::string_view gguf) {
    const std::string from = fmt::format("'{}'", key),
                      to = fmt::format("'{}.{}'", architecture, gguf);
    for (size_t at = 0; (at = out.find(from, at)) != std::string::npos; at += to.size())
      out.replace(at, from.size(), to);
  };
  for (const auto& pair : kKeys) replace(pair.key, pair.gguf);
  for (const auto& pair : kRopeKeys) replace(pair.key, pair.gguf);
  for (const auto& list : kFlagLists) replace(list.key, list.gguf);
  return out;
}

}  // namespace millrace::model
