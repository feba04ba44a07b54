// Families that are llama but for a key, a bias or a loop: InternLM 3, MiMo, TeleChat 3, Nanbeige.
#include "model/families/builders.h"

namespace millrace::model {

Status build_internlm3(Config& config, ModelSpec* spec) {
  config.alias("bias", "mlp_bias");
  MILLRACE_TRY(llama_like(config, spec));
  const bool qkv = config.flag("qkv_bias", false);
  // The original ties it to "bias", MLX to "qkv_bias": the file knows.
  const bool out = !config.shape_of("self_attn.o_proj.bias").empty();
  for (auto& layer : spec->layers) {
    auto& a = layer.attention;
    a.q_bias = a.k_bias = a.v_bias = qkv;
    a.o_bias = out;
  }
  return config.status();
}

Status build_mimo(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec));
  config.ignore({"num_nextn_predict_layers", "sliding_window"});
  config.expect("use_sliding_window", false);
  for (auto& layer : spec->layers) {
    auto& a = layer.attention;
    a.q_bias = a.k_bias = a.v_bias = true;
    a.o_bias = false;
  }
  return config.status();
}

void names_mimo(bool, NameRules*, std::vector<std::string>* drops) {
  drops->push_back("model.mtp_layers.*");
}

Status build_telechat3(Config& config, ModelSpec* spec) { return llama_like(config, spec); }

// The layers run several times, each time with a cache of its own.
Status build_nanbeige(Config& config, ModelSpec* spec) {
  MILLRACE_TRY(llama_like(config, spec, {.rope_theta = 7e7}));
  spec->loops = config.uint("num_loops", 1);
  if (spec->loops == 0 || spec->loops > 64) config.fail_key("num_loops", "must be 1 to 64");
  spec->loop_norm = !config.flag("skip_loop_final_norm", false);
  config.expect("emb_neighbor_num", 0);
  config.expect("loop_loss_weights", nlohmann::json::array());
  config.expect("insert_ngram_layer_idx", nlohmann::json::array());
  return config.status();
}

}  // namespace millrace::model
