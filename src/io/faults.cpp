#include "io/faults.h"

#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

namespace millrace::io {

void FaultInjector::add(const Fault& fault) {
  std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

void FaultInjector::clear() {
  std::lock_guard lock(mutex_);
  faults_.clear();
}

uint64_t FaultInjector::struck() const {
  std::lock_guard lock(mutex_);
  return struck_;
}

ssize_t FaultInjector::pread(const std::string& path, int fd, void* to, size_t bytes,
                             off_t offset) {
  const auto begin = static_cast<uint64_t>(offset);
  std::optional<Fault> strike;
  {
    std::lock_guard lock(mutex_);
    for (Fault& fault : faults_) {
      if (path.find(fault.path) == std::string::npos) continue;
      if (begin >= fault.end || begin + bytes <= fault.begin) continue;
      if (fault.skip > 0) {
        --fault.skip;
        continue;
      }
      if (fault.times == 0) continue;
      if (fault.times != UINT32_MAX) --fault.times;
      strike = fault;
      ++struck_;
      break;
    }
  }
  if (!strike) return ::pread(fd, to, bytes, offset);
  switch (strike->kind) {
    case Fault::Kind::kError:
      errno = EIO;
      return -1;
    case Fault::Kind::kEnd:
      return 0;
    case Fault::Kind::kShort: {
      // Half, but a multiple of what a direct read needs.
      const size_t half = bytes / 2 / kAlign * kAlign;
      return ::pread(fd, to, half == 0 ? bytes : half, offset);
    }
    case Fault::Kind::kSlow:
      std::this_thread::sleep_for(strike->delay);
      return ::pread(fd, to, bytes, offset);
    case Fault::Kind::kFlip: {
      const ssize_t got = ::pread(fd, to, bytes, offset);
      // The first byte inside the fault's range.
      const uint64_t at = strike->begin > begin ? strike->begin - begin : 0;
      if (got > 0 && at < static_cast<uint64_t>(got)) {
        static_cast<std::byte*>(to)[at] ^= std::byte{0x10};
      }
      return got;
    }
  }
  return -1;
}

}  // namespace millrace::io
