// Past the page cache or through it? Decided once for a model, with a reason to print.
#pragma once

#include <cstdint>
#include <string>

#include "io/file.h"

namespace millrace::io {

enum class Request : uint8_t { kAuto, kDirect, kBuffered };

struct ModeFacts {
  uint64_t weights = 0;  // bytes of the model's weights
  uint64_t available =
      0;  // memory that may hold them: MemoryLimit::available, less what we will take ourselves
  bool ceiling = false;  // --memory was given and is below what the machine has: cached pages would
                         // count against it
};

struct ModeChoice {
  Mode mode = Mode::kBuffered;
  std::string reason;  // "direct: 17.2 GiB of weights do not fit in 3.1 GiB of free memory"
};

// `path`: one of the model's files. Direct reads that the file system cannot do become buffered
// ones, and the reason says so, whatever was requested.
ModeChoice choose_mode(Request request, const ModeFacts& facts, const std::string& path);

}  // namespace millrace::io
