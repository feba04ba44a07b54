#include "io/page_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace millrace::io {

PageCache::PageCache(const std::vector<std::string>& paths) {
  files_.reserve(paths.size());
  for (const std::string& path : paths) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat info {};
    if (::fstat(fd, &info) != 0 || info.st_size <= 0) {
      ::close(fd);
      continue;
    }
    files_.push_back({fd, static_cast<uint64_t>(info.st_size)});
  }
  file_ = files_.size();  // nothing to drop until start()
}

PageCache::~PageCache() {
  for (const Open& file : files_) ::close(file.fd);
}

void PageCache::start() { file_ = 0, offset_ = 0; }

uint64_t PageCache::drop_some(uint64_t bytes) {
  uint64_t asked = 0;
  while (file_ < files_.size() && asked < bytes) {
    const Open& file = files_[file_];
    const uint64_t part = std::min(bytes - asked, file.size - offset_);
    ::posix_fadvise(file.fd, static_cast<off_t>(offset_), static_cast<off_t>(part),
                    POSIX_FADV_DONTNEED);
    asked += part;
    offset_ += part;
    if (offset_ == file.size) ++file_, offset_ = 0;
  }
  return asked;
}

}  // namespace millrace::io
