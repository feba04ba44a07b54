// Helpers around the public Status and Expected: building errors, adding context, early return.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "millrace/status.h"

namespace millrace {

// Builds an error in fmt syntax: `return fail(Code::kCorrupt, "{}: bad magic", path);`
template <class... Args>
tl::unexpected<Error> fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// Adds context in front: "model.gguf: tensor 'x': ...".
inline tl::unexpected<Error> with_context(std::string_view context, Error error) {
  error.message = fmt::format("{}: {}", context, error.message);
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace millrace

#define MILLRACE_CONCAT_INNER(a, b) a##b
#define MILLRACE_CONCAT(a, b) MILLRACE_CONCAT_INNER(a, b)

// Returns the error of a Status or Expected from the enclosing function.
#define MILLRACE_TRY(expression)                                                          \
  do {                                                                                    \
    auto&& millrace_status = (expression);                                                \
    if (!millrace_status) return tl::make_unexpected(std::move(millrace_status.error())); \
  } while (false)

// `MILLRACE_ASSIGN(auto file, File::open(path));`
#define MILLRACE_ASSIGN(target, expression) \
  MILLRACE_ASSIGN_INNER(MILLRACE_CONCAT(millrace_result_, __LINE__), target, expression)
#define MILLRACE_ASSIGN_INNER(result, target, expression)             \
  auto result = (expression);                                         \
  if (!result) return tl::make_unexpected(std::move(result.error())); \
  target = std::move(*result)
