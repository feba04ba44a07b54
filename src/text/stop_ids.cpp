#include "text/stop_ids.h"

#include <nlohmann/json.hpp>
#include <set>

#include "text/files.h"

namespace millrace {
namespace {

using json = nlohmann::json;

Status add(std::string_view file, const json& value, std::set<std::uint32_t>& ids) {
  if (value.is_null()) return {};
  if (value.is_array()) {
    for (const json& entry : value) MILLRACE_TRY(add(file, entry, ids));
    return {};
  }
  // Some configs write -1 for "none".
  if (value.is_number_integer() && value.get<std::int64_t>() < 0) return {};
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > UINT32_MAX) {
    return fail(Code::kInvalid, "{}: eos_token_id is {}, not a token id", file, value.dump());
  }
  ids.insert(value.get<std::uint32_t>());
  return {};
}

Status add_from(std::string_view file, std::string_view text, std::set<std::uint32_t>& ids) {
  if (text.empty()) return {};
  const json config = json::parse(text, nullptr, false);
  if (!config.is_object()) return fail(Code::kInvalid, "{}: not a JSON object", file);
  MILLRACE_TRY(add(file, config.value("eos_token_id", json()), ids));
  const json inner = config.value("text_config", json());
  if (inner.is_object()) return add(file, inner.value("eos_token_id", json()), ids);
  return {};
}

}  // namespace

Expected<std::vector<std::uint32_t>> stop_ids(std::string_view generation_config,
                                              std::string_view config, const Tokenizer& tokenizer) {
  std::set<std::uint32_t> ids(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  MILLRACE_TRY(add_from("generation_config.json", generation_config, ids));
  MILLRACE_TRY(add_from("config.json", config, ids));
  return std::vector<std::uint32_t>(ids.begin(), ids.end());
}

Expected<std::vector<std::uint32_t>> stop_ids(const std::filesystem::path& folder,
                                              const Tokenizer& tokenizer) {
  const auto read = [&](const char* name) -> Expected<std::string> {
    std::error_code error;
    if (!std::filesystem::exists(folder / name, error)) return std::string();
    return text::read_file(folder / name);
  };
  MILLRACE_ASSIGN(const std::string generation_config, read("generation_config.json"));
  MILLRACE_ASSIGN(const std::string config, read("config.json"));
  return stop_ids(generation_config, config, tokenizer);
}

}  // namespace millrace
