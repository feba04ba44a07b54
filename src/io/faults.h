// Injected faults: what disks do on a bad day, on demand. Used by tests; any File takes it as its
// hook.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"

namespace millrace::io {

struct Fault {
  enum class Kind : uint8_t {
    kError,  // `error`
    kShort,  // the read gives half of what was asked
    kEnd,    // the read gives nothing, as past the end of the file
    kSlow,   // the read takes `delay` longer
    kFlip,   // one bit of what was read is wrong
  };
  Kind kind = Kind::kError;
  std::string path = {};  // part of the file's path; empty: any
  uint64_t begin = 0;     // reads that touch [begin, end) of the file
  uint64_t end = UINT64_MAX;
  uint32_t skip = 0;            // let that many pass first
  uint32_t times = UINT32_MAX;  // then strike this often
  std::chrono::milliseconds delay{0};
  int error = EIO;
};

class FaultInjector : public ReadHook {
 public:
  void add(const Fault& fault);
  void clear();
  uint64_t struck() const;  // faults that happened
  int64_t finished(const std::string& path, uint64_t offset, std::span<std::byte> to, int64_t got,
                   std::chrono::microseconds* delay) override;

 private:
  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
  uint64_t struck_ = 0;
};

}  // namespace millrace::io
