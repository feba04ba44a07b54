// Text to token ids and back. A Tokenizer is immutable, cheap to copy and safe to share by threads.
//
// Encoding is the reference library's. Decoding is a table of each token's bytes plus one rule about
// a leading blank, so that a stream of tokens and the whole sequence give the same text (see
// detokenizer.h); it equals the library's decoding wherever that is free of its two known faults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/gguf_vocab.h"

namespace millrace {

// Text that spells a control token ("<|im_end|>" typed by a user).
enum class ControlText {
  kParse,               // becomes that token, as in the reference
  kLiteral,             // stays text
  kLiteralWhereMarked,  // stays text where Tokenizer::mark_literal went over it
};

struct EncodeOptions {
  // The frame that the model expects around a plain prompt (BOS, EOS). Rendered chat templates
  // write their own: encode those without.
  bool add_special = true;
  ControlText control = ControlText::kParse;
};

struct DecodeOptions {
  bool skip_special = true;
  // The ids continue a text. Otherwise the blank that encoding put before the first word goes.
  bool continuation = false;
};

struct SpecialIds {
  std::optional<std::uint32_t> bos;
  std::optional<std::uint32_t> eos;
  std::optional<std::uint32_t> unk;
  std::optional<std::uint32_t> pad;
};

struct TokenizerData;

class Tokenizer {
 public:
  static Expected<Tokenizer> from_json(std::string_view tokenizer_json);
  static Expected<Tokenizer> from_file(const std::filesystem::path& tokenizer_json);
  // tokenizer.json, and the special tokens that tokenizer_config.json names.
  static Expected<Tokenizer> from_folder(const std::filesystem::path& folder);
  static Expected<Tokenizer> from_gguf(const GgufVocab& vocab);

  // The names of tokenizer.ggml.pre that from_gguf knows.
  static std::vector<std::string> known_pre_tokenizers();

  Expected<std::vector<std::uint32_t>> encode(std::string_view text,
                                              EncodeOptions options = {}) const;
  // Invalid bytes come out as U+FFFD. Ids without a token give nothing.
  std::string decode(std::span<const std::uint32_t> ids, DecodeOptions options = {}) const;
  // The reference library's own decoding.
  Expected<std::string> decode_by_library(std::span<const std::uint32_t> ids,
                                          bool skip_special) const;

  // One more than the largest id. Ids below it can be without a token, and a model's head can have
  // more rows than this.
  std::uint32_t vocab_size() const;
  bool has_token(std::uint32_t id) const;          // there is a token, and a model may emit it
  std::string_view token(std::uint32_t id) const;  // as the vocabulary spells it; "" without one
  std::string_view bytes(std::uint32_t id) const;  // what it adds to a text
  std::optional<std::uint32_t> find(std::string_view token) const;
  bool is_special(std::uint32_t id) const;  // a control token
  bool is_added(std::uint32_t id) const;    // cut out of text before the model sees it

  const SpecialIds& special_ids() const;
  // The ids that end a generation, as far as the tokenizer itself knows (stop_ids.h adds the rest).
  const std::vector<std::uint32_t>& eos_ids() const;

  // Marks every spelling of a control token in `content`, so that kLiteralWhereMarked keeps it as
  // text after a chat template has put it between real control tokens.
  std::string mark_literal(std::string_view content) const;

 private:
  friend class Detokenizer;
  explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}

  std::shared_ptr<const TokenizerData> data_;
};

}  // namespace millrace
