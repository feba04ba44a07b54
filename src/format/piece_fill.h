// Fills a piece from source tensors: what a packed file holds for the piece, byte for byte. The
// packer and the reader that runs a source in place both use it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "format/piece.h"
#include "format/source.h"

namespace millrace::format {

// Bytes of the smallest window that holds [offset, offset + bytes) with both ends at multiples of
// 4096.
uint64_t fill_window_bytes(uint64_t offset, uint64_t bytes);

// The steps in which a piece is made. Each brings bytes of its own and packs them into its own part
// of the slot, so that several threads can take them in any order. Steps follow the files.
class PieceFill {
 public:
  // Most scratch of a step, but for vectors, transposed matrices and matrices that share their bytes.
  static constexpr uint64_t kStep = uint64_t{4} << 20;

  // Bytes [offset, offset + bytes) of a source file. The 4096-aligned window around them belongs at
  // scratch[window], so that the first of them lies at scratch[window + offset % 4096].
  struct Read {
    uint32_t file = 0;
    uint64_t offset = 0, bytes = 0;
    uint64_t window = 0;
  };

  // Fails when a view does not fit its tensors. Both must outlive the plan.
  static Expected<PieceFill> plan(const ModelSource& source, const Piece& piece);

  uint32_t steps() const { return static_cast<uint32_t>(steps_.size()); }
  // Sorted and disjoint. Bytes that several tensors share (interleaved gate and up) are in one read,
  // neighbours as well.
  std::span<const Read> reads(uint32_t step) const { return steps_[step].reads; }
  uint64_t scratch_bytes() const { return scratch_; }  // of the largest step
  uint64_t largest_read() const;

  // Packs what the reads of a step brought. The first step also writes the padding, zeros.
  void pack(uint32_t step, std::span<const std::byte> scratch, std::span<std::byte> slot) const;

 private:
  // A tensor, or whole tiles of one.
  struct Part {
    WeightView view;
    std::array<Extent, 3> extents;
    uint64_t to = 0;  // in the slot
  };
  struct Step {
    std::vector<Part> parts;
    std::vector<Read> reads;
  };
  PieceFill(const ModelSource& source, const Piece& piece) : source_(&source), piece_(&piece) {}
  Expected<std::vector<Part>> split() const;
  // The reads that bring the extents of `parts`, and the scratch they take.
  static uint64_t plan_reads(std::span<const Part> parts, std::vector<Read>* reads);
  static bool share_bytes(const Part& a, const Part& b);

  const ModelSource* source_;
  const Piece* piece_;
  std::vector<Step> steps_;
  uint64_t scratch_ = 0;
};

}  // namespace millrace::format
