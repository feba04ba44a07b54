#include "model/config.h"

#include <algorithm>
#include <array>

namespace millrace::model {
namespace {

// Keys of published configs that do not change what a forward pass computes.
constexpr std::array kHarmless = {
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "classifier_dropout",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "hidden_dropout",
    "initializer_range",
    "initial_context_length",
    "is_llama_config",
    "max_window_layers",
    "mlp_dropout",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "quantization",
    "quantization_config",
    "resid_pdrop",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "vocab_size",
    "max_position_embeddings",
    "id2label",
    "label2id",
    "unk_token_id",
    "sep_token_id",
    "tie_word_embeddings",
    "rms_norm_eps",
    "model_max_length",
    "pad_token",
    "transformers.js_config",
    "decoder_start_token_id",
    "experts_implementation",
};

}  // namespace

Config::Config(nlohmann::json values, std::string where)
    : values_(std::move(values)), where_(std::move(where)) {
  model_type_ = text("model_type", "");
}

Expected<Config> Config::from_source(const format::ModelSource& source) {
  if (source.kind == format::SourceKind::kGguf) {
    MILLRACE_ASSIGN(auto values, gguf_config(source));
    Config config(std::move(values), source.path);
    config.gguf_ = true;
    config.source_ = &source;
    return config;
  }
  if (!source.config || !source.config->is_object()) {
    return fail(Code::kNotFound, "{}: config.json is missing or not an object", source.path);
  }
  Config config(*source.config, source.path + "/config.json");
  config.source_ = &source;
  if (config.model_type_.empty()) {
    return fail(Code::kInvalid, "{}: 'model_type' is missing; it names the architecture",
                config.where_);
  }
  return config;
}

const nlohmann::json* Config::find(const std::string& key) {
  read_.insert(key);
  auto it = values_.find(key);
  return it == values_.end() || it->is_null() ? nullptr : &*it;
}

bool Config::has(const std::string& key) const {
  auto it = values_.find(key);
  read_.insert(key);
  return it != values_.end() && !it->is_null();
}

void Config::fail_key(const std::string& key, const std::string& why) {
  if (error_.empty()) error_ = fmt::format("{}: '{}' {}", where_, key, why);
}

double Config::number(const std::string& key, double fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  if (!value->is_number()) {
    fail_key(key, "must be a number");
    return fallback;
  }
  return value->get<double>();
}

double Config::number(const std::string& key) {
  if (!find(key)) fail_key(key, "is missing");
  return number(key, 0.0);
}

uint32_t Config::uint(const std::string& key, uint32_t fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  const double number_value = value->is_number() ? value->get<double>() : -1.0;
  if (number_value < 0 || number_value > 2147483647.0 ||
      number_value != static_cast<double>(static_cast<uint32_t>(number_value))) {
    fail_key(key, fmt::format("must be a whole number from 0 to 2147483647, not {}",
                              value->dump().substr(0, 80)));
    return fallback;
  }
  return static_cast<uint32_t>(number_value);
}

uint32_t Config::uint(const std::string& key) {
  if (!find(key)) {
    fail_key(key, "is missing");
    return 1;
  }
  const uint32_t value = uint(key, 1);
  if (value == 0) {
    fail_key(key, "must not be 0");
    return 1;
  }
  return value;
}

bool Config::flag(const std::string& key, bool fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) {
    fail_key(key, "must be true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string Config::text(const std::string& key, const std::string& fallback) {
  const auto* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) {
    fail_key(key, "must be a string");
    return fallback;
  }
  return value->get<std::string>();
}

nlohmann::json Config::json(const std::string& key) {
  const auto* value = find(key);
  return value ? *value : nlohmann::json();
}

void Config::ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) read_.insert(key);
}

void Config::alias(const std::string& other, const std::string& key) {
  read_.insert(other);
  auto it = values_.find(other);
  if (it == values_.end() || it->is_null()) return;
  if (auto own = values_.find(key); own == values_.end() || own->is_null()) {
    values_[key] = *it;
  }
}

void Config::put(const std::string& key, nlohmann::json value) { values_[key] = std::move(value); }

void Config::enter(const std::string& key) {
  auto it = values_.find(key);
  if (it == values_.end() || !it->is_object()) return;
  nlohmann::json inner = *it;
  for (const char* shared : {"tie_word_embeddings", "quantization", "quantization_config"}) {
    if (values_.contains(shared)) inner[shared] = values_[shared];
  }
  values_ = std::move(inner);
  where_ += " " + key;
}

std::vector<uint64_t> Config::shape_of(const std::string& name_end) const {
  if (!source_) return {};
  for (const auto& tensor : source_->tensors) {
    if (tensor.name.ends_with(name_end)) return tensor.shape;
  }
  return {};
}

void Config::expect(const std::string& key, const nlohmann::json& only) {
  expected_[key] = only;
  const auto* value = find(key);
  // Of what is not a switch, false means none.
  if (!value || *value == only || (!only.is_boolean() && *value == nlohmann::json(false))) return;
  fail_key(key, fmt::format("is {}; only {} is supported for '{}'", value->dump().substr(0, 80),
                            only.dump(), model_type_));
}

Status Config::status() const {
  if (!error_.empty()) return fail(Code::kInvalid, "{}", error_);
  return {};
}

Status Config::finish() const {
  MILLRACE_TRY(status());
  std::string unknown;
  for (const auto& [key, value] : values_.items()) {
    if (value.is_null() || value == nlohmann::json(false) || read_.contains(key)) continue;
    if (std::find(kHarmless.begin(), kHarmless.end(), key) != kHarmless.end()) continue;
    unknown +=
        fmt::format("{}'{}' = {}", unknown.empty() ? "" : ", ", key, value.dump().substr(0, 60));
  }
  if (unknown.empty()) return {};
  return fail(Code::kUnsupported, "{}: not understood for '{}', and may change the result: {}",
              where_, model_type_, unknown);
}

}  // namespace millrace::model
