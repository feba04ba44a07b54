// The ledger owns every byte of the ceiling: nothing big is allocated that was not reserved here.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::stream {

enum class Use : uint8_t { kProcess, kWeights, kKv, kActivations, kIo, kDrafter };
inline constexpr int kUses = 6;
std::string_view name(Use use);

class Ledger {
 public:
  explicit Ledger(uint64_t ceiling) : ceiling_(ceiling) {}

  // Fails (kNoMemory, saying what is held by whom and what is missing) when it would pass the ceiling.
  Status reserve(Use use, uint64_t bytes);
  void release(Use use, uint64_t bytes);

  // Fails (kNoMemory) when more is held already.
  Status set_ceiling(uint64_t bytes);
  uint64_t ceiling() const;
  uint64_t held(Use use) const;
  uint64_t held() const;  // by all
  uint64_t free() const;

 private:
  uint64_t total() const;
  std::string holders() const;
  mutable std::mutex mutex_;
  uint64_t ceiling_;
  std::array<uint64_t, kUses> held_{};
};

// The memory this process may use, and where the number comes from.
struct MemoryLimit {
  uint64_t bytes = 0;      // the smallest of physical memory and every cgroup limit above us
  uint64_t available = 0;  // MemAvailable, clipped to what the cgroups leave
  std::string source;      // "physical memory", "cgroup /a/b memory.max"
};
// Walks cgroup v2 (memory.max, memory.high) and v1 (memory.limit_in_bytes), all ancestors. `root` is "/" (tests give a fake tree).
Expected<MemoryLimit> memory_limit(const std::string& root = "/");

uint64_t current_rss();  // VmRSS, bytes
uint64_t peak_rss();     // VmHWM, bytes

}  // namespace millrace::stream
