// Where pieces come from: a packed folder (one aligned read) or source files in place (extents, then pack_view).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "format/piece.h"

namespace millrace::stream {

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
};

}  // namespace millrace::stream
