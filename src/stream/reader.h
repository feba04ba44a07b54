// Where pieces come from: a packed folder (one aligned read) or source files in place (reads, then pack_view).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/piece.h"
#include "stream/copies.h"

namespace millrace::stream {

// Pieces that lie in a file just as they are needed: a backend may read them without a thread of
// its own for each. begin(), read lease->file at `offset` into the slot, landed(), check(); after an
// error the same again, copies().tries() times in all.
class WholePieces {
 public:
  struct Place {
    Copies::Lease lease;
    uint64_t offset = 0, bytes = 0;
  };
  virtual ~WholePieces() = default;
  virtual Copies& copies() = 0;
  virtual Expected<Place> begin(uint32_t piece) = 0;
  // The disk is done with it. Errors of both name piece, file and offset.
  virtual Status landed(uint32_t piece, const Place& place, Status read) = 0;
  virtual Status check(uint32_t piece, const Place& place, std::span<const std::byte> slot) = 0;
};

class PieceReader {
 public:
  virtual ~PieceReader() = default;
  // Bytes of scratch a reading thread must bring (4096-aligned); 0 for packed models.
  virtual uint64_t scratch_bytes() const = 0;
  // Fills slot[0 .. piece.bytes). Called from several threads at a time, each with its own scratch.
  // Retries a short or failed read or a hash mismatch once; then the error names file, piece and offset.
  // Returns the bytes read from the disk.
  virtual Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                                  std::span<std::byte> scratch) = 0;

  // A piece may come in steps, which fill parts of the slot of their own: in any order, at the same
  // time. `landed` is called when the disk is done with the step and what is left is to check or to
  // rearrange its bytes; perhaps more than once, and not at all after an error.
  using Landed = std::function<void()>;
  virtual uint32_t steps(uint32_t) const { return 1; }
  virtual Expected<uint64_t> read_step(uint32_t piece, uint32_t, std::span<std::byte> slot,
                                       std::span<std::byte> scratch, const Landed& landed) {
    auto bytes = read(piece, slot, scratch);
    if (bytes) landed();
    return bytes;
  }
  virtual uint64_t largest_read(uint32_t piece) const = 0;  // bytes

  virtual std::string mode() const = 0;  // "direct", "buffered"
  // Who is told of every read of a file; null: nobody. Not while anything is read.
  virtual void watch(ReadWatch* watch) = 0;

  virtual WholePieces* whole() { return nullptr; }  // null: only read() makes pieces
  virtual uint32_t devices() const { return 1; }    // disks that can read at the same time
  // Files that are read through the page cache, mirrors and those that cannot be read directly too.
  virtual std::vector<std::string> buffered_files() const { return {}; }
  // What happened to the files since the last call, for people.
  virtual std::vector<std::string> notes() { return {}; }
};

}  // namespace millrace::stream
