// Token ids to text, one at a time, never half a character.
//
// For every sequence: all that push() returned, then flush(), equals Tokenizer::decode of the whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace millrace {

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DecodeOptions options = {});

  // The text that this token completes; it can be empty.
  std::string push(std::uint32_t id);
  // What is still held back. An incomplete character becomes U+FFFD.
  std::string flush();

 private:
  std::string push_by_library(std::uint32_t id);
  void append(std::string_view bytes, std::string& out);

  std::shared_ptr<const TokenizerData> tokenizer_;
  DecodeOptions options_;
  Utf8Stream utf8_;
  bool at_start_;      // the rule about the leading blank has yet to be applied
  std::string start_;  // bytes held until it can be
  // For decoders that no table can express: decode everything again, give out what is new.
  std::vector<std::uint32_t> ids_;
  std::string emitted_;
};

}  // namespace millrace
