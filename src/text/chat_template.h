// Chat templates: a conversation to the prompt text that the model was trained on.
//
// A template comes with the model and is data: it can compute text, and nothing else. It is rendered
// as the reference does (Jinja2 in transformers). Encode the result with add_special = false.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

struct TemplateSource {
  std::string name;  // "default", "tool_use", "rag", ...
  std::string text;
};

// The tokens that templates name: "bos_token" -> "<s>", ...
using TemplateTokens = std::map<std::string, std::string>;

// What a template turned out to print when it was compiled.
struct TemplateCapabilities {
  bool string_content = true;    // content as a string; otherwise strings are wrapped in a part
  bool part_content = false;     // content as parts; otherwise text parts are joined by newlines
  bool object_arguments = true;  // tool-call arguments as an object; otherwise as JSON text
  bool tool_calls = false;
  bool tools = false;
  bool system = false;
};

struct ChatInput {
  std::string_view messages = {};  // a JSON list, as the OpenAI API has it
  std::string_view tools = {};     // a JSON list, or empty; keys keep their order
  std::string_view extra = {};     // a JSON object of further template variables, or empty
  bool add_generation_prompt = true;
  std::optional<std::int64_t> now = {};  // Unix seconds for strftime_now; absent: the clock
};

class ChatTemplate {
 public:
  static Expected<ChatTemplate> compile(std::string_view source, const TemplateTokens& tokens = {});
  // Several named templates: "default" is used, "tool_use" if there are tools.
  static Expected<ChatTemplate> compile(const std::vector<TemplateSource>& sources,
                                        const TemplateTokens& tokens = {});

  // An Error of Code::kInvalid carries what the template said with raise_exception, as it stands.
  Expected<std::string> render(const ChatInput& input) const;

  const TemplateCapabilities& capabilities() const;
  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

// The templates of a model folder: chat_template.jinja (and additional_chat_templates/*.jinja), else
// chat_template.json, else `chat_template` of tokenizer_config.json (one, or a list of named ones).
// Empty if the folder has none.
Expected<std::vector<TemplateSource>> find_chat_templates(const std::filesystem::path& folder);

// bos_token, eos_token, ... as tokenizer_config.json and special_tokens_map.json spell them.
Expected<TemplateTokens> find_template_tokens(const std::filesystem::path& folder);

}  // namespace millrace
