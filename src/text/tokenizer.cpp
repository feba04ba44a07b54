#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "text/detokenizer.h"
#include "text/files.h"
#include "text/tokenizer_data.h"

namespace millrace {
namespace {

namespace bridge = text::bridge;
using json = nlohmann::json;

// U+FDD0, a noncharacter; the crate knows it as tokenizer::MARK.
constexpr std::string_view kMark = "\xEF\xB7\x90";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Spellings of tokens that end a turn. GGUF names one EOS; chat models of that EOS's base end their
// turns with another token, which only its spelling tells.
constexpr std::array<std::string_view, 20> kEndOfTurn = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

std::int64_t or_absent(const std::optional<std::uint32_t>& id) {
  return id ? static_cast<std::int64_t>(*id) : -1;
}

std::int8_t or_absent(const std::optional<bool>& flag) {
  return flag ? static_cast<std::int8_t>(*flag) : std::int8_t{-1};
}

Expected<rust::String> to_rust(std::string_view what, std::size_t index, const std::string& text) {
  try {
    return rust::String(text);
  } catch (const std::exception&) {
    return fail(Code::kInvalid, "{}[{}] is not UTF-8", what, index);
  }
}

Expected<rust::Vec<rust::String>> to_rust(std::string_view what,
                                          const std::vector<std::string>& texts) {
  rust::Vec<rust::String> out;
  out.reserve(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    MILLRACE_ASSIGN(rust::String text, to_rust(what, i, texts[i]));
    out.push_back(std::move(text));
  }
  return out;
}

template <class T>
rust::Vec<T> to_rust(const std::vector<T>& values) {
  rust::Vec<T> out;
  out.reserve(values.size());
  for (const T& value : values) out.push_back(value);
  return out;
}

// Phi-3's tokenizer takes the blanks after its control tokens away; GGUF cannot say so.
bool strips_after_control(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

Expected<std::shared_ptr<TokenizerData>> make_data(
    Expected<rust::Box<bridge::TokenizerCore>> core) {
  if (!core) return tl::unexpected(std::move(core.error()));
  auto data = std::make_shared<TokenizerData>(std::move(*core));
  MILLRACE_ASSIGN(bridge::TokenTable table, text::call_bridge([&] { return data->core->table(); }));
  data->texts = std::move(table.texts);
  data->text_ends = std::move(table.text_ends);
  data->pieces = std::move(table.pieces);
  data->piece_ends = std::move(table.piece_ends);
  data->flags = std::move(table.flags);
  data->exact = table.exact;
  data->leading_blank = table.leading_blank != 0;
  data->blank_only_if_absent = table.blank_only_if_absent;
  for (std::uint32_t id = 0; id < data->flags.size(); ++id) {
    if (data->special(id) && !data->text(id).empty()) data->control_texts.insert(data->text(id));
  }
  for (const std::string_view text : data->control_texts) {
    data->control_lengths.push_back(text.size());
  }
  auto& lengths = data->control_lengths;
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return data;
}

void add_end(TokenizerData& data, const std::optional<std::uint32_t>& id) {
  auto& ends = data.eos_ids;
  if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
}

std::optional<std::uint32_t> find_id(const TokenizerData& data, std::string_view token) {
  const auto id = text::call_bridge(
      [&] { return data.core->token_to_id(rust::Str(token.data(), token.size())); });
  if (!id || *id < 0) return std::nullopt;
  return static_cast<std::uint32_t>(*id);
}

void add_gguf_ends(TokenizerData& data, const GgufVocab& vocab) {
  add_end(data, vocab.eos);
  add_end(data, vocab.eot);
  add_end(data, vocab.eom);
  for (const std::string_view spelling : kEndOfTurn) {
    const auto id = find_id(data, spelling);
    if (id && data.has(*id, TokenizerData::kAdded)) add_end(data, id);
  }
  // In the harmony format <|end|> ends a message, and the turn goes on.
  const auto ends_with = [&](std::string_view spelling) {
    const auto id = find_id(data, spelling);
    return id && std::find(data.eos_ids.begin(), data.eos_ids.end(), *id) != data.eos_ids.end();
  };
  const bool calls = ends_with("<|call|>") || ends_with("<|calls|>");
  if (calls && (ends_with("<|return|>") || ends_with("<|flush|>"))) {
    if (const auto end = find_id(data, "<|end|>")) std::erase(data.eos_ids, *end);
  }
}

// A special token in tokenizer_config.json: its text, or an object that holds it.
std::optional<std::string> token_text(const json& config, const char* key) {
  const auto at = config.find(key);
  if (at == config.end()) return std::nullopt;
  if (at->is_string()) return at->get<std::string>();
  if (at->is_object() && at->contains("content") && (*at)["content"].is_string()) {
    return (*at)["content"].get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

std::string TokenizerData::decode_by_library(std::span<const std::uint32_t> ids,
                                             bool skip_special) const {
  const auto text = text::call_bridge([&] {
    return std::string(core->decode({ids.data(), ids.size()}, skip_special));
  });
  return text.value_or(std::string());
}

Expected<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json) {
  MILLRACE_ASSIGN(auto data, make_data(text::call_bridge([&] {
                    return bridge::tokenizer_from_json(text::as_slice(tokenizer_json));
                  })));
  return Tokenizer(std::move(data));
}

Expected<Tokenizer> Tokenizer::from_file(const std::filesystem::path& tokenizer_json) {
  MILLRACE_ASSIGN(const std::string bytes, text::read_file(tokenizer_json));
  auto tokenizer = from_json(bytes);
  if (!tokenizer) return with_context(tokenizer_json.string(), std::move(tokenizer.error()));
  return tokenizer;
}

Expected<Tokenizer> Tokenizer::from_folder(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  MILLRACE_ASSIGN(const std::string bytes, text::read_file(path));
  auto data = make_data(
      text::call_bridge([&] { return bridge::tokenizer_from_json(text::as_slice(bytes)); }));
  if (!data) return with_context(path.string(), std::move(data.error()));
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    MILLRACE_ASSIGN(const json config, text::read_json_if_present(folder / name));
    if (!config.is_object()) continue;
    SpecialIds& ids = (*data)->special_ids;
    const auto take = [&](const char* key, std::optional<std::uint32_t>& id) {
      if (id) return;
      if (const auto token = token_text(config, key)) id = find_id(**data, *token);
    };
    take("bos_token", ids.bos);
    take("eos_token", ids.eos);
    take("unk_token", ids.unk);
    take("pad_token", ids.pad);
  }
  add_end(**data, (*data)->special_ids.eos);
  return Tokenizer(std::move(*data));
}

Expected<Tokenizer> Tokenizer::from_gguf(const GgufVocab& vocab) {
  auto made = [&]() -> Expected<std::shared_ptr<TokenizerData>> {
    if (!vocab.hf_json.empty()) {
      return make_data(text::call_bridge(
          [&] { return bridge::tokenizer_from_json(text::as_slice(vocab.hf_json)); }));
    }
    bridge::GgufVocab out;
    MILLRACE_ASSIGN(out.model, to_rust("tokenizer.ggml.model", 0, vocab.model));
    MILLRACE_ASSIGN(out.pre, to_rust("tokenizer.ggml.pre", 0, vocab.pre));
    MILLRACE_ASSIGN(out.tokens, to_rust("tokenizer.ggml.tokens", vocab.tokens));
    MILLRACE_ASSIGN(out.merges, to_rust("tokenizer.ggml.merges", vocab.merges));
    out.scores = to_rust(vocab.scores);
    out.token_types = to_rust(vocab.token_types);
    out.charsmap = to_rust(vocab.precompiled_charsmap);
    out.bos = or_absent(vocab.bos);
    out.eos = or_absent(vocab.eos);
    out.unk = or_absent(vocab.unk);
    out.add_bos = or_absent(vocab.add_bos);
    out.add_eos = or_absent(vocab.add_eos);
    out.add_space_prefix = or_absent(vocab.add_space_prefix);
    out.remove_extra_whitespaces = or_absent(vocab.remove_extra_whitespaces);
    out.strip_after_control = strips_after_control(vocab.name);
    return make_data(
        text::call_bridge([&] { return bridge::tokenizer_from_gguf(std::move(out)); }));
  }();
  if (!made) return tl::unexpected(std::move(made.error()));
  TokenizerData& data = **made;
  data.special_ids = {vocab.bos, vocab.eos, vocab.unk, vocab.pad};
  add_gguf_ends(data, vocab);
  return Tokenizer(std::move(*made));
}

std::vector<std::string> Tokenizer::known_pre_tokenizers() {
  std::vector<std::string> names;
  for (const rust::String& name : bridge::known_pre_tokenizers()) names.emplace_back(name);
  return names;
}

Expected<std::vector<std::uint32_t>> Tokenizer::encode(std::string_view text,
                                                       EncodeOptions options) const {
  bridge::ControlText control = bridge::ControlText::Parse;
  if (options.control == ControlText::kLiteral) control = bridge::ControlText::Literal;
  if (options.control == ControlText::kLiteralWhereMarked) {
    control = bridge::ControlText::LiteralWhereMarked;
  }
  return text::call_bridge([&] {
    const auto ids = data_->core->encode(text::as_slice(text), options.add_special, control);
    return std::vector<std::uint32_t>(ids.begin(), ids.end());
  });
}

std::string Tokenizer::decode(std::span<const std::uint32_t> ids, DecodeOptions options) const {
  if (!data_->exact) return data_->decode_by_library(ids, options.skip_special);
  Detokenizer stream(*this, options);
  std::string out;
  for (const std::uint32_t id : ids) out += stream.push(id);
  out += stream.flush();
  return out;
}

Expected<std::string> Tokenizer::decode_by_library(std::span<const std::uint32_t> ids,
                                                   bool skip_special) const {
  return text::call_bridge([&] {
    return std::string(data_->core->decode({ids.data(), ids.size()}, skip_special));
  });
}

std::uint32_t Tokenizer::vocab_size() const {
  return static_cast<std::uint32_t>(data_->flags.size());
}

bool Tokenizer::has_token(std::uint32_t id) const {
  return data_->present(id) && !data_->has(id, TokenizerData::kUnused);
}

std::string_view Tokenizer::token(std::uint32_t id) const { return data_->text(id); }

std::string_view Tokenizer::bytes(std::uint32_t id) const { return data_->piece(id); }

std::optional<std::uint32_t> Tokenizer::find(std::string_view token) const {
  return find_id(*data_, token);
}

bool Tokenizer::is_special(std::uint32_t id) const { return data_->special(id); }

bool Tokenizer::is_added(std::uint32_t id) const { return data_->has(id, TokenizerData::kAdded); }

const SpecialIds& Tokenizer::special_ids() const { return data_->special_ids; }

const std::vector<std::uint32_t>& Tokenizer::eos_ids() const { return data_->eos_ids; }

std::string Tokenizer::mark_literal(std::string_view content) const {
  std::string out;
  out.reserve(content.size());
  while (!content.empty()) {
    std::size_t step = 1;
    if (content.starts_with(kMark)) {
      out += kReplacement;  // a mark of the user's own must not act as one
      content.remove_prefix(kMark.size());
      continue;
    }
    for (const std::size_t length : data_->control_lengths) {
      if (length > content.size()) continue;
      if (!data_->control_texts.contains(content.substr(0, length))) continue;
      // After the first character, so that trimming a message still sees its real edge. Control
      // tokens can overlap, so go on behind that character only.
      while (step < length && (static_cast<unsigned char>(content[step]) & 0xC0) == 0x80) ++step;
      out += content.substr(0, step);
      out += kMark;
      content.remove_prefix(step);
      step = 0;
      break;
    }
    out += content.substr(0, step);
    content.remove_prefix(step);
  }
  return out;
}

}  // namespace millrace
