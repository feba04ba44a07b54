// The hash of every whole source file, computed along with packing.
//
// Pieces are made in the order of the forward pass, which is nearly that of most files: what comes by
// at (or shortly after) the place up to which a file is hashed is taken from memory; the rest is read
// again at the end. No byte is read more than twice.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "format/pack_io.h"
#include "format/view.h"

namespace millrace::format {

class SourceHasher {
 public:
  explicit SourceHasher(std::span<const InFile> files);
  // These bytes of the source are in memory now.
  Status offer(const Extent& extent, std::span<const std::byte> bytes);
  // Reads what is left of the file. `step` is told of each block; false stops with kCancelled.
  Expected<Hash128> finish(uint32_t file, const std::function<bool(uint64_t bytes)>& step);

 private:
  struct State {
    std::unique_ptr<Hasher> hasher = std::make_unique<Hasher>();
    uint64_t at = 0;  // hashed up to here
  };
  const std::span<const InFile> files_;
  std::vector<State> states_;
  AlignedBuffer block_;
};

}  // namespace millrace::format
