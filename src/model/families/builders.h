// One builder a family; each is defined in the file of that name.
#pragma once

#include "model/families/family.h"

namespace millrace::model {

Status build_llama(Config&, ModelSpec*);
Status build_mistral(Config&, ModelSpec*);
Status build_ministral3(Config&, ModelSpec*);
Status build_mixtral(Config&, ModelSpec*);
Status build_qwen2(Config&, ModelSpec*);
Status build_qwen2_moe(Config&, ModelSpec*);
Status build_qwen3(Config&, ModelSpec*);
Status build_qwen3_moe(Config&, ModelSpec*);
Status build_gemma2(Config&, ModelSpec*);
Status build_gemma3(Config&, ModelSpec*);
Status build_gpt_oss(Config&, ModelSpec*);
Status build_phi3(Config&, ModelSpec*);
Status build_smollm3(Config&, ModelSpec*);
Status build_olmo2(Config&, ModelSpec*);
Status build_olmo3(Config&, ModelSpec*);
Status build_granite(Config&, ModelSpec*);
Status build_glm(Config&, ModelSpec*);
Status build_glm4(Config&, ModelSpec*);
Status build_glm4_moe(Config&, ModelSpec*);
Status build_apertus(Config&, ModelSpec*);
Status build_ernie4_5(Config&, ModelSpec*);
Status build_helium(Config&, ModelSpec*);
Status build_hunyuan_v1_dense(Config&, ModelSpec*);
Status build_seed_oss(Config&, ModelSpec*);
Status build_minimax_m2(Config&, ModelSpec*);
Status build_gemma4(Config&, ModelSpec*);
Status build_deepseek_v3(Config&, ModelSpec*);
Status build_youtu(Config&, ModelSpec*);
Status build_deepseek_v32(Config&, ModelSpec*);
Status build_glm_moe_dsa(Config&, ModelSpec*);
Status build_mistral3(Config&, ModelSpec*);
Status build_internlm3(Config&, ModelSpec*);
Status build_mimo(Config&, ModelSpec*);
Status build_telechat3(Config&, ModelSpec*);
Status build_nanbeige(Config&, ModelSpec*);
Status build_muse_glimmer(Config&, ModelSpec*);
Status build_deepseek_v2(Config&, ModelSpec*);
Status build_lfm2(Config&, ModelSpec*);
Status build_lfm2_moe(Config&, ModelSpec*);
Status build_qwen3_next(Config&, ModelSpec*);
Status build_qwen3_5(Config&, ModelSpec*);
Status build_qwen3_5_moe(Config&, ModelSpec*);
Status build_nemotron_h(Config&, ModelSpec*);
Status build_falcon_h1(Config&, ModelSpec*);

// Shared by families with latent attention: the plain part of the config; attention of every layer
// (its ropes replaced by one of the rotated part); an indexer in every layer, those called "shared"
// using the choice of the one before theirs.
Status read_latent_base(Config&, ModelSpec*);
Status read_latent(Config&, ModelSpec*, bool interleaved);
Status read_indexers(Config&, ModelSpec*, bool interleaved);
void names_latent(bool gguf, NameRules*, std::vector<std::string>* drops);

// What GGUF files of Gemma 4 state layer by layer; the other keys become those of configs.
struct Gemma4Lists {
  std::vector<uint32_t> kv_heads, widths;
};
void gemma4_from_gguf(Config&, Gemma4Lists*);
void names_gemma4_gguf(NameRules*);

// Shared by families with Mamba-2 layers.
Expected<Mamba2Spec> read_mamba2(Config&);
void names_mamba2(bool gguf, const std::string& prefix, NameRules*);

void names_mixtral(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_gemma(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_gpt_oss(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_phi3(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_olmo2(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_glm(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_glm4(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_glm4_moe(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_apertus(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_hunyuan(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_seed_oss(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_minimax_m2(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_gemma4(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_gemma3(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_mistral3(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_mimo(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_muse(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_lfm2(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_qwen3_next(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_nemotron_h(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_falcon_h1(bool gguf, NameRules*, std::vector<std::string>* drops);

}  // namespace millrace::model
