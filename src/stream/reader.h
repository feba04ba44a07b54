// Where pieces come from: a packed folder (one aligned read) or source files in place (extents, then pack_view).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/piece.h"
#include "stream/copies.h"

namespace millrace::stream {

// Pieces that lie in a file just as they are needed: a backend may read them without a thread of
// its own for each. begin(), read lease->file at `offset` into the slot, end(); after an error the
// same again, copies().tries() times in all.
class WholePieces {
 public:
  struct Place {
    Copies::Lease lease;
    uint64_t offset = 0, bytes = 0;
    uint64_t begun_ns = 0;  // on the read clock, where one is kept
  };
  virtual ~WholePieces() = default;
  virtual Copies& copies() = 0;
  virtual Expected<Place> begin(uint32_t piece) = 0;
  // Checks what was read. An error names piece, file and offset.
  virtual Status end(uint32_t piece, const Place& place, Status read,
                     std::span<std::byte> slot) = 0;
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
  virtual std::string mode() const = 0;  // "direct", "buffered"

  virtual WholePieces* whole() { return nullptr; }  // null: only read() makes pieces
  virtual uint32_t devices() const { return 1; }    // disks that can read at the same time
  // What happened to the files since the last call, for people.
  virtual std::vector<std::string> notes() { return {}; }
};

}  // namespace millrace::stream
