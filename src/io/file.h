// Files opened for reading, past the page cache or through it, with exact reads and a seam for
// injected faults.
#pragma once

#include <chrono>
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
// Of the processors that this runs on.
inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

// Sees every read when it has ended, however it was made, and may change what its reader believes:
// the place for injected faults. Called from several threads at a time.
class ReadHook {
 public:
  virtual ~ReadHook() = default;
  // `got`: the number of bytes, 0 at the end, or -errno; the result is of the same kind. `delay`
  // (zero when called) asks for the result to be held back that long.
  virtual int64_t finished(const std::string& path, uint64_t offset, std::span<std::byte> to,
                           int64_t got, std::chrono::microseconds* delay) = 0;
};

// What a name meant when its file was opened: another file under that name, or the same one written
// to since, has another identity.
struct FileIdentity {
  uint64_t device = 0, inode = 0;  // st_dev, st_ino
  int64_t changed_ns = 0;          // st_mtim
  bool operator==(const FileIdentity&) const = default;
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
  ReadHook* hook() const { return hook_; }
  uint64_t device() const { return identity_.device; }
  const FileIdentity& identity() const { return identity_; }

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  FileIdentity identity_;
  Mode mode_ = Mode::kBuffered;
  ReadHook* hook_ = nullptr;
};

// One exact read, which may take the system several: says what to ask for next and takes what came.
// File::read is a loop around it; a backend that submits its reads itself keeps one for each.
class ReadProgress {
 public:
  ReadProgress() = default;
  ReadProgress(const File& file, uint64_t offset, std::span<std::byte> to, uint64_t least);

  uint64_t next_offset() const { return offset_ + from(); }
  std::span<std::byte> next() const { return to_.subspan(from()); }
  // What the system gave for next(): the number of bytes, 0 at the end, or -errno. True: all is
  // there; false: ask for the rest. An error (kIo) names path and offset.
  Expected<bool> advance(int64_t got);
  uint64_t done() const { return done_; }

 private:
  uint64_t from() const;
  const File* file_ = nullptr;
  uint64_t offset_ = 0, least_ = 0, done_ = 0;
  std::span<std::byte> to_;
  bool stuck_ = false;
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
