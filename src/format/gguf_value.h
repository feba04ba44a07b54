// Typed access to GGUF metadata. Errors name the key: kNotFound when it is missing, kInvalid when
// its type or range is wrong. The _or forms return the default only for a missing key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/source.h"

namespace millrace::format {

bool has_key(const GgufMetadata& metadata, std::string_view key);

// Integers of any stored width and sign; a negative one is not a uint.
Expected<uint64_t> get_uint(const GgufMetadata& metadata, std::string_view key);
Expected<uint64_t> get_uint_or(const GgufMetadata& metadata, std::string_view key,
                               uint64_t otherwise);
Expected<int64_t> get_int(const GgufMetadata& metadata, std::string_view key);
Expected<int64_t> get_int_or(const GgufMetadata& metadata, std::string_view key, int64_t otherwise);
// f32 or f64, or any integer.
Expected<double> get_float(const GgufMetadata& metadata, std::string_view key);
Expected<double> get_float_or(const GgufMetadata& metadata, std::string_view key, double otherwise);
Expected<bool> get_bool(const GgufMetadata& metadata, std::string_view key);
Expected<bool> get_bool_or(const GgufMetadata& metadata, std::string_view key, bool otherwise);
Expected<std::string> get_string(const GgufMetadata& metadata, std::string_view key);
Expected<std::string> get_string_or(const GgufMetadata& metadata, std::string_view key,
                                    std::string_view otherwise);

// Arrays. Strings are returned in place; numbers are converted. A scalar counts as an array of one
// where the key may be either (per-layer values).
Expected<const std::vector<std::string>*> get_strings(const GgufMetadata& metadata,
                                                      std::string_view key);
Expected<std::vector<int64_t>> get_ints(const GgufMetadata& metadata, std::string_view key);
Expected<std::vector<double>> get_floats(const GgufMetadata& metadata, std::string_view key);
Expected<std::vector<bool>> get_bools(const GgufMetadata& metadata, std::string_view key);

}  // namespace millrace::format
