// How reads reach the disk: requests are submitted without blocking, results are reaped by the one
// consumer. The store decides what is read into which slot; a backend only decides how. All slot
// state stays with the consumer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

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

  // Memory of slots, none of which is being read into, that is about to be given back to the system
  // or mapped anew: a backend that keeps pages of it pinned has let go of them on return.
  virtual void forget(std::span<std::byte> memory) { static_cast<void>(memory); }

  virtual uint64_t bytes_read() const = 0;   // from the disk, by reads that succeeded
  virtual uint64_t reads() const = 0;        // that succeeded
  virtual std::string describe() const = 0;  // "pread pool, 4 reads in flight"
};

// `capacity` bounds the pieces outstanding at a time; nothing is allocated after creation. `depth`:
// reads that are with the disk at a time, of which each needs a thread of the pool. Several threads
// read the steps of one piece together. `watch` is told when a piece has been fetched; may be null.
std::unique_ptr<ReadBackend> make_pread_pool(PieceReader& reader, ReadWatch* watch, unsigned depth,
                                             uint32_t capacity);

// One thread drives all reads. Slots are registered with the kernel when they are first read into,
// as far as RLIMIT_MEMLOCK goes; describe() says how far that was. Fails with kUnsupported and the
// reason where there is no io_uring, or where pieces are made while they are read (in place).
Expected<std::unique_ptr<ReadBackend>> make_uring_backend(PieceReader& reader, ReadWatch* watch,
                                                          unsigned depth, uint32_t capacity);

}  // namespace millrace::stream
