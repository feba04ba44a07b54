// Reads a model's configuration and remembers which keys were understood: what is left over and is
// not known to be harmless is an error (a key we do not know may change the math).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/status.h"
#include "format/source.h"

namespace millrace::model {

class Config {
 public:
  // Hugging Face: config.json as it stands. GGUF: metadata translated to the same keys (see
  // config_gguf.cpp). `source` must outlive the config.
  static Expected<Config> from_source(const format::ModelSource& source);
  // An object alone, without a source to look at.
  explicit Config(nlohmann::json values, std::string where);

  const std::string& model_type() const { return model_type_; }
  bool is_gguf() const { return gguf_; }
  bool has(const std::string& key) const;  // present and not null; counts as read

  // A wrong type or a missing required key is remembered as the first error; see status().
  uint32_t uint(const std::string& key);                     // required, 1 .. 2^31
  uint32_t uint(const std::string& key, uint32_t fallback);  // absent or null: fallback
  double number(const std::string& key);
  double number(const std::string& key, double fallback);
  bool flag(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  nlohmann::json json(const std::string& key);  // null when absent

  // Another name that a config may use for `key`; the key itself wins.
  void alias(const std::string& other, const std::string& key);
  // For values that a family derives.
  void put(const std::string& key, nlohmann::json value);
  // Wrappers of several models: continues in the object under `key`, when there is one; what lies
  // outside it describes the other models (except `tie_word_embeddings` and quantization).
  void enter(const std::string& key);

  // Facts that configs do not state but files show. Shape of the first tensor whose name
  // ends so; empty when there is none.
  std::vector<uint64_t> shape_of(const std::string& name_end) const;

  // Marks keys as understood without reading them.
  void ignore(std::initializer_list<const char*> keys);
  // Requires that the key is absent, null, equal to `only`, or (unless that is a flag) false; else
  // an error naming it.
  void expect(const std::string& key, const nlohmann::json& only);
  // The keys of all expect() so far.
  const std::map<std::string, nlohmann::json>& expected() const { return expected_; }
  void fail_key(const std::string& key, const std::string& why);

  // The first error met, or keys that nobody read and that are not known to be harmless.
  Status finish() const;
  Status status() const;

 private:
  const nlohmann::json* find(const std::string& key);

  nlohmann::json values_;
  std::string where_, model_type_;
  const format::ModelSource* source_ = nullptr;
  bool gguf_ = false;
  mutable std::set<std::string> read_;
  std::map<std::string, nlohmann::json> expected_;
  std::string error_;
};

// {arch}.* metadata in Hugging Face keys. model_type is the GGUF architecture name.
Expected<nlohmann::json> gguf_config(const format::ModelSource& source);

// A message about a config with the quoted keys as a GGUF file has them.
std::string in_gguf_terms(const std::string& message, const std::string& architecture);

}  // namespace millrace::model
