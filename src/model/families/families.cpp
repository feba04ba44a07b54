// The table of families. `millrace families` prints it.
#include "model/families/builders.h"

namespace millrace::model {

const std::vector<Family>& all_families() {
  static const std::vector<Family> table = {
      {"llama", {"llama"}, {"llama"}, build_llama, nullptr, "llama llama_tied_bias"},
      {"mistral", {"mistral"}, {}, build_mistral, nullptr, "mistral"},
      {"ministral3", {"ministral3"}, {"mistral3"}, build_ministral3, nullptr, "ministral3"},
      {"mixtral", {"mixtral"}, {}, build_mixtral, names_mixtral, "mixtral"},
      {"qwen2", {"qwen2"}, {"qwen2"}, build_qwen2, nullptr, "qwen2"},
      {"qwen2_moe", {"qwen2_moe"}, {"qwen2moe"}, build_qwen2_moe, nullptr, "qwen2_moe"},
      {"qwen3", {"qwen3"}, {"qwen3"}, build_qwen3, nullptr, "qwen3"},
      {"qwen3_moe", {"qwen3_moe"}, {"qwen3moe"}, build_qwen3_moe, nullptr, "qwen3_moe"},
      {"gemma2", {"gemma2"}, {"gemma2"}, build_gemma2, names_gemma, "gemma2"},
      {"gemma3", {"gemma3_text"}, {"gemma3"}, build_gemma3, names_gemma, "gemma3_text"},
      {"gpt_oss", {"gpt_oss"}, {"gpt-oss"}, build_gpt_oss, names_gpt_oss, "gpt_oss"},
      {"phi3", {"phi3"}, {"phi3"}, build_phi3, names_phi3, "phi3"},
      {"smollm3", {"smollm3"}, {"smollm3"}, build_smollm3, nullptr, "smollm3"},
      {"olmo2", {"olmo2"}, {"olmo2"}, build_olmo2, names_olmo2, "olmo2"},
      {"olmo3", {"olmo3"}, {}, build_olmo3, names_olmo2, "olmo3"},
      {"granite", {"granite"}, {"granite"}, build_granite, nullptr, "granite"},
      {"lfm2", {"lfm2"}, {"lfm2"}, build_lfm2, names_lfm2, "lfm2"},
      {"lfm2_moe", {"lfm2_moe"}, {"lfm2moe"}, build_lfm2_moe, names_lfm2, "lfm2_moe"},
      {"qwen3_next",
       {"qwen3_next"},
       {"qwen3next"},
       build_qwen3_next,
       names_qwen3_next,
       "qwen3_next"},
      {"qwen3_5",
       {"qwen3_5_text", "qwen3_5"},
       {"qwen35"},
       build_qwen3_5,
       names_qwen3_next,
       "qwen3_5_text"},
      {"qwen3_5_moe",
       {"qwen3_5_moe_text", "qwen3_5_moe"},
       {"qwen35moe"},
       build_qwen3_5_moe,
       names_qwen3_next,
       "qwen3_5_moe_text"},
      {"nemotron_h",
       {"nemotron_h"},
       {"nemotron_h", "nemotron_h_moe"},
       build_nemotron_h,
       names_nemotron_h,
       "nemotron_h"},
      {"falcon_h1", {"falcon_h1"}, {"falcon-h1"}, build_falcon_h1, names_falcon_h1, "falcon_h1"},
  };
  return table;
}

}  // namespace millrace::model
