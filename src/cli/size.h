// Sizes as people write them: 700M, 4G, 512MiB, 1.5g, 1048576. Units are powers of 1024 throughout,
// because these numbers meet memory limits (cgroups count that way): 700M is 700 * 1024 * 1024.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::cli {

// A whole number of bytes, 1 .. 2^62. The message says what is wrong without naming a flag.
Expected<uint64_t> parse_size(std::string_view text);

std::string format_size(double bytes);  // "512 B", "93.8 MiB", "1.20 GiB"
std::string format_rate(double bytes_per_second);
std::string format_count(uint64_t count);    // "44.0 M", "30.5 B", "812"
std::string format_seconds(double seconds);  // "85 ms", "3.2 s", "2 min 5 s"

}  // namespace millrace::cli
