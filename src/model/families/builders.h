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

void names_mixtral(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_gemma(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_gpt_oss(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_phi3(bool gguf, NameRules*, std::vector<std::string>* drops);
void names_olmo2(bool gguf, NameRules*, std::vector<std::string>* drops);

}  // namespace millrace::model
