// What a Tokenizer holds; shared with the Detokenizer, and with nobody outside src/text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/bridge.h"
#include "text/tokenizer.h"

namespace millrace {

struct TokenizerData {
  enum Flag : std::uint8_t { kPresent = 1, kSpecial = 2, kAdded = 4, kByte = 8, kUnused = 16 };

  explicit TokenizerData(rust::Box<text::bridge::TokenizerCore> bridged)
      : core(std::move(bridged)) {}

  rust::Box<text::bridge::TokenizerCore> core;
  rust::Vec<std::uint8_t> texts;        // all tokens' spellings, one after the other
  rust::Vec<std::uint64_t> text_ends;   // (vocab)
  rust::Vec<std::uint8_t> pieces;       // all tokens' bytes
  rust::Vec<std::uint64_t> piece_ends;  // (vocab)
  rust::Vec<std::uint8_t> flags;        // (vocab)
  bool exact = false;                   // decoding is the pieces' concatenation
  bool leading_blank = false;           // encoding put a blank before the first word
  bool blank_only_if_absent = false;    // ... unless the text began with one
  SpecialIds special_ids;
  std::vector<std::uint32_t> eos_ids;
  std::unordered_set<std::string_view> control_texts;  // views into `texts`
  std::vector<std::size_t> control_lengths;            // the lengths among them, longest first

  bool has(std::uint32_t id, Flag flag) const { return id < flags.size() && (flags[id] & flag); }
  bool present(std::uint32_t id) const { return has(id, kPresent); }
  bool special(std::uint32_t id) const { return has(id, kSpecial); }

  std::string_view text(std::uint32_t id) const { return part(texts, text_ends, id); }
  std::string_view piece(std::uint32_t id) const { return part(pieces, piece_ends, id); }

  // Empty if the library refuses the ids.
  std::string decode_by_library(std::span<const std::uint32_t> ids, bool skip_special) const;

 private:
  static std::string_view part(const rust::Vec<std::uint8_t>& data,
                               const rust::Vec<std::uint64_t>& ends, std::uint32_t id) {
    if (id >= ends.size()) return {};
    const std::uint64_t begin = id == 0 ? 0 : ends[id - 1];
    return {reinterpret_cast<const char*>(data.data()) + begin, ends[id] - begin};
  }
};

}  // namespace millrace
