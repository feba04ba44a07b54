// When the disk works and when it rests although someone waits for it.
//
// "Busy" is the time with at least one read in flight, "idle" the time in which bytes of a piece were
// wanted and none was. Called by the consumer (what is wanted) and by the threads that read.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace millrace::stream {

class ReadClock {
 public:
  explicit ReadClock(size_t pieces) : wanted_(pieces, 0) {}

  static uint64_t now() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                 std::chrono::nanoseconds(1));
  }

  // The consumer needs a piece of which bytes are not there.
  void want(uint32_t piece) {
    std::lock_guard lock(mutex_);
    const uint64_t at = now();
    advance(at);
    if (wanted_[piece] != 0) return;
    ++wants_;
    wanted_[piece] = at;
  }
  // All bytes of it are there, or it is needed no more.
  void give_up(uint32_t piece) {
    std::lock_guard lock(mutex_);
    advance(now());
    forget(piece);
  }
  // A read is with the disk. Returns the time.
  uint64_t begin() {
    std::lock_guard lock(mutex_);
    const uint64_t at = now();
    advance(at);
    ++reading_;
    return at;
  }
  struct End {
    uint64_t at = 0;
    uint64_t wanted_ns = 0;  // since when its piece is needed; 0: it is not
  };
  End end(uint32_t piece) {
    std::lock_guard lock(mutex_);
    const uint64_t at = now();
    advance(at);
    --reading_;
    return {at, wanted_[piece]};
  }

  struct Times {
    uint64_t busy_ns = 0, idle_ns = 0;
  };
  Times times() const {
    std::lock_guard lock(mutex_);
    return times_;
  }

 private:
  void advance(uint64_t at) {
    if (reading_ > 0) {
      times_.busy_ns += at - last_;
    } else if (wants_ > 0) {
      times_.idle_ns += at - last_;
    }
    last_ = at;
  }
  void forget(uint32_t piece) {
    wants_ -= wanted_[piece] != 0;
    wanted_[piece] = 0;
  }

  mutable std::mutex mutex_;
  std::vector<uint64_t> wanted_;  // since when, 0: not
  uint32_t wants_ = 0, reading_ = 0;
  uint64_t last_ = 0;
  Times times_;
};

}  // namespace millrace::stream
