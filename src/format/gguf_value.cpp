// Typed access to GGUF metadata.
#include "format/gguf_value.h"

#include <limits>
#include <type_traits>
#include <utility>

namespace millrace::format {
namespace {

Expected<const GgufValue*> find_key(const GgufMetadata& metadata, std::string_view key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return fail(Code::kNotFound, "GGUF key '{}' is missing", key);
  return &found->second;
}

tl::unexpected<Error> wrong_type(std::string_view key, std::string_view wanted) {
  return fail(Code::kInvalid, "GGUF key '{}' is not {}", key, wanted);
}

// Converts one stored number, if it can be exact in kind: integers to integers in range, anything
// numeric to a double.
template <class To, class From>
bool convert(From from, To& to) {
  if constexpr (std::is_same_v<To, bool>) {
    if constexpr (!std::is_same_v<From, bool>) return false;
    to = static_cast<bool>(from);
    return true;
  } else if constexpr (std::is_same_v<From, bool>) {
    return false;
  } else if constexpr (std::is_same_v<To, double>) {
    to = static_cast<double>(from);
    return true;
  } else if constexpr (std::is_integral_v<From>) {
    if (!std::in_range<To>(from)) return false;
    to = static_cast<To>(from);
    return true;
  } else {
    return false;
  }
}

template <class To>
Expected<To> get_number(const GgufMetadata& metadata, std::string_view key,
                        std::string_view wanted) {
  MILLRACE_ASSIGN(const GgufValue* value, find_key(metadata, key));
  To out{};
  const bool fits = std::visit(
      [&out](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held>) return convert<To, Held>(held, out);
        return false;
      },
      value->value);
  if (!fits) return wrong_type(key, wanted);
  return out;
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class To>
Expected<std::vector<To>> get_array(const GgufMetadata& metadata, std::string_view key,
                                    std::string_view wanted) {
  MILLRACE_ASSIGN(const GgufValue* value, find_key(metadata, key));
  std::vector<To> out;
  const bool fits = std::visit(
      [&out](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held>) {
          To item{};
          if (!convert<To, Held>(held, item)) return false;
          out.push_back(item);
          return true;
        } else if constexpr (IsVector<Held>::value) {
          using Item = typename Held::value_type;
          if constexpr (std::is_arithmetic_v<Item>) {
            out.reserve(held.size());
            for (const Item stored : held) {
              To item{};
              if (!convert<To, Item>(stored, item)) return false;
              out.push_back(item);
            }
            return true;
          }
        }
        return false;
      },
      value->value);
  if (!fits) return wrong_type(key, wanted);
  return out;
}

template <class T>
Expected<T> or_default(Expected<T> value, T otherwise) {
  if (!value && value.error().code == Code::kNotFound) return otherwise;
  return value;
}

}  // namespace

bool has_key(const GgufMetadata& metadata, std::string_view key) {
  return metadata.find(key) != metadata.end();
}

Expected<uint64_t> get_uint(const GgufMetadata& metadata, std::string_view key) {
  return get_number<uint64_t>(metadata, key, "an unsigned integer");
}
Expected<uint64_t> get_uint_or(const GgufMetadata& metadata, std::string_view key,
                               uint64_t otherwise) {
  return or_default(get_uint(metadata, key), otherwise);
}
Expected<int64_t> get_int(const GgufMetadata& metadata, std::string_view key) {
  return get_number<int64_t>(metadata, key, "an integer");
}
Expected<int64_t> get_int_or(const GgufMetadata& metadata, std::string_view key,
                             int64_t otherwise) {
  return or_default(get_int(metadata, key), otherwise);
}
Expected<double> get_float(const GgufMetadata& metadata, std::string_view key) {
  return get_number<double>(metadata, key, "a number");
}
Expected<double> get_float_or(const GgufMetadata& metadata, std::string_view key,
                              double otherwise) {
  return or_default(get_float(metadata, key), otherwise);
}
Expected<bool> get_bool(const GgufMetadata& metadata, std::string_view key) {
  return get_number<bool>(metadata, key, "a boolean");
}
Expected<bool> get_bool_or(const GgufMetadata& metadata, std::string_view key, bool otherwise) {
  return or_default(get_bool(metadata, key), otherwise);
}

Expected<std::string> get_string(const GgufMetadata& metadata, std::string_view key) {
  MILLRACE_ASSIGN(const GgufValue* value, find_key(metadata, key));
  const auto* held = std::get_if<std::string>(&value->value);
  if (held == nullptr) return wrong_type(key, "a string");
  return *held;
}
Expected<std::string> get_string_or(const GgufMetadata& metadata, std::string_view key,
                                    std::string_view otherwise) {
  return or_default(get_string(metadata, key), std::string(otherwise));
}

Expected<const std::vector<std::string>*> get_strings(const GgufMetadata& metadata,
                                                      std::string_view key) {
  MILLRACE_ASSIGN(const GgufValue* value, find_key(metadata, key));
  const auto* held = std::get_if<std::vector<std::string>>(&value->value);
  if (held == nullptr) return wrong_type(key, "an array of strings");
  return held;
}
Expected<std::vector<int64_t>> get_ints(const GgufMetadata& metadata, std::string_view key) {
  return get_array<int64_t>(metadata, key, "an array of integers");
}
Expected<std::vector<double>> get_floats(const GgufMetadata& metadata, std::string_view key) {
  return get_array<double>(metadata, key, "an array of numbers");
}
Expected<std::vector<bool>> get_bools(const GgufMetadata& metadata, std::string_view key) {
  return get_array<bool>(metadata, key, "an array of booleans");
}

}  // namespace millrace::format
