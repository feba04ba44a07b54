// Files as packing reads and writes them: once, in large pieces, without filling the page cache.
//
// A pack touches every byte of a model once. Left to the page cache it would push out everything
// else on the machine and, inside a small cgroup, stall on its own dirty pages. So writes go past
// the cache (O_DIRECT), and reads are dropped behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "format/pack_hash.h"

namespace millrace::format {

inline constexpr uint64_t kPackAlign = 4096;
inline constexpr uint64_t kIoBlock = uint64_t{4} << 20;  // of sequential reads and writes

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { close(); }
  void close();
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "path: what: No space left on device"; ENOENT becomes kNotFound.
tl::unexpected<Error> io_error(const std::string& path, std::string_view what, int error);

// Page-aligned memory. Pages that are never touched cost nothing.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(uint64_t bytes) { grow(bytes); }
  void grow(uint64_t bytes);  // contents are lost when it has to grow
  std::byte* data() const { return data_.get(); }
  uint64_t size() const { return size_; }
  std::span<std::byte> first(uint64_t bytes) const { return {data_.get(), bytes}; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  uint64_t size_ = 0;
};

class InFile {
 public:
  // `follow`: a symbolic link is followed (sources, and the weights files of a packed folder, which
  // may lie on other disks); no other file of a packed folder may be one.
  // `direct`: aligned reads pass the page cache where the file system can.
  static Expected<InFile> open(const std::string& path, bool follow, bool direct);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  int64_t mtime_ns() const { return mtime_ns_; }

  // Exactly to.size() bytes from offset, or an error with the offset.
  Status read(uint64_t offset, std::span<std::byte> to) const;
  // The caller will not read these bytes again.
  void drop(uint64_t offset, uint64_t bytes) const;

 private:
  std::string path_;
  Fd fd_;
  Fd direct_;
  uint64_t size_ = 0;
  int64_t mtime_ns_ = 0;
};

class OutFile {
 public:
  // Created, or opened as it is (resume). `bytes` are reserved on the disk at once, so that a full
  // disk is found before the work and not after it.
  static Expected<OutFile> open(const std::string& path, uint64_t bytes);

  const std::string& path() const { return path_; }
  Status write(uint64_t offset, std::span<const std::byte> from);
  Status read(uint64_t offset, std::span<std::byte> to) const;  // what was written, for merging
  Status sync();

 private:
  std::string path_;
  Fd fd_;
  Fd direct_;
};

// Collects a sequence of bytes and writes it in large aligned blocks.
class StreamWriter {
 public:
  StreamWriter() : buffer_(2 * kIoBlock) {}
  // Continues `file` at `offset`, a multiple of 4096. The caller has flushed the previous file.
  void attach(OutFile* file, uint64_t offset);
  Status append(std::span<const std::byte> data);
  Status append_zeros(uint64_t bytes);
  Status flush();  // what was appended must have come to a multiple of 4096

 private:
  Status write_block();
  OutFile* file_ = nullptr;
  uint64_t offset_ = 0;  // of the block in the file
  uint64_t fill_ = 0;
  AlignedBuffer buffer_;
};

// Hash of a part of a file, read in blocks and dropped behind.
Status hash_range(const InFile& file, uint64_t offset, uint64_t bytes, std::span<std::byte> block,
                  Hasher* hasher);
Expected<Hash128> hash_file(const std::string& path, bool follow);

// The whole of a small file of a packed folder; more than `cap` bytes is an error.
Expected<std::string> read_small(const std::string& path, uint64_t cap);
// Written, fsynced; never through an existing file or link.
Status write_small(const std::string& path, std::string_view text);
Status sync_folder(const std::string& path);

Expected<uint64_t> free_disk(const std::string& folder);
// What the files of a folder take up on the disk already.
Expected<uint64_t> held_disk(const std::string& folder);

}  // namespace millrace::format
