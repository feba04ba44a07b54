// Fills a piece from source tensors: what a packed file holds for the piece, byte for byte. The
// packer and the reader that runs a source in place both use it.
#pragma once

#include <cstdint>
#include <span>

#include "format/piece.h"
#include "format/source.h"

namespace millrace::format {

// Where the bytes of source files come from.
class SourceBytes {
 public:
  virtual ~SourceBytes() = default;
  // Reads bytes [offset, offset + bytes) of a source file; returns where the first of them lies in
  // `buffer`. The buffer starts at a multiple of 4096 and holds the 4096-aligned window around the
  // range (fill_window_bytes).
  virtual Expected<const std::byte*> read(uint32_t file, uint64_t offset, uint64_t bytes,
                                          std::span<std::byte> buffer) = 0;
};

// Bytes of the smallest window that holds [offset, offset + bytes) with both ends at multiples of
// 4096.
uint64_t fill_window_bytes(uint64_t offset, uint64_t bytes);

// Least scratch for fill_piece. Large matrices are read in parts, so this stays under about 8 MiB
// for all but vectors and transposed matrices of more than that. Fails when a view does not fit its
// tensors.
Expected<uint64_t> fill_scratch_bytes(const ModelSource& source, const Piece& piece);

// Writes slot[0, piece.bytes). `scratch` starts at a multiple of 4096; more of it means fewer,
// larger reads. Bytes that several tensors share (interleaved gate and up) are read once,
// neighbours are read together; padding is zero.
Status fill_piece(const ModelSource& source, const Piece& piece, SourceBytes& from,
                  std::span<std::byte> scratch, std::span<std::byte> slot);

}  // namespace millrace::format
