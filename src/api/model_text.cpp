// The text side of a model: tokenizer, chat template, ids that stop.
#include <filesystem>

#include "api/model_impl.h"
#include "base/status.h"
#include "format/gguf_value.h"
#include "text/stop_ids.h"

namespace millrace {
namespace {

Expected<GgufVocab> gguf_vocab(const format::GgufMetadata& meta) {
  using namespace format;
  GgufVocab vocab;
  auto optional_id = [&](const char* key, std::optional<uint32_t>* out) -> Status {
    if (!has_key(meta, key)) return {};
    MILLRACE_ASSIGN(const uint64_t id, get_uint(meta, key));
    *out = static_cast<uint32_t>(id);
    return {};
  };
  auto optional_flag = [&](const char* key, std::optional<bool>* out) -> Status {
    if (!has_key(meta, key)) return {};
    MILLRACE_ASSIGN(*out, get_bool(meta, key));
    return {};
  };
  MILLRACE_ASSIGN(vocab.model, get_string(meta, "tokenizer.ggml.model"));
  MILLRACE_ASSIGN(vocab.pre, get_string_or(meta, "tokenizer.ggml.pre", ""));
  MILLRACE_ASSIGN(const auto* tokens, get_strings(meta, "tokenizer.ggml.tokens"));
  vocab.tokens = *tokens;
  if (has_key(meta, "tokenizer.ggml.scores")) {
    MILLRACE_ASSIGN(const auto scores, get_floats(meta, "tokenizer.ggml.scores"));
    vocab.scores.assign(scores.begin(), scores.end());
  }
  if (has_key(meta, "tokenizer.ggml.token_type")) {
    MILLRACE_ASSIGN(const auto types, get_ints(meta, "tokenizer.ggml.token_type"));
    vocab.token_types.assign(types.begin(), types.end());
  }
  if (has_key(meta, "tokenizer.ggml.merges")) {
    MILLRACE_ASSIGN(const auto* merges, get_strings(meta, "tokenizer.ggml.merges"));
    vocab.merges = *merges;
  }
  if (has_key(meta, "tokenizer.ggml.precompiled_charsmap")) {
    MILLRACE_ASSIGN(const auto bytes, get_ints(meta, "tokenizer.ggml.precompiled_charsmap"));
    for (const int64_t byte : bytes)
      vocab.precompiled_charsmap.push_back(static_cast<uint8_t>(byte));
  }
  MILLRACE_TRY(optional_id("tokenizer.ggml.bos_token_id", &vocab.bos));
  MILLRACE_TRY(optional_id("tokenizer.ggml.eos_token_id", &vocab.eos));
  MILLRACE_TRY(optional_id("tokenizer.ggml.eot_token_id", &vocab.eot));
  MILLRACE_TRY(optional_id("tokenizer.ggml.eom_token_id", &vocab.eom));
  MILLRACE_TRY(optional_id("tokenizer.ggml.unknown_token_id", &vocab.unk));
  MILLRACE_TRY(optional_id("tokenizer.ggml.padding_token_id", &vocab.pad));
  MILLRACE_TRY(optional_flag("tokenizer.ggml.add_bos_token", &vocab.add_bos));
  MILLRACE_TRY(optional_flag("tokenizer.ggml.add_eos_token", &vocab.add_eos));
  MILLRACE_TRY(optional_flag("tokenizer.ggml.add_space_prefix", &vocab.add_space_prefix));
  MILLRACE_TRY(
      optional_flag("tokenizer.ggml.remove_extra_whitespaces", &vocab.remove_extra_whitespaces));
  MILLRACE_ASSIGN(vocab.name, get_string_or(meta, "general.name", ""));
  MILLRACE_ASSIGN(vocab.hf_json, get_string_or(meta, "tokenizer.huggingface.json", ""));
  return vocab;
}

// Tokens that a template may name.
TemplateTokens gguf_template_tokens(const Tokenizer& tokenizer) {
  TemplateTokens tokens;
  const SpecialIds& special = tokenizer.special_ids();
  auto add = [&](const char* name, const std::optional<uint32_t>& id) {
    if (id) tokens[name] = std::string(tokenizer.token(*id));
  };
  add("bos_token", special.bos);
  add("eos_token", special.eos);
  add("unk_token", special.unk);
  add("pad_token", special.pad);
  return tokens;
}

Status load_gguf_text(const format::ModelSource& source, Model::Impl* model) {
  if (!format::has_key(source.gguf, "tokenizer.ggml.model")) return {};
  MILLRACE_ASSIGN(const auto vocab, gguf_vocab(source.gguf));
  auto tokenizer = Tokenizer::from_gguf(vocab);
  if (!tokenizer) return with_context(source.path, tokenizer.error());
  model->tokenizer = std::move(*tokenizer);
  for (const uint32_t id : model->tokenizer->eos_ids())
    model->stops.push_back(static_cast<Token>(id));
  std::vector<TemplateSource> templates;
  MILLRACE_ASSIGN(const auto text,
                  format::get_string_or(source.gguf, "tokenizer.chat_template", ""));
  if (!text.empty()) templates.push_back({"default", text});
  if (format::has_key(source.gguf, "tokenizer.chat_templates")) {
    MILLRACE_ASSIGN(const auto* names,
                    format::get_strings(source.gguf, "tokenizer.chat_templates"));
    for (const auto& name : *names) {
      MILLRACE_ASSIGN(auto named,
                      format::get_string_or(source.gguf, "tokenizer.chat_template." + name, ""));
      if (!named.empty()) templates.push_back({name, std::move(named)});
    }
  }
  if (templates.empty()) return {};
  auto chat = ChatTemplate::compile(templates, gguf_template_tokens(*model->tokenizer));
  if (!chat) return with_context(source.path, chat.error());
  model->chat = std::move(*chat);
  return {};
}

}  // namespace

Status load_text(const format::ModelSource& source, const std::string& folder, Model::Impl* model) {
  if (source.kind == format::SourceKind::kGguf) return load_gguf_text(source, model);
  if (!std::filesystem::exists(std::filesystem::path(folder) / "tokenizer.json")) return {};
  MILLRACE_ASSIGN(model->tokenizer, Tokenizer::from_folder(folder));
  MILLRACE_ASSIGN(const auto stops, stop_ids(std::filesystem::path(folder), *model->tokenizer));
  model->stops.assign(stops.begin(), stops.end());
  MILLRACE_ASSIGN(const auto templates, find_chat_templates(folder));
  if (templates.empty()) return {};
  MILLRACE_ASSIGN(const auto tokens, find_template_tokens(folder));
  MILLRACE_ASSIGN(model->chat, ChatTemplate::compile(templates, tokens));
  return {};
}

}  // namespace millrace
