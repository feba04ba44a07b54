// Sizes in messages: as people read them, and as they can be given to a flag.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace millrace {

// "86.0 KiB", "58.3 MiB", "4.00 GiB"
inline std::string size_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= uint64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes < uint64_t{1} << 20) return fmt::format("{:.1f} KiB", value / 1024);
  return fmt::format("{:.1f} MiB", value / (1 << 20));
}

// "59M": at least as much.
inline std::string size_to_give(uint64_t bytes) {
  return fmt::format("{}M", (bytes >> 20) + (bytes % (1 << 20) != 0));
}

}  // namespace millrace
