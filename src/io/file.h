// Files opened for reading, past the page cache or through it, with exact reads and a seam for
// injected faults.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::io {

enum class Mode : uint8_t { kDirect, kBuffered };
std::string_view name(Mode mode);  // "direct", "buffered"

// Every window that is read directly starts and ends at a multiple of this, in the file and in
// memory.
inline constexpr uint64_t kAlign = 4096;

// Stands between a file and the system's pread. Called from several threads at a time.
class ReadHook {
 public:
  virtual ~ReadHook() = default;
  // As pread(2): the number of bytes, 0 at the end, -1 with errno.
  virtual ssize_t pread(const std::string& path, int fd, void* to, size_t bytes, off_t offset) = 0;
};

class File {
 public:
  // Fails with kUnsupported when the file system has no direct reads, or none at kAlign. The hook
  // may be null; it must outlive the file.
  static Expected<File> open(const std::string& path, Mode mode, ReadHook* hook = nullptr);

  File() = default;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  // Reads to.size() bytes at offset. Direct: offset, size and address are multiples of kAlign.
  // Interrupted and short reads are continued; an end of file before `least` bytes is an error
  // (kIo) with path and offset. Returns the bytes read: fewer than to.size() only at the end of the
  // file.
  Expected<uint64_t> read(uint64_t offset, std::span<std::byte> to, uint64_t least) const;
  Expected<uint64_t> read(uint64_t offset, std::span<std::byte> to) const {
    return read(offset, to, to.size());
  }

  uint64_t size() const { return size_; }
  Mode mode() const { return mode_; }
  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  Mode mode_ = Mode::kBuffered;
  ReadHook* hook_ = nullptr;
};

// Memory at a multiple of kAlign, for direct reads.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  static Expected<AlignedBuffer> allocate(uint64_t bytes);
  std::span<std::byte> span() const { return {data_.get(), bytes_}; }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  uint64_t bytes_ = 0;
};

// Empty when the file can be read directly, else why not.
std::string why_not_direct(const std::string& path);

}  // namespace millrace::io
