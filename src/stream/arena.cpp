#include "stream/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/numa.h"
#include "base/numeric.h"

namespace millrace::stream {
namespace {

constexpr uint64_t kPage = 4096;

// The bracketed word of a choice under /sys, such as "always [madvise] never".
std::string chosen_word(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t open = line.find('['), close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return line.substr(open + 1, close - open - 1);
}

uint64_t free_huge_pages() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t pages = 0;
  file >> pages;
  return pages;
}

std::string lock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "none" : fmt::format("{} bytes", limit.rlim_cur);
}

}  // namespace

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(regions_, other.regions_);
  std::swap(transparent_, other.transparent_);
  std::swap(explicit_, other.explicit_);
  std::swap(lock_, other.lock_);
  std::swap(pages_, other.pages_);
  return *this;
}

Expected<Arena> Arena::reserve(std::span<const uint64_t> regions, const ArenaOptions& options) {
  Arena arena;
  const bool align = options.huge_pages != HugePages::kOff;
  arena.regions_.reserve(regions.size());
  uint64_t total = 0;
  // Regions of less than a huge page share one; every other begins at one.
  for (const uint64_t bytes : regions) {
    if (align && (bytes >= kHugePage || options.huge_pages == HugePages::kOn))
      total = round_up(total, kHugePage);
    arena.regions_.push_back({total, bytes, 0, 0});
    total += round_up(bytes, kPage);
  }
  if (total == 0) return arena;
  arena.bytes_ = align ? round_up(total, kHugePage) : total;

  std::string note;
  void* at = MAP_FAILED;
  constexpr int k2MiB = 21 << 26;  // MAP_HUGE_2MB, which lies in a header of the kernel
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (options.huge_pages == HugePages::kOn) {
    // Whether the pages are there shows when they are committed; an empty pool shows now.
    if (free_huge_pages() > 0)
      at = mmap(nullptr, arena.bytes_, PROT_NONE, kFlags | MAP_HUGETLB | k2MiB, -1, 0);
    arena.explicit_ = at != MAP_FAILED;
    if (!arena.explicit_)
      note = " (explicit ones were asked for and none is free: set vm.nr_hugepages)";
  }
  if (at == MAP_FAILED) {
    const uint64_t mapped = arena.bytes_ + (align ? kHugePage : 0);
    // Nothing may be touched before it is committed: this takes addresses and no memory.
    at = mmap(nullptr, mapped, PROT_NONE, kFlags, -1, 0);
    if (at == MAP_FAILED) {
      return fail(Code::kNoMemory,
                  "cannot reserve {} bytes of addresses for weights: {}; is there a limit on "
                  "virtual memory (ulimit -v)?",
                  mapped, std::strerror(errno));
    }
    if (align) {
      const auto address = reinterpret_cast<uintptr_t>(at);
      const uint64_t front = round_up(address, kHugePage) - address;
      auto* begin = static_cast<std::byte*>(at);
      if (front != 0) munmap(begin, front);
      if (front != kHugePage) munmap(begin + front + arena.bytes_, kHugePage - front);
      at = begin + front;
    } else {
      madvise(at, arena.bytes_, MADV_NOHUGEPAGE);
    }
  }
  arena.data_ = static_cast<std::byte*>(at);
  spread_over_nodes(at, arena.bytes_);
  arena.lock_ = options.lock;
  if (arena.explicit_) {
    arena.pages_ = "2 MiB, explicit";
  } else if (options.huge_pages == HugePages::kOff) {
    arena.pages_ = "none: turned off";
  } else {
    const std::string mode = chosen_word("/sys/kernel/mm/transparent_hugepage/enabled");
    arena.transparent_ = mode == "always" || mode == "madvise";
    arena.pages_ = (arena.transparent_ ? "transparent"
                    : mode.empty()     ? "none: this kernel has no transparent ones"
                                       : "none: transparent ones are set to '" + mode + "'") +
                   note;
  }
  if (arena.lock_) arena.pages_ += ", locked";
  return arena;
}

Status Arena::commit(size_t c, uint64_t bytes) {
  Region& region = regions_[c];
  if (bytes > region.committed) return grow(region, bytes);
  if (bytes < region.committed) shrink(region, bytes);
  return {};
}

uint64_t Arena::committed() const {
  uint64_t total = 0;
  for (const Region& region : regions_) total += region.committed;
  return total;
}

Status Arena::grow(Region& region, uint64_t bytes) {
  std::byte* const base = data_ + region.offset;
  const uint64_t unit = explicit_ ? kHugePage : kPage;
  const uint64_t old = round_up(region.committed, unit), end = round_up(bytes, unit);
  if (end > old) {
    const auto undo = [&] {
      madvise(base + old, end - old, MADV_DONTNEED);
      mprotect(base + old, end - old, PROT_NONE);
    };
    if (mprotect(base + old, end - old, PROT_READ | PROT_WRITE) != 0) {
      return fail(Code::kNoMemory, "cannot have {} bytes more for weights: {}", end - old,
                  std::strerror(errno));
    }
    // An explicit huge page that is not there would be a bus error at first touch.
    if (explicit_ && madvise(base + old, end - old, MADV_POPULATE_WRITE) != 0) {
      const int error = errno;
      undo();
      return fail(Code::kNoMemory,
                  "cannot have {} explicit huge pages for weights ({}; {} are free): set "
                  "vm.nr_hugepages, or use --huge-pages auto",
                  (end - old) / kHugePage, std::strerror(error), free_huge_pages());
    }
    // Pages are locked as the reads that fill them touch them.
    if (lock_ && !explicit_ && mlock2(base + old, end - old, MLOCK_ONFAULT) != 0) {
      const int error = errno;
      undo();
      return fail(
          Code::kNoMemory,
          "--mlock: cannot lock {} bytes of weights in memory: {} (the limit is {}); raise "
          "it with 'ulimit -l unlimited' or LimitMEMLOCK=infinity, lower --budget, or leave "
          "--mlock out",
          bytes, std::strerror(error), lock_limit());
    }
  }
  if (transparent_) {
    // Only huge pages that are committed as a whole: no other may grow past the arena.
    const uint64_t huge = bytes / kHugePage * kHugePage;
    if (huge > region.huge && region.bytes >= kHugePage) {
      madvise(base + region.huge, huge - region.huge, MADV_HUGEPAGE);  // a wish
      region.huge = huge;
    }
  }
  region.committed = bytes;
  return {};
}

void Arena::shrink(Region& region, uint64_t bytes) {
  std::byte* const base = data_ + region.offset;
  const uint64_t unit = explicit_ ? kHugePage : kPage;
  const uint64_t old = round_up(region.committed, unit), end = round_up(bytes, unit);
  region.committed = bytes;
  region.huge = std::min(region.huge, bytes / kHugePage * kHugePage);
  if (end >= old) return;
  if (lock_ && !explicit_) munlock(base + end, old - end);
  if (transparent_) {
    // A huge page that is given up in part stays whole, and charged, until the kernel runs short.
    // MADV_FREE of a part of it makes the kernel split it now.
    const uint64_t edge = std::min(round_up(end, kHugePage), old);
    if (edge > end) madvise(base + end, edge - end, MADV_FREE);
  }
  madvise(base + end, old - end, MADV_DONTNEED);
  mprotect(base + end, old - end, PROT_NONE);
}

}  // namespace millrace::stream
