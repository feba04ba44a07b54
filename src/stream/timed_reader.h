// A reader that keeps the read clock and tells of every read that ended.
#pragma once

#include <functional>

#include "stream/read_clock.h"
#include "stream/reader.h"

namespace millrace::stream {

// One read: times in nanoseconds of the steady clock.
struct ReadRecord {
  uint32_t piece = 0;
  uint64_t bytes = 0, begin_ns = 0, end_ns = 0;
  bool wanted = false;  // the consumer needed it when it arrived, else it was read ahead
};

class TimedReader : public PieceReader, public WholePieces {
 public:
  // Both must outlive it. `on_read` may be empty; it is called by several threads.
  TimedReader(PieceReader& inner, ReadClock& clock, std::function<void(const ReadRecord&)> on_read)
      : inner_(inner), clock_(clock), on_read_(std::move(on_read)) {}

  uint64_t scratch_bytes() const override { return inner_.scratch_bytes(); }
  std::string mode() const override { return inner_.mode(); }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> scratch) override {
    const uint64_t begin = clock_.begin();
    auto bytes = inner_.read(piece, slot, scratch);
    const ReadClock::End end = clock_.end(piece);
    if (on_read_ && bytes) on_read_({piece, *bytes, begin, end.at, end.wanted});
    return bytes;
  }

  WholePieces* whole() override { return inner_.whole() != nullptr ? this : nullptr; }
  uint32_t devices() const override { return inner_.devices(); }
  std::vector<std::string> notes() override { return inner_.notes(); }
  Copies& copies() override { return inner_.whole()->copies(); }
  Expected<Place> begin(uint32_t piece) override {
    const uint64_t at = clock_.begin();
    auto place = inner_.whole()->begin(piece);
    if (place) {
      place->begun_ns = at;
    } else {
      clock_.end(piece);
    }
    return place;
  }
  Status end(uint32_t piece, const Place& place, Status read, std::span<std::byte> slot) override {
    Status status = inner_.whole()->end(piece, place, std::move(read), slot);
    const ReadClock::End end = clock_.end(piece);
    if (on_read_ && status) on_read_({piece, place.bytes, place.begun_ns, end.at, end.wanted});
    return status;
  }

 private:
  PieceReader& inner_;
  ReadClock& clock_;
  std::function<void(const ReadRecord&)> on_read_;
};

}  // namespace millrace::stream
