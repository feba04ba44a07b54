// Chat templates against transformers' own engine, and the shapes that messages are brought into.

#include "text/chat_template.h"

#include <cstdlib>
#include <filesystem>

#include "tests/text/fixtures.h"

namespace millrace {
namespace {

using testing::fixture;
using testing::json;

class Templates : public ::testing::Test {
 protected:
  // strftime_now prints local time.
  static void SetUpTestSuite() { setenv("TZ", "UTC", 1); }

  static Expected<std::string> render(const std::string& source, json variables,
                                      const TemplateTokens& tokens = {},
                                      std::optional<std::int64_t> now = std::nullopt) {
    auto compiled = ChatTemplate::compile(source, tokens);
    if (!compiled) return tl::unexpected(compiled.error());
    const json messages = take(variables, "messages", json::array());
    const json tools = take(variables, "tools", json());
    const bool prompt = take(variables, "add_generation_prompt", false).get<bool>();
    const std::string messages_text = messages.dump();
    const std::string tools_text = tools.is_null() ? "" : tools.dump();
    const std::string extra_text = variables.empty() ? "" : variables.dump();
    return compiled->render({.messages = messages_text,
                             .tools = tools_text,
                             .extra = extra_text,
                             .add_generation_prompt = prompt,
                             .now = now});
  }

  static json take(json& variables, const char* name, json otherwise) {
    if (!variables.contains(name)) return otherwise;
    json value = variables[name];
    variables.erase(name);
    return value;
  }

  static void expect(const Expected<std::string>& got, const json& want) {
    if (want.contains("expected")) {
      ASSERT_TRUE(got.has_value()) << got.error().message;
      EXPECT_EQ(*got, want["expected"].get<std::string>());
      return;
    }
    ASSERT_FALSE(got.has_value()) << "should fail with " << want.dump() << " but gave " << *got;
    EXPECT_EQ(got.error().code, Code::kInvalid);
    if (want.contains("message")) {
      EXPECT_EQ(got.error().message, want["message"].get<std::string>());
    }
  }
};

TEST_F(Templates, ConstructsRenderAsInPython) {
  const json all = fixture("templates.json");
  for (const json& snippet : all["snippets"]) {
    SCOPED_TRACE(snippet["source"].dump());
    expect(render(snippet["source"], snippet["variables"], {}, all["now"].get<std::int64_t>()),
           snippet);
  }
}

TEST_F(Templates, FamiliesRenderAsInPython) {
  const json all = fixture("templates.json");
  const auto tokens = all["tokens"].get<TemplateTokens>();
  for (const auto& [name, family] : all["families"].items()) {
    for (const json& want : family["cases"]) {
      SCOPED_TRACE(name + " " + want["name"].get<std::string>());
      expect(render(family["source"], want["variables"], tokens, all["now"].get<std::int64_t>()),
             want);
    }
  }
}

TEST_F(Templates, CapabilitiesAreFound) {
  const json all = fixture("templates.json");
  const auto of = [&](const char* family) {
    const auto compiled = ChatTemplate::compile(
        all["families"][family]["source"].get<std::string>(), all["tokens"].get<TemplateTokens>());
    EXPECT_TRUE(compiled.has_value());
    return compiled->capabilities();
  };
  EXPECT_TRUE(of("gemma").part_content);
  EXPECT_TRUE(of("gemma").string_content);
  EXPECT_FALSE(of("gemma").tools);
  EXPECT_FALSE(of("smollm").part_content);
  EXPECT_TRUE(of("smollm").system);
  EXPECT_FALSE(of("phi").tool_calls);
  for (const char* family : {"llama3", "qwen3", "qwen3_coder", "mistral", "harmony", "glm"}) {
    SCOPED_TRACE(family);
    EXPECT_TRUE(of(family).tools);
    EXPECT_TRUE(of(family).tool_calls);
    EXPECT_TRUE(of(family).object_arguments);
  }
  EXPECT_TRUE(of("deepseek").tool_calls);
  EXPECT_FALSE(of("deepseek").object_arguments);
}

json user(json content) { return {{{"role", "user"}, {"content", std::move(content)}}}; }

TEST_F(Templates, PartsAreJoinedWhereTextIsExpected) {
  const char* source = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
  const json parts = json::parse(R"([{"type":"text","text":"a"},{"type":"text","text":"b"}])");
  EXPECT_EQ(render(source, {{"messages", user(parts)}}).value(), "[a\nb]");
}

TEST_F(Templates, TextIsWrappedWherePartsAreExpected) {
  const char* source =
      "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]"
      "{% endif %}{% endfor %}{% endfor %}";
  EXPECT_EQ(render(source, {{"messages", user("hi")}}).value(), "[hi]");
}

TEST_F(Templates, NullContentDoesNotShow) {
  const json messages = json::parse(
      R"([{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":null}])");
  const auto with = [&](const char* source) { return render(source, {{"messages", messages}}); };
  EXPECT_EQ(with("{% for m in messages %}[{{ m.content }}]{% endfor %}").value(), "[q][]");
  EXPECT_EQ(with("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}").value(),
            "<q><>");
  EXPECT_EQ(with("{% for m in messages %}{% if m.content is none %}N{% else %}{{ m.content }}"
                 "{% endif %}{% endfor %}")
                .value(),
            "qN");
  EXPECT_EQ(with("{% for m in messages %}{{ 'tool_calls' in m }} {% endfor %}").value(),
            "False False ");
}

