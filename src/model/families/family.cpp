#include "model/families/family.h"

#include <algorithm>
#include <cmath>

#include "model/rope.h"

namespace millrace::model {

Expected<const Family*> find_family(const Config& config) {
  std::string known;
  for (const Family& family : all_families()) {
    for (const char* type : config.is_gguf() ? family.gguf_types : family.model_types) {
      if (config.model_type() == type) return &family;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", type);
    }
  }
  return fail(Code::kUnsupported, "architecture '{}' is not supported; known are: {}",
              config.model_type(), known);
}

void put_first(NameRules* rules, NameRules own) {
  own.insert(own.end(), rules->begin(), rules->end());
  *rules = std::move(own);
}

namespace {

// rope_parameters (transformers 5), rope_scaling + rope_theta (older), or the same from GGUF.
Status add_ropes(Config& config, ModelSpec* spec, const LlamaOptions& options, uint32_t head_dim) {
  auto parameters = config.json("rope_parameters");
  auto scaling = config.json("rope_scaling");
  if (!parameters.is_null() && !parameters.is_object())
    config.fail_key("rope_parameters", "must be an object");
  if (!scaling.is_null() && !scaling.is_object())
    config.fail_key("rope_scaling", "must be an object");
  MILLRACE_TRY(config.status());
  double theta = config.number("rope_theta", options.rope_theta);
  double partial = config.number("partial_rotary_factor", options.partial);
  auto add = [&](const nlohmann::json& object) -> Status {
    double part = partial;
    if (object.is_object() && object.contains("partial_rotary_factor")) {
      if (!object["partial_rotary_factor"].is_number())
        return fail(Code::kInvalid, "rope 'partial_rotary_factor' must be a number");
      part = object["partial_rotary_factor"].get<double>();
    }
    if (!(part > 0.0 && part <= 1.0))
      return fail(Code::kInvalid, "'partial_rotary_factor' must be above 0 and at most 1");
    const uint32_t dims = config.uint("rope_dims", static_cast<uint32_t>(head_dim * part));
    if (dims > head_dim)
      return fail(Code::kInvalid, "{} rotated dimensions do not fit a head of {}", dims, head_dim);
    auto own = object;
    // Phi-3 keeps the original context beside the rope object.
    if (own.is_object() && config.has("original_max_position_embeddings") &&
        !own.contains("original_max_position_embeddings")) {
      own["original_max_position_embeddings"] = config.uint("original_max_position_embeddings");
    }
    MILLRACE_ASSIGN(auto rope, make_rope(own, theta, dims, spec->max_context, options.interleaved));
    spec->ropes.push_back(std::move(rope));
    return {};
  };
  if (parameters.is_object() && parameters.contains("full_attention")) {
    // One object for each kind of layer: index 0 full, 1 sliding.
    for (const auto& [kind, object] : parameters.items()) {
      if (!object.is_object() || (kind != "full_attention" && kind != "sliding_attention"))
        return fail(Code::kUnsupported, "rope parameter '{}' is not understood", kind);
    }
    MILLRACE_TRY(add(parameters["full_attention"]));
    MILLRACE_TRY(add(parameters.contains("sliding_attention") ? parameters["sliding_attention"]
                                                              : parameters["full_attention"]));
    return {};
  }
  MILLRACE_TRY(add(parameters.is_object() ? parameters : scaling));
  if (options.sliding_rope_theta > 0) {
    theta = config.number("rope_local_base_freq", options.sliding_rope_theta);
    MILLRACE_TRY(add(nullptr));
    spec->ropes.back().divided = false;
  }
  return {};
}

}  // namespace

Status llama_like(Config& config, ModelSpec* spec, const LlamaOptions& options) {
  spec->hidden = config.uint("hidden_size");
  spec->vocab = config.uint("vocab_size");
  spec->max_context = config.uint("max_position_embeddings", 2048);
  spec->norm_eps = static_cast<float>(config.number("rms_norm_eps", 1e-6));
  spec->tied = config.flag("tie_word_embeddings", false);
  if (!(spec->norm_eps > 0.0f && spec->norm_eps < 1.0f))
    config.fail_key("rms_norm_eps", "must be above 0 and below 1");
  if (spec->max_context == 0) config.fail_key("max_position_embeddings", "must not be 0");
  const uint32_t layers = config.uint("num_hidden_layers");
  if (layers > 4096) config.fail_key("num_hidden_layers", "is larger than any model");
  AttentionSpec attention;
  attention.heads = config.uint("num_attention_heads");
  attention.kv_heads = config.uint("num_key_value_heads", attention.heads);
  MILLRACE_TRY(config.status());
  uint32_t head_dim = config.uint("head_dim", 0);
  if (head_dim == 0) {
    if (spec->hidden % attention.heads != 0)
      config.fail_key("num_attention_heads",
                      "does not divide 'hidden_size' and there is no 'head_dim'");
    head_dim = spec->hidden / attention.heads;
  }
  if (config.uint("value_head_dim", head_dim) != head_dim)
    config.fail_key("value_head_dim", "differs from head_dim");
  if (attention.kv_heads == 0 || attention.heads % attention.kv_heads != 0) {
    config.fail_key("num_key_value_heads", "does not divide 'num_attention_heads'");
  }
  if (head_dim > 4096) config.fail_key("head_dim", "is larger than any model's");
  config.expect("hidden_act", options.act);
  config.expect("hidden_activation", options.act);
  attention.key_dim = attention.value_dim = head_dim;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  attention.rope = 0;
  if (config.flag("attention_bias", false))
    attention.q_bias = attention.k_bias = attention.v_bias = attention.o_bias = true;
  LayerSpec layer;
  if (config.is_gguf()) {  // files do not say, but show it
    const auto there = [&](const char* end) { return !config.shape_of(end).empty(); };
    attention.q_bias = attention.k_bias = attention.v_bias =
        there(".attn_q.bias") || there(".attn_qkv.bias");
    attention.o_bias = there(".attn_output.bias");
    layer.ffn.bias = there(".ffn_down.bias");
  }
  layer.attention = attention;
  layer.ffn.width = config.uint("intermediate_size", 0);
  layer.ffn.bias = config.flag("mlp_bias", layer.ffn.bias);
  MILLRACE_TRY(config.status());
  spec->layers.assign(layers, layer);
  if (auto status = add_ropes(config, spec, options, head_dim); !status)
    return with_context("config", status.error());
  return {};
}

Status apply_windows(Config& config, ModelSpec* spec, bool (*sliding)(uint32_t layer)) {
  const auto types = config.json("layer_types");
  const uint32_t window = config.uint("sliding_window", 0);
  if (!types.is_null() && (!types.is_array() || types.size() != spec->layers.size())) {
    return fail(Code::kInvalid, "config: 'layer_types' must list {} layers", spec->layers.size());
  }
  const auto listed = config.json("sliding_window_layers");  // from GGUF
  const uint32_t apart = listed.is_number() ? config.uint("sliding_window_layers") : 0;
  if (listed.is_array() && listed.size() != spec->layers.size())
    return fail(Code::kInvalid, "config: 'sliding_window_layers' must list {} layers",
                spec->layers.size());
  for (uint32_t i = 0; i < spec->layers.size(); ++i) {
    bool windowed = sliding ? sliding(i) : false;
    if (apart) windowed = (i + 1) % apart != 0;
    if (listed.is_array()) windowed = listed[i] == true || listed[i] == 1;
    if (types.is_array()) {
      if (types[i] != "full_attention" && types[i] != "sliding_attention") {
        return fail(Code::kUnsupported, "config: layer_types[{}] = {} is not supported", i,
                    types[i].dump().substr(0, 60));
      }
      windowed = types[i] == "sliding_attention";
    }
    if (!windowed) continue;
    if (window == 0)
      return fail(Code::kInvalid, "config: layer {} is sliding but 'sliding_window' is missing", i);
    spec->layers[i].attention.window = window;
    if (spec->ropes.size() > 1) spec->layers[i].attention.rope = 1;
  }
  return {};
}

bool (*every_layer(Config& config))(uint32_t layer) {
  if (config.uint("sliding_window", 0) == 0) return nullptr;
  return [](uint32_t) { return true; };
}

MoeSpec read_moe(Config& config) {
  MoeSpec moe;
  config.alias("num_local_experts", "num_experts");
  moe.experts = config.uint("num_experts");
  moe.used = config.uint("num_experts_per_tok");
  moe.width = config.has("moe_intermediate_size") ? config.uint("moe_intermediate_size")
                                                  : config.uint("intermediate_size");
  if (moe.used > moe.experts)
    config.fail_key("num_experts_per_tok", "is larger than the number of experts");
  if (moe.experts > 65536) config.fail_key("num_experts", "is larger than any model's");
  return moe;
}

void dense_then_experts(Config& config, ModelSpec* spec, const MoeSpec& moe) {
  config.alias("num_dense_layers", "first_k_dense_replace");  // from GGUF
  const uint32_t first = config.uint("first_k_dense_replace", 0);
  const auto types = config.json("mlp_layer_types");
  config.expect("moe_layer_freq", 1);
  if (!types.is_null() && (!types.is_array() || types.size() != spec->layers.size()))
    return config.fail_key("mlp_layer_types", "does not list every layer");
  for (uint32_t i = 0; i < spec->layers.size(); ++i) {
    const bool sparse = types.is_array() ? types[i] == "sparse" : i >= first;
    if (!sparse && types.is_array() && types[i] != "dense")
      config.fail_key("mlp_layer_types", "names a layer neither 'dense' nor 'sparse'");
    if (sparse) spec->layers[i].ffn.moe = moe;
  }
}

MoeSpec read_deepseek_moe(Config& config) {
  config.alias("n_routed_experts", "num_experts");
  MoeSpec moe = read_moe(config);
  sigmoid_router(config, &moe, 1e-20);
  moe.shared_width = moe.width * config.uint("n_shared_experts", 0);
  config.expect("scoring_func", "sigmoid");
  config.expect("topk_method", "noaux_tc");
  config.ignore({"shared_expert_intermediate_size"});
  return moe;
}

void drop_predicted(Config& config, ModelSpec* spec) {
  spec->predicting = config.uint("num_nextn_predict_layers", 0);
  if (config.is_gguf() && spec->predicting < spec->layers.size())
    spec->layers.resize(spec->layers.size() - spec->predicting);
}

// Layer i has experts unless it is named dense or off the sparse step.
Status add_experts(Config& config, ModelSpec* spec, const MoeSpec& moe) {
  const uint32_t step = config.uint("decoder_sparse_step", 1);
  const auto dense = config.json("mlp_only_layers");
  for (uint32_t i = 0; i < spec->layers.size(); ++i) {
    bool sparse = step > 0 && (i + 1) % step == 0;
    if (dense.is_array()) {
      for (const auto& entry : dense) sparse = sparse && entry != i;
    }
    if (sparse) spec->layers[i].ffn.moe = moe;
  }
  return config.status();
}

void sigmoid_router(Config& config, MoeSpec* moe, double normalize_eps) {
  moe->score = RouterScore::kSigmoid;
  config.expect("router_function", 2);  // GGUF's number of the sigmoid
  moe->correction = true;
  moe->normalize = config.flag("norm_topk_prob", true);
  moe->normalize_eps = static_cast<float>(normalize_eps);
  moe->scale = static_cast<float>(config.number("routed_scaling_factor", 1.0));
  read_groups(config, moe);
}

void read_groups(Config& config, MoeSpec* moe) {
  moe->groups = config.uint("n_group", 1);
  moe->groups_used = config.uint("topk_group", 1);
  if (moe->groups == 0 || moe->groups > 256 || moe->experts % moe->groups != 0)
    config.fail_key("n_group", "does not divide the experts into at most 256 groups");
  else if (moe->groups_used == 0 || moe->groups_used > moe->groups ||
           moe->used > moe->experts / moe->groups * moe->groups_used)
    config.fail_key("topk_group", "leaves fewer experts than a token uses, or more than there are");
}

Expected<std::vector<bool>> attention_layers(Config& config, const char* other,
                                             const std::function<bool(uint32_t)>& full) {
  const uint32_t layers = config.uint("num_hidden_layers");
  MILLRACE_TRY(config.status());
  const auto types = config.json("layer_types");
  std::vector<bool> attention(layers);
  if (!types.is_null() && (!types.is_array() || types.size() != layers))
    return fail(Code::kInvalid, "config: 'layer_types' must list {} layers", layers);
  for (uint32_t i = 0; i < layers; ++i) {
    if (types.is_null()) {
      attention[i] = full(i);
      continue;
    }
    const auto type = types[i].is_string() ? types[i].get<std::string>() : std::string();
    attention[i] = type == "full_attention" || type == "attention";
    if (!attention[i] && type != other) {
      return fail(Code::kUnsupported, "config: layer_types[{}] = {} is not supported", i,
                  types[i].dump().substr(0, 60));
    }
  }
  return attention;
}

std::vector<uint32_t> per_layer(Config& config, const char* key) {
  const uint32_t layers = config.uint("num_hidden_layers");
  const auto value = config.json(key);
  std::vector<uint32_t> numbers;
  if (!value.is_array()) {
    numbers.assign(std::min(layers, 4096u), config.uint(key, 0));
    return numbers;
  }
  uint32_t most = 0;
  for (const auto& entry : value) {
    // GGUF writers list signed numbers.
    const bool fits = entry.is_number_integer() && entry >= 0 && entry <= INT32_MAX;
    if (!fits) config.fail_key(key, "must list whole numbers");
    numbers.push_back(fits ? entry.get<uint32_t>() : 0);
    most = std::max(most, numbers.back());
  }
  if (numbers.size() != layers) config.fail_key(key, "does not list every layer");
  numbers.resize(std::min(layers, 4096u));
  config.put(key, most);
  return numbers;
}

void accept_wrapped(NameRules* rules) {
  const size_t plain = rules->size();
  for (size_t i = 0; i < plain; ++i) {
    NameRule rule = (*rules)[i];
    const std::string pattern = rule.pattern;
    rule.pattern = "language_model." + pattern;  // MLX
    rules->push_back(rule);
    if (!pattern.starts_with("model.")) continue;
    rule.pattern = "model.language_model." + pattern.substr(6);
    rules->push_back(rule);
  }
}

void drop_vision(std::vector<std::string>* drops) {
  for (const char* part :
       {"vision_tower", "vision_model", "vision_adapter", "embed_vision", "multi_modal_projector",
        "audio_tower", "embed_audio", "vision_projection"}) {
    drops->push_back(std::string("model.") + part + ".*");
    drops->push_back(std::string(part) + ".*");
  }
}

}  // namespace millrace::model
