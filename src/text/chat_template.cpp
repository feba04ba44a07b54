#include "text/chat_template.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/bridge.h"
#include "text/files.h"

namespace millrace {

namespace bridge = text::bridge;
using json = nlohmann::json;

struct ChatTemplate::Impl {
  std::string source;
  TemplateTokens tokens;
  rust::Box<bridge::ChatTemplateCore> main;
  std::optional<rust::Box<bridge::ChatTemplateCore>> for_tools;
  TemplateCapabilities capabilities;
};

namespace {

Expected<rust::Box<bridge::ChatTemplateCore>> compile_one(std::string_view source) {
  return text::call_bridge([&] { return bridge::chat_template_compile(text::as_slice(source)); });
}

TemplateCapabilities to_capabilities(std::uint8_t bits) {
  const auto bit = [&](int i) { return ((bits >> i) & 1) != 0; };
  return {bit(0), bit(1), bit(2), bit(3), bit(4), bit(5)};
}

bool has_entries(std::string_view json_list) {
  const json parsed = json::parse(json_list, nullptr, false);
  return parsed.is_array() && !parsed.empty();
}

// `extra` with the special tokens below it: a caller's own variable wins.
Expected<std::string> with_tokens(const TemplateTokens& tokens, std::string_view extra) {
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  for (const auto& [name, token] : tokens) variables[name] = token;
  if (!extra.empty()) {
    auto parsed = nlohmann::ordered_json::parse(extra, nullptr, false);
    if (!parsed.is_object()) return fail(Code::kInvalid, "template arguments are not an object");
    for (auto& [name, value] : parsed.items()) variables[name] = std::move(value);
  }
  return variables.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

Expected<ChatTemplate> ChatTemplate::compile(std::string_view source,
                                             const TemplateTokens& tokens) {
  return compile({TemplateSource{"default", std::string(source)}}, tokens);
}

Expected<ChatTemplate> ChatTemplate::compile(const std::vector<TemplateSource>& sources,
                                             const TemplateTokens& tokens) {
  const auto named = [&](std::string_view name) {
    return std::find_if(sources.begin(), sources.end(),
                        [&](const TemplateSource& source) { return source.name == name; });
  };
  const auto main = named("default");
  const auto for_tools = named("tool_use");
  if (main == sources.end()) {
    return fail(Code::kNotFound, "the model has no chat template named 'default'");
  }
  MILLRACE_ASSIGN(auto core, compile_one(main->text));
  const TemplateCapabilities capabilities = to_capabilities(core->capabilities());
  auto impl =
      std::make_shared<Impl>(Impl{main->text, tokens, std::move(core), std::nullopt, capabilities});
  if (for_tools != sources.end()) {
    auto second = compile_one(for_tools->text);
    if (!second) return with_context("tool_use", std::move(second.error()));
    const TemplateCapabilities with_tools = to_capabilities((*second)->capabilities());
    impl->capabilities.tools = with_tools.tools;
    impl->capabilities.tool_calls = with_tools.tool_calls;
    impl->for_tools.emplace(std::move(*second));
  }
  return ChatTemplate(std::move(impl));
}

Expected<std::string> ChatTemplate::render(const ChatInput& input) const {
  MILLRACE_ASSIGN(const std::string extra, with_tokens(impl_->tokens, input.extra));
  const bool tools = impl_->for_tools && has_entries(input.tools);
  const auto& core = tools ? *impl_->for_tools : impl_->main;
  return text::call_bridge([&] {
    return std::string(core->render(text::as_slice(input.messages), text::as_slice(input.tools),
                                    text::as_slice(extra), input.add_generation_prompt,
                                    input.now.value_or(std::numeric_limits<std::int64_t>::min())));
  });
}

const TemplateCapabilities& ChatTemplate::capabilities() const { return impl_->capabilities; }

const std::string& ChatTemplate::source() const { return impl_->source; }

Expected<std::vector<TemplateSource>> find_chat_templates(const std::filesystem::path& folder) {
  std::vector<TemplateSource> found;
  std::error_code error;
  const auto jinja = folder / "chat_template.jinja";
  if (std::filesystem::exists(jinja, error)) {
    MILLRACE_ASSIGN(std::string text, text::read_file(jinja));
    found.push_back({"default", std::move(text)});
    const auto more = folder / "additional_chat_templates";
    for (const auto& entry : std::filesystem::directory_iterator(more, error)) {
      if (entry.path().extension() != ".jinja") continue;
      MILLRACE_ASSIGN(std::string named, text::read_file(entry.path()));
      found.push_back({entry.path().stem().string(), std::move(named)});
    }
    return found;
  }
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const auto path = folder / name;
    MILLRACE_ASSIGN(const json config, text::read_json_if_present(path));
    if (!config.is_object() || !config.contains("chat_template")) continue;
    const json& value = config["chat_template"];
    if (value.is_string()) {
      found.push_back({"default", value.get<std::string>()});
      return found;
    }
    if (value.is_null()) continue;
    for (const json& entry : value.is_array() ? value : json::array({value})) {
      if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
          !entry.contains("template") || !entry["template"].is_string()) {
        return fail(Code::kInvalid, "{}: chat_template is neither text nor named texts",
                    path.string());
      }
      found.push_back({entry["name"].get<std::string>(), entry["template"].get<std::string>()});
    }
    return found;
  }
  return found;
}

Expected<TemplateTokens> find_template_tokens(const std::filesystem::path& folder) {
  TemplateTokens tokens;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    MILLRACE_ASSIGN(const json config, text::read_json_if_present(folder / name));
    if (!config.is_object()) continue;
    for (const auto& [key, value] : config.items()) {
      if (!key.ends_with("_token")) continue;
      if (value.is_string()) tokens.emplace(key, value.get<std::string>());
      if (value.is_object() && value.contains("content") && value["content"].is_string()) {
        tokens.emplace(key, value["content"].get<std::string>());
      }
    }
  }
  return tokens;
}

}  // namespace millrace
