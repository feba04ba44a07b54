// How reads reach the disk: requests are submitted without blocking, results are reaped by the one
// consumer. The store decides what is read into which slot; a backend only decides how. All slot
// state stays with the consumer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "stream/reader.h"

namespace millrace::stream {

enum class Urgency : uint8_t { kDemand, kAhead };  // demand reads overtake those read ahead

struct ReadRequest {
  uint32_t piece = 0;
  std::span<std::byte> slot;
  Urgency urgency = Urgency::kDemand;
};

struct ReadResult {
  uint32_t piece = 0;
  Status status;
};

class ReadBackend {
 public:
  virtual ~ReadBackend() = default;  // drops what is queued and waits for what is in flight

  // Never blocks. A piece is submitted at most once until its result is reaped or it is cancelled.
  virtual void submit(const ReadRequest& request) = 0;
  // A queued read ahead became urgent. No effect when it is already in flight.
  virtual void promote(uint32_t piece) = 0;
  // True when the read was still queued and will not happen: there will be no result.
  virtual bool cancel(uint32_t piece) = 0;
  // Takes one finished read; with `wait`, sleeps until there is one (some read must be
  // outstanding).
  virtual bool reap(ReadResult* result, bool wait) = 0;

  virtual uint64_t bytes_read() const = 0;  // from the disk, by reads that succeeded
  virtual uint64_t reads() const = 0;       // that succeeded
};

// `capacity` bounds the reads outstanding at a time; nothing is allocated after creation.
std::unique_ptr<ReadBackend> make_pread_pool(PieceReader& reader, unsigned threads,
                                             uint32_t capacity);

}  // namespace millrace::stream
