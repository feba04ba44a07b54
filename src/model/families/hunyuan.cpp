// Hunyuan (dense, v1): norms on q and k after the rope, whose base is raised by "alpha".
#include "model/families/builders.h"

namespace millrace::model {

Status build_hunyuan_v1_dense(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec));
  config.expect("use_cla", false);
  config.expect("norm_type", "rms");
  config.ignore({"eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "mask_init_id",
                 "org_vocab_size", "attention_head_dim", "mlp_bias", "add_classification_head",
                 "class_num", "pool_type", "text_end_id", "text_start_id", "sep_token_id"});
  if (!config.flag("use_qk_norm", true)) return {};
  for (auto& layer : spec->layers) layer.attention.qk_norm = QkNorm::kHeadAfterRope;
  return {};
}

void names_hunyuan(bool gguf, NameRules* rules, std::vector<std::string>*) {
  using format::Role;
  if (gguf) return;
  const std::string attention = "model.layers.{i}.self_attn.";
  put_first(rules, {{Role::kQNorm, attention + "query_layernorm.weight"},
                    {Role::kKNorm, attention + "key_layernorm.weight"}});
}

}  // namespace millrace::model
