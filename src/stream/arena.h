// Address space for every slot there could ever be: one region for each class of slots. The front
// of a region is committed and may be touched; the rest of it takes no memory. So the arena grows
// and shrinks while slots stay where they are, and memory that is given up really goes back.
//
// Pages are touched by the reads that fill them, never before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/file.h"

namespace millrace::stream {

enum class HugePages : uint8_t {
  kAuto,  // transparent ones, where the kernel gives them
  kOff,
  kOn,  // explicit ones (vm.nr_hugepages), if there are any; else as kAuto, and pages() says so
};

struct ArenaOptions {
  HugePages huge_pages = HugePages::kAuto;
  bool lock = false;  // committed pages are never swapped out
};

class Arena {
 public:
  static constexpr uint64_t kHugePage = io::kHugePage;

  Arena() = default;
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  // Address space for regions of these sizes (multiples of 4096); nothing is committed.
  static Expected<Arena> reserve(std::span<const uint64_t> regions, const ArenaOptions& options);

  std::byte* region(size_t c) const { return data_ + regions_[c].offset; }
  // From now on the first `bytes` (a multiple of 4096) of the region may be touched, and no others.
  // What lies in them stays; what lay behind them is given back to the system. Fails only when it
  // grows, and then changes nothing.
  Status commit(size_t c, uint64_t bytes);

  uint64_t committed() const;
  // Bytes by which a region's memory may pass its committed bytes: explicit huge pages are whole.
  uint64_t rounding() const { return explicit_ ? kHugePage : 0; }
  // "transparent", "2 MiB, explicit", "none: ..."; ", locked" behind it.
  const std::string& pages() const { return pages_; }

 private:
  struct Region {
    uint64_t offset = 0, bytes = 0, committed = 0;
    uint64_t huge = 0;  // the front that was asked to lie in huge pages
  };
  Status grow(Region& region, uint64_t bytes);
  void shrink(Region& region, uint64_t bytes);

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<Region> regions_;
  bool transparent_ = false, explicit_ = false, lock_ = false;
  std::string pages_;
};

}  // namespace millrace::stream
