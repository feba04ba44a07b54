// Errors as values: what every call at a border with the outside returns.
#pragma once

#include <string>
#include <tl/expected.hpp>

namespace millrace {

enum class Code {
  kInvalid,      // the data or the request is wrong
  kUnsupported,  // well-formed, but nothing here handles it
  kNotFound,     // a file, tensor, key or id that should be there is not
  kIo,           // the operating system refused a read or write
  kCorrupt,      // a hash or size does not match
  kNoMemory,     // does not fit under the ceiling or the budget
  kCancelled,    // the caller asked to stop
  kInternal,     // our own fault
};

// The message names the thing that is wrong (file, tensor, piece, offset, field, flag) and, where
// there is one, what to do about it. It can be shown to a user as it stands.
struct Error {
  Code code = Code::kInternal;
  std::string message;
};

template <class T>
using Expected = tl::expected<T, Error>;
using Status = Expected<void>;

}  // namespace millrace
