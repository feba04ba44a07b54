#include "io/faults.h"

#include <algorithm>
#include <cerrno>
#include <optional>

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

int64_t FaultInjector::finished(const std::string& path, uint64_t offset, std::span<std::byte> to,
                                int64_t got, std::chrono::microseconds* delay) {
  std::optional<Fault> strike;
  {
    std::lock_guard lock(mutex_);
    for (Fault& fault : faults_) {
      if (path.find(fault.path) == std::string::npos) continue;
      if (offset >= fault.end || offset + to.size() <= fault.begin) continue;
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
  if (!strike) return got;
  switch (strike->kind) {
    case Fault::Kind::kError:
      return -strike->error;
    case Fault::Kind::kEnd:
      return 0;
    case Fault::Kind::kShort: {
      // Half, but a multiple of what a direct read needs. The rest was never there.
      const uint64_t half = to.size() / 2 / kAlign * kAlign;
      if (half == 0 || got <= static_cast<int64_t>(half)) return got;
      std::ranges::fill(to.subspan(half), std::byte{0xdd});
      return static_cast<int64_t>(half);
    }
    case Fault::Kind::kSlow:
      *delay = strike->delay;
      return got;
    case Fault::Kind::kFlip: {
      // The first byte inside the fault's range.
      const uint64_t at = strike->begin > offset ? strike->begin - offset : 0;
      if (got > 0 && at < static_cast<uint64_t>(got)) to[at] ^= std::byte{0x10};
      return got;
    }
  }
  return got;
}

}  // namespace millrace::io
