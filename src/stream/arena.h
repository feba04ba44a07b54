// One mapping that holds every slot. Pages are touched by the reads that fill them, never before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace millrace::stream {

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  // With `huge_pages` the mapping starts at 2 MiB and asks for transparent huge pages.
  static Expected<Arena> map(uint64_t bytes, bool huge_pages);

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace millrace::stream
