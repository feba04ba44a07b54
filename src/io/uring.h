// A thin owner of one io_uring: reads of files into memory, submitted together, finished in any
// order. Used by one thread at a time. Built without liburing it says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "io/file.h"

namespace millrace::io {

class Uring {
 public:
  struct Done {
    uint64_t id = 0;     // of the read
    int64_t result = 0;  // the number of bytes, 0 at the end, or -errno
  };
  static constexpr int kNone = -1;

  // `entries`: most reads in flight. Fails with kUnsupported and the reason when there is none.
  static Expected<Uring> create(unsigned entries);
  Uring();
  ~Uring();
  Uring(Uring&& other) noexcept;
  Uring& operator=(Uring&& other) noexcept;

  // Spares the kernel a look-up for each read: files[i] is then known by its place i.
  Status register_files(std::span<const int> descriptors);
  // A table of `count` places for memory that is read into often. Memory that is set stays pinned
  // until it is cleared, and counts against RLIMIT_MEMLOCK.
  Status reserve_buffers(unsigned count);
  Status set_buffer(unsigned place, std::span<std::byte> memory);  // empty: clears it

  // Queues a read of next(); at most `entries` at a time. `file_place` and `buffer_place`: where
  // they were registered, or kNone. It goes to the kernel with the next wait().
  void read(int descriptor, int file_place, uint64_t offset, std::span<std::byte> to,
            int buffer_place, uint64_t id);
  // Queues a wait until the descriptor (an eventfd) can be read.
  void watch(int descriptor, uint64_t id);
  // Submits what was queued and waits for one that is done: until `deadline` (none: for ever).
  // Nothing comes back at the deadline.
  Expected<std::optional<Done>> wait(std::optional<std::chrono::steady_clock::time_point> deadline);
  // Submits what was queued, and takes one that is done already.
  Expected<std::optional<Done>> poll();

 private:
  struct Ring;
  std::unique_ptr<Ring> ring_;
};

// Empty when io_uring can be used here, else why not ("io_uring_setup: Operation not permitted").
std::string why_no_io_uring();

}  // namespace millrace::io
