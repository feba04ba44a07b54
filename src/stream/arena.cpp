#include "stream/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/numa.h"
#include "base/numeric.h"

namespace millrace::stream {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Expected<Arena> Arena::map(uint64_t bytes, bool huge_pages) {
  Arena arena;
  if (bytes == 0) return arena;
  const bool align = huge_pages && bytes >= kHugePage;
  const uint64_t mapped = bytes + (align ? kHugePage : 0);
  void* const at =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return fail(Code::kNoMemory, "cannot map a weight arena of {} bytes: {}", bytes,
                std::strerror(errno));
  }
  auto* begin = static_cast<std::byte*>(at);
  spread_over_nodes(at, mapped);
  if (align) {
    // Give back what lies outside the aligned range, so that no huge page can grow past the arena.
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const uint64_t front = round_up(address, kHugePage) - address;
    const uint64_t end = round_up(front + bytes, 4096);
    if (front != 0) munmap(begin, front);
    if (end < mapped) munmap(begin + end, mapped - end);
    begin += front;
    madvise(begin, bytes, MADV_HUGEPAGE);  // a wish: without it the arena works the same
  }
  arena.data_ = begin;
  arena.bytes_ = bytes;
  return arena;
}

}  // namespace millrace::stream
