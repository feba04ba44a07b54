#include "text/utf8.h"

#include <cstdint>

namespace millrace {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Step { kComplete, kInvalid, kShort };

struct Scan {
  Step step;
  std::size_t length;  // bytes of the character, of the invalid part, or of the beginning
};

// Looks at the character that begins at text[0]; text is not empty.
Scan scan(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return {Step::kComplete, 1};
  std::size_t length = 0;
  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Step::kInvalid, 1};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Step::kShort, i};
    if (byte(i) < low || byte(i) > high) return {Step::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Step::kComplete, length};
}

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  while (!bytes.empty()) {
    const Scan next = scan(bytes);
    if (next.step == Step::kShort) {
      held_ = std::string(bytes);
      return;
    }
    out += next.step == Step::kComplete ? bytes.substr(0, next.length) : kReplacement;
    bytes.remove_prefix(next.length);
  }
}

void Utf8Stream::flush(std::string& out) {
  if (!held_.empty()) out += kReplacement;
  held_.clear();
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Scan next = scan(text.substr(at));
    if (next.step != Step::kComplete) return at;
    at += next.length;
  }
  return std::string_view::npos;
}

}  // namespace millrace
