// The hash of every whole source file, computed along with packing.
//
// Pieces are made in the order of the forward pass, which is nearly that of most files. Bytes that
// come by where the hash of their file stands are taken from memory. Those that come early (the up
// projections of a layer whose gates are not all read) stay in the page cache until their turn, as
// long as the kernel has room: they are read again from there, or, at worst, from the disk. What is
// hashed is dropped from the cache.
#pragma once

#include <functional>
#include <map>
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
    uint64_t at = 0;                     // hashed up to here
    uint64_t dropped = 0;                // out of the page cache up to here
    std::map<uint64_t, uint64_t> early;  // begin -> end of what came before its turn
  };
  Status read_to(uint32_t file, uint64_t end);
  void keep(uint32_t file, uint64_t begin, uint64_t end);
  void drop_behind(uint32_t file);

  const std::span<const InFile> files_;
  std::vector<State> states_;
  uint64_t kept_ = 0;  // bytes that wait in the page cache
  AlignedBuffer block_;
};

}  // namespace millrace::format