TEST_F(Templates, ArgumentsTakeTheFormThatTheTemplatePrints) {
  const json all = fixture("templates.json");
  const auto tokens = all["tokens"].get<TemplateTokens>();
  const auto now = all["now"].get<std::int64_t>();
  for (const auto& [name, family] : all["families"].items()) {
    for (const json& want : family["cases"]) {
      const auto case_name = want["name"].get<std::string>();
      if (!case_name.ends_with("call") && !case_name.ends_with("calls")) continue;
      SCOPED_TRACE(name + " " + case_name);
      json variables = want["variables"];
      for (json& message : variables["messages"]) {
        if (!message.contains("tool_calls")) continue;
        for (json& call : message["tool_calls"]) {
          json& arguments = call["function"]["arguments"];
          if (arguments.is_string()) {
            arguments = json::parse(arguments.get<std::string>());
          } else {
            arguments = arguments.dump();
          }
        }
      }
      expect(render(family["source"], variables, tokens, now), want);
    }
  }
}

TEST_F(Templates, ReasoningHasAllItsNames) {
  const json messages = json::parse(R"([{"role":"assistant","content":"x","reasoning":"why"}])");
  EXPECT_EQ(render("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}",
                   {{"messages", messages}})
                .value(),
            "why|why");
}

TEST_F(Templates, ErrorsNameTheLine) {
  const auto bad = ChatTemplate::compile("a\n{% for x %}");
  ASSERT_FALSE(bad.has_value());
  EXPECT_NE(bad.error().message.find("line 2"), std::string::npos) << bad.error().message;
  const auto failed = render("a\n\n{{ missing.attribute }}", json::object());
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message.find("line 3"), std::string::npos) << failed.error().message;
}

TEST_F(Templates, HostileTemplatesEnd) {
  const char* loops =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
      "{% endfor %}{% endfor %}{% endfor %}";
  EXPECT_FALSE(render(loops, json::object()).has_value());
  EXPECT_FALSE(
      render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", json::object()).has_value());
  EXPECT_FALSE(render("{{ range(10 ** 12) }}", json::object()).has_value());
  EXPECT_FALSE(render("{{ 'x' * 10 ** 11 }}", json::object()).has_value());
  std::string nested(20000, '(');
  EXPECT_FALSE(ChatTemplate::compile("{{ " + nested + "1 }}").has_value());
}

TEST_F(Templates, InputMustBeRight) {
  const auto compiled = ChatTemplate::compile("{{ messages | length }}");
  ASSERT_TRUE(compiled.has_value());
  EXPECT_FALSE(compiled->render({.messages = "{"}).has_value());
  EXPECT_FALSE(compiled->render({.messages = "{}"}).has_value());
  EXPECT_FALSE(compiled->render({.messages = "[1]"}).has_value());
  EXPECT_FALSE(compiled->render({.messages = "[]", .extra = "[]"}).has_value());
  EXPECT_FALSE(compiled->render({.messages = std::string(5000, '[')}).has_value());
  EXPECT_EQ(compiled->render({.messages = "[]"}).value(), "0");
}

TEST_F(Templates, NamedTemplatesAreChosenByTools) {
  const auto compiled = ChatTemplate::compile({{"tool_use", "T"}, {"default", "D"}});
  ASSERT_TRUE(compiled.has_value());
  EXPECT_EQ(compiled->render({.messages = "[]"}).value(), "D");
  EXPECT_EQ(compiled->render({.messages = "[]", .tools = "[]"}).value(), "D");
  EXPECT_EQ(compiled->render({.messages = "[]", .tools = R"([{"type":"function"}])"}).value(), "T");
  EXPECT_FALSE(ChatTemplate::compile({{"rag", "R"}}).has_value());
}

TEST_F(Templates, FilesOfAFolder) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "millrace_templates";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder / name) << text;
  };
  EXPECT_TRUE(find_chat_templates(folder).value().empty());
  write("tokenizer_config.json",
        R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","pad_token":null,
            "chat_template":[{"name":"default","template":"D"},{"name":"tool_use","template":"T"}]})");
  auto found = find_chat_templates(folder).value();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].name, "tool_use");
  const TemplateTokens tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(find_template_tokens(folder).value(), tokens);
  write("chat_template.jinja", "J");
  found = find_chat_templates(folder).value();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "J");
  fs::remove(folder / "chat_template.jinja");
  write("tokenizer_config.json", R"({"chat_template":"S"})");
  EXPECT_EQ(find_chat_templates(folder).value()[0].text, "S");
  write("tokenizer_config.json", R"({"chat_template":[1]})");
  EXPECT_FALSE(find_chat_templates(folder).has_value());
  write("tokenizer_config.json", "{");
  EXPECT_FALSE(find_chat_templates(folder).has_value());
}

TEST_F(Templates, BundledModelsTemplate) {
  const std::filesystem::path folder = MILLRACE_SOURCE_DIR "/models/tiny-moe-4bit";
  const auto compiled = ChatTemplate::compile(find_chat_templates(folder).value(),
                                              find_template_tokens(folder).value());
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  EXPECT_EQ(compiled->render({.messages = R"([{"role":"user","content":"hi"}])"}).value(),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace millrace
