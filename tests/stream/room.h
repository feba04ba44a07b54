// A process that may not have more memory.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdint>

#include "stream/cgroup.h"

namespace millrace::stream {

// Writable memory that this process may have, from now on, beyond what it has; until the end of the
// scope.
class Room {
 public:
  explicit Room(uint64_t bytes) {
    getrlimit(RLIMIT_DATA, &before_);
    const auto status = read_text("/proc/self/status");
    const uint64_t used = status ? number_after(*status, "VmData:").value_or(0) * 1024 : 0;
    const rlimit limit{used + bytes, before_.rlim_max};
    setrlimit(RLIMIT_DATA, &limit);
  }
  ~Room() { setrlimit(RLIMIT_DATA, &before_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  static bool holds() {
    constexpr uint64_t kMiB = uint64_t{1} << 20;
    const Room room(kMiB);
    void* const at =
        mmap(nullptr, 8 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return true;
    munmap(at, 8 * kMiB);
    return false;
  }

 private:
  rlimit before_{};
};

}  // namespace millrace::stream
