// What this machine's disk and memory can do, measured in a second or two. For `doctor`, `plan` and
// the choice of how many reads to keep in flight.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"

namespace millrace::io {

enum class Via : uint8_t { kPread, kUring };  // threads that wait, or one ring
std::string_view name(Via via);               // "pread", "io_uring"

struct ReadRate {
  Mode mode = Mode::kDirect;
  Via via = Via::kPread;
  uint64_t request = 0;  // bytes of one read
  unsigned depth = 0;    // reads in flight
  uint64_t bytes = 0;    // read in all
  double seconds = 0;
  double cpu_seconds = 0;  // of the whole process
  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

struct CurveLimits {
  std::span<const unsigned> depths;
  bool pread = true, uring = true;
  double seconds = 0.3;         // in all
  std::span<std::byte> memory;  // to read into, at a multiple of kAlign; bounds the depth
};

// Reads of `request` bytes all over the file, at each depth and in both ways, in turns.
Expected<std::vector<ReadRate>> probe_curve(const File& file, uint64_t request,
                                            const CurveLimits& limits);

// The way to read: for each Via the least depth that is within 5 % of its best; of the two the
// faster one, or, within 10 %, the one that takes less processor time for a byte. Null when empty.
const ReadRate* pick(std::span<const ReadRate> rates);

struct ProbeLimits {
  double most_seconds = 3.0;
};

struct ProbeResult {
  std::vector<ReadRate> rates;  // direct, by request, depth and way
  std::string direct_obstacle;  // why direct reads are not possible
  std::string uring_obstacle;   // why there is no io_uring
  ReadRate buffered;            // one figure; it may come from the page cache
  // The fastest direct way; null: there are no direct reads.
  const ReadRate* best_direct() const;
};

inline constexpr uint64_t kProbeRequests[] = {uint64_t{256} << 10, uint64_t{1} << 20,
                                              uint64_t{4} << 20, uint64_t{16} << 20};
inline constexpr unsigned kProbeDepths[] = {1, 2, 4, 8, 16};

// Reads `path` directly at a few request sizes and depths, in different places of the file, and
// once buffered.
Expected<ProbeResult> probe_file(const std::string& path, const ProbeLimits& limits = {});

// Bytes a second that `threads` threads read from memory together; buffers far larger than caches,
// ~0.2 s.
double probe_memory(unsigned threads, uint64_t bytes_per_thread = uint64_t{64} << 20);

}  // namespace millrace::io
