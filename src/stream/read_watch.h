// Who is told of the reads of files, as the disk gets and ends them.
#pragma once

#include <cstdint>

namespace millrace::stream {

// Called by several threads.
class ReadWatch {
 public:
  virtual ~ReadWatch() = default;
  // A read for this piece is with the disk from now on. Returns the time, in nanoseconds of the steady clock.
  virtual uint64_t begin(uint32_t piece) = 0;
  // The disk is done with it; `good`: the bytes are there.
  virtual void end(uint32_t piece, uint64_t bytes, uint64_t begun_ns, bool good) = 0;
  // Every byte of the piece is in memory; what is left is to check or to rearrange them.
  virtual void fetched(uint32_t piece) = 0;
};

}  // namespace millrace::stream
