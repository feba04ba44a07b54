// What this machine's disk and memory can do, measured in a second or two. For `doctor`, `plan` and
// the choice of how many reads to keep in flight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/file.h"

namespace millrace::io {

struct ReadRate {
  Mode mode = Mode::kDirect;
  uint64_t request = 0;  // bytes of one read
  unsigned depth = 0;    // reads in flight, a thread each
  uint64_t bytes = 0;    // read in all
  double seconds = 0;
  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

struct ProbeLimits {
  uint64_t most_bytes = uint64_t{300} << 20;  // over the whole table
  double most_seconds = 2.0;
};

struct ProbeResult {
  std::vector<ReadRate> rates;
  ReadRate best_direct;         // bytes == 0: direct reads are not possible
  std::string direct_obstacle;  // why not
  ReadRate buffered;            // one figure; it may come from the page cache
};

// Reads `path` directly at a few request sizes and depths, in different places of the file, and
// once buffered.
Expected<ProbeResult> probe_file(const std::string& path, const ProbeLimits& limits = {});

// Bytes a second that `threads` threads read from memory together; buffers far larger than caches,
// ~0.2 s.
double probe_memory(unsigned threads, uint64_t bytes_per_thread = uint64_t{64} << 20);

// Empty when io_uring can be set up here, else why not ("io_uring_setup: Operation not permitted").
std::string why_no_io_uring();

}  // namespace millrace::io
