#include "cli/size.h"

#include <array>
#include <charconv>
#include <cmath>

namespace millrace::cli {
namespace {

constexpr uint64_t kLargest = uint64_t{1} << 62;
constexpr size_t kFractionDigits = 6;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// The shift of a suffix (k = 10 ...), or -1. "", "b", "k", "kb", "kib" and so on.
int unit_shift(std::string_view suffix) {
  constexpr std::string_view kLetters = "kmgt";
  if (suffix.empty() || (suffix.size() == 1 && lower(suffix[0]) == 'b')) return 0;
  const size_t unit = kLetters.find(lower(suffix[0]));
  if (unit == std::string_view::npos) return -1;
  suffix.remove_prefix(1);
  if (!suffix.empty() && lower(suffix[0]) == 'i') {
    suffix.remove_prefix(1);
    if (suffix.empty()) return -1;  // "4Gi" is how some write GiB, but nothing else; ask for the b
  }
  if (suffix.size() == 1 && lower(suffix[0]) == 'b') suffix.remove_prefix(1);
  return suffix.empty() ? static_cast<int>(unit + 1) * 10 : -1;
}

}  // namespace

Expected<uint64_t> parse_size(std::string_view text) {
  if (text.empty()) return fail(Code::kInvalid, "a size is missing (for example 700M or 4G)");
  if (text[0] == '-') return fail(Code::kInvalid, "'{}' is negative", text);

  uint64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, whole);
  if (error == std::errc::result_out_of_range)
    return fail(Code::kInvalid, "'{}' is more than any machine has", text);
  if (error != std::errc{})
    return fail(Code::kInvalid, "'{}' is not a size (for example 700M or 4G)", text);

  std::string_view rest(after, static_cast<size_t>(end - after));
  uint64_t fraction = 0, scale = 1;
  if (!rest.empty() && rest[0] == '.') {
    size_t digits = 1;
    for (; digits < rest.size() && is_digit(rest[digits]); ++digits) {
      if (digits > kFractionDigits) continue;  // below a byte in a megabyte: of no use
      fraction = fraction * 10 + static_cast<uint64_t>(rest[digits] - '0');
      scale *= 10;
    }
    if (digits == 1) return fail(Code::kInvalid, "'{}' has no digits after the point", text);
    rest.remove_prefix(digits);
  }
  while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
  const int shift = unit_shift(rest);
  if (shift < 0)
    return fail(Code::kInvalid,
                "'{}' has an unknown unit '{}' (use K, M, G, T or KiB, MiB, GiB, TiB)", text, rest);
  if (whole > (kLargest >> shift))
    return fail(Code::kInvalid, "'{}' is more than any machine has", text);
  const uint64_t unit = uint64_t{1} << shift;
  const uint64_t bytes = whole * unit + fraction * unit / scale;
  if (bytes == 0) return fail(Code::kInvalid, "'{}' is nothing; give more than 0 bytes", text);
  return bytes;
}

std::string format_size(double bytes) {
  static constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= 1024.0 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : 1, kUnits[unit]);
}

std::string format_rate(double bytes_per_second) { return format_size(bytes_per_second) + "/s"; }

std::string format_count(uint64_t count) {
  const double value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.2f} B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f} K", value / 1e3);
  return fmt::format("{}", count);
}

std::string format_seconds(double seconds) {
  if (seconds < 1.0) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60.0) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<uint64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace millrace::cli
