// How src/text calls the Rust crate: rust::Error becomes Error, and its first letter the code.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "rust/cxx.h"

#include "millrace-text/src/lib.rs.h"  // after cxx.h, of which it repeats parts

namespace millrace::text {

inline Error to_error(std::string_view what) {
  if (what.empty()) return {Code::kInternal, "the text library failed without a message"};
  const std::string message(what.substr(1));
  switch (what.front()) {
    case 'I':
    case 'R':
      return {Code::kInvalid, message};
    case 'U':
      return {Code::kUnsupported, message};
    case 'X':
      return {Code::kInternal, message};
    default:
      return {Code::kInternal, std::string(what)};
  }
}

// Runs a bridge call; nothing that it throws gets out.
template <class Call>
auto call_bridge(Call&& call) -> Expected<decltype(call())> {
  try {
    return std::forward<Call>(call)();
  } catch (const rust::Error& error) {
    return tl::unexpected(to_error(error.what()));
  } catch (const std::exception& error) {
    return tl::unexpected(Error{Code::kInvalid, error.what()});
  }
}

inline rust::Slice<const std::uint8_t> as_slice(std::string_view bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace millrace::text
