// Keeps the read clock, and tells of every read that ended.
#pragma once

#include <functional>
#include <utility>

#include "stream/read_clock.h"
#include "stream/read_watch.h"

namespace millrace::stream {

// One read of a file: times in nanoseconds of the steady clock.
struct ReadRecord {
  uint32_t piece = 0;
  uint64_t bytes = 0, begin_ns = 0, end_ns = 0;
  uint64_t wanted_ns = 0;  // since when the consumer waits for the piece; 0: it is read ahead
};

class ReadLog : public ReadWatch {
 public:
  // `on_read` may be empty; it is called by several threads, for reads that succeeded.
  ReadLog(size_t pieces, std::function<void(const ReadRecord&)> on_read)
      : clock_(pieces), on_read_(std::move(on_read)) {}

  ReadClock& clock() { return clock_; }
  const ReadClock& clock() const { return clock_; }

  uint64_t begin(uint32_t) override { return clock_.begin(); }
  void end(uint32_t piece, uint64_t bytes, uint64_t begun_ns, bool good) override {
    const ReadClock::End end = clock_.end(piece);
    if (on_read_ && good) on_read_({piece, bytes, begun_ns, end.at, end.wanted_ns});
  }
  void fetched(uint32_t piece) override { clock_.give_up(piece); }

 private:
  ReadClock clock_;
  std::function<void(const ReadRecord&)> on_read_;
};

}  // namespace millrace::stream
