// The page cache of a model's files: dropped when memory is short.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::io {

class PageCache {
 public:
  // Files that cannot be opened are left out.
  explicit PageCache(const std::vector<std::string>& paths);
  ~PageCache();
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  // Everything is to be dropped; drop_some() does it a part at a time, so that no step waits long.
  void start();
  // Asks the kernel to drop the next `bytes` of the files from its cache. Returns for how many it
  // asked: 0 when all was asked for.
  uint64_t drop_some(uint64_t bytes);

 private:
  struct Open {
    int fd;
    uint64_t size;
  };
  std::vector<Open> files_;
  size_t file_ = 0;
  uint64_t offset_ = 0;
};

}  // namespace millrace::io
