// Chat templates, their inputs, tokenizer.json, GGUF vocabularies and token streams: the first byte
// says which. Nothing may crash, hang or let an exception out; what comes out is UTF-8.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "check_source.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace millrace;

void check_template(std::string_view source) {
  const auto compiled = ChatTemplate::compile(source, {{"bos_token", "<s>"}});
  if (!compiled) return;
  const auto text = compiled->render(
      {.messages = R"([{"role":"user","content":"hi"},{"role":"assistant","content":null}])",
       .tools = R"([{"type":"function","function":{"name":"f","parameters":{}}}])"});
  if (text) fuzz::require(find_invalid_utf8(*text) == std::string::npos);
}

void check_messages(std::string_view messages) {
  static const auto compiled = ChatTemplate::compile(
      "{% for m in messages %}{{ m.role ~ m.content }}{{ m | tojson(indent=2) }}{{ m }}"
      "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}");
  fuzz::require(compiled.has_value());
  const auto text = compiled->render({.messages = messages});
  if (text) fuzz::require(find_invalid_utf8(*text) == std::string::npos);
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const auto control : {ControlText::kParse, ControlText::kLiteral}) {
    const auto ids = tokenizer.encode(text, {.control = control});
    if (!ids) continue;
    fuzz::require(find_invalid_utf8(tokenizer.decode(*ids)) == std::string::npos);
  }
}

void check_gguf(std::string_view data) {
  static constexpr std::string_view kModels[] = {"gpt2", "llama", "gemma4", "t5"};
  static const auto names = Tokenizer::known_pre_tokenizers();
  if (data.size() < 3) return;
  GgufVocab vocab;
  vocab.model = kModels[static_cast<std::uint8_t>(data[0]) % 4];
  vocab.pre = names[static_cast<std::uint8_t>(data[1]) % names.size()];
  vocab.unk = static_cast<std::uint8_t>(data[2]) % 8;
  data.remove_prefix(3);
  // Tokens are cut at newlines; every third byte string becomes a merge as well.
  for (std::size_t i = 0; !data.empty() && i < 300; ++i) {
    const std::string_view piece = data.substr(0, data.find('\n'));
    data.remove_prefix(std::min(piece.size() + 1, data.size()));
    if (i % 3 == 2) vocab.merges.emplace_back(piece);
    vocab.tokens.emplace_back(piece);
    vocab.token_types.push_back(static_cast<std::int32_t>(1 + (piece.size() + i) % 6));
    vocab.scores.push_back(-static_cast<float>(i));
  }
  const auto tokenizer = Tokenizer::from_gguf(vocab);
  if (tokenizer) use(*tokenizer, "some text 123 \xC3\xA9 <x>");
}

void check_utf8(std::string_view bytes) {
  std::string whole;
  Utf8Stream at_once;
  at_once.push(bytes, whole);
  at_once.flush(whole);
  std::string pieces;
  Utf8Stream one_by_one;
  for (std::size_t i = 0; i < bytes.size(); ++i) one_by_one.push(bytes.substr(i, 1), pieces);
  one_by_one.flush(pieces);
  fuzz::require(whole == pieces && find_invalid_utf8(whole) == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      check_template(rest);
      break;
    case 1:
      check_messages(rest);
      break;
    case 2: {
      const auto tokenizer = Tokenizer::from_json(rest);
      if (tokenizer) use(*tokenizer, "some text 123 \xC3\xA9 <x>");
      break;
    }
    case 3:
      check_gguf(rest);
      break;
    default:
      check_utf8(rest);
      break;
  }
  return 0;
}
