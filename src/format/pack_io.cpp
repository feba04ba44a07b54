// Files as packing reads and writes them: once, in large pieces, without filling the page cache.
#include "format/pack_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "base/numeric.h"

namespace millrace::format {
namespace {

bool aligned(uint64_t offset, const void* data, uint64_t bytes) {
  return offset % kPackAlign == 0 && bytes % kPackAlign == 0 &&
         reinterpret_cast<uintptr_t>(data) % kPackAlign == 0;
}

}  // namespace

void Fd::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

tl::unexpected<Error> io_error(const std::string& path, std::string_view what, int error) {
  return fail(error == ENOENT ? Code::kNotFound : Code::kIo, "{}: {}: {}", path, what,
              std::strerror(error));
}

void AlignedBuffer::Free::operator()(std::byte* data) const { std::free(data); }

void AlignedBuffer::grow(uint64_t bytes) {
  if (bytes <= size_) return;
  data_.reset();
  size_ = round_up(bytes, kPackAlign);
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPackAlign, size_)));
  if (!data_) throw std::bad_alloc();
}

Expected<InFile> InFile::open(const std::string& path, bool follow, bool direct) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW);
  InFile file;
  file.path_ = path;
  file.fd_ = Fd(::open(path.c_str(), flags));
  if (!file.fd_.open()) {
    if (errno == ELOOP) return fail(Code::kInvalid, "{}: is a symbolic link", path);
    return io_error(path, "open", errno);
  }
  struct stat status = {};
  if (::fstat(file.fd_.get(), &status) != 0) return io_error(path, "stat", errno);
  if (!S_ISREG(status.st_mode)) return fail(Code::kInvalid, "{}: not a regular file", path);
  file.size_ = static_cast<uint64_t>(status.st_size);
  file.mtime_ns_ = status.st_mtim.tv_sec * int64_t{1000000000} + status.st_mtim.tv_nsec;
  ::posix_fadvise(file.fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  // Not every file system has it; then reads go through the cache.
  if (direct) file.direct_ = Fd(::open(path.c_str(), flags | O_DIRECT));
  return file;
}

Status InFile::read(uint64_t offset, std::span<std::byte> to) const {
  uint64_t done = 0;
  bool direct = direct_.open();
  while (done < to.size()) {
    std::byte* at = to.data() + done;
    const uint64_t left = to.size() - done;
    const bool past = direct && aligned(offset + done, at, left);
    const ssize_t got =
        ::pread(past ? direct_.get() : fd_.get(), at, left, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EINVAL && past) {
      direct = false;
      continue;
    }
    if (got < 0) return io_error(path_, fmt::format("read at offset {}", offset + done), errno);
    if (got == 0) {
      return fail(Code::kCorrupt, "{}: ends at offset {}, {} bytes early", path_, offset + done,
                  left);
    }
    done += static_cast<uint64_t>(got);
  }
  return {};
}

void InFile::drop(uint64_t offset, uint64_t bytes) const {
  ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_DONTNEED);
}

Expected<OutFile> OutFile::open(const std::string& path, uint64_t bytes) {
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  OutFile file;
  file.path_ = path;
  file.fd_ = Fd(::open(path.c_str(), flags, 0644));
  if (!file.fd_.open()) return io_error(path, "create", errno);
  const int fd = file.fd_.get();
  if (bytes != 0 && ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    return io_error(path, fmt::format("reserve {} bytes", bytes), errno);
  }
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return io_error(path, "resize", errno);
  file.direct_ = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_DIRECT));
  return file;
}

Status OutFile::write(uint64_t offset, std::span<const std::byte> from) {
  uint64_t done = 0;
  bool cached = false;
  while (done < from.size()) {
    const std::byte* at = from.data() + done;
    const uint64_t left = from.size() - done;
    const bool past = direct_.open() && aligned(offset + done, at, left);
    const ssize_t put =
        ::pwrite(past ? direct_.get() : fd_.get(), at, left, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && past) {
      direct_.close();
      continue;
    }
    if (put <= 0) {
      return io_error(path_, fmt::format("write at offset {}", offset + done),
                      put < 0 ? errno : ENOSPC);
    }
    cached |= !past;
    done += static_cast<uint64_t>(put);
  }
  if (cached && from.size() >= kIoBlock) {
    // Through the cache after all: let it hold one block at a time.
    const auto start = static_cast<off_t>(offset), length = static_cast<off_t>(from.size());
    ::sync_file_range(
        fd_.get(), start, length,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(fd_.get(), start, length, POSIX_FADV_DONTNEED);
  }
  return {};
}

Status OutFile::read(uint64_t offset, std::span<std::byte> to) const {
  for (uint64_t done = 0; done < to.size();) {
    const ssize_t got =
        ::pread(fd_.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return io_error(path_, "read back", got < 0 ? errno : EIO);
    done += static_cast<uint64_t>(got);
  }
  return {};
}

Status OutFile::sync() {
  if (::fdatasync(fd_.get()) != 0) return io_error(path_, "fsync", errno);
  return {};
}

void StreamWriter::attach(OutFile* file, uint64_t offset) {
  file_ = file;
  offset_ = offset;
  fill_ = 0;
}

Status StreamWriter::write_block() {
  if (fill_ == 0) return {};
  MILLRACE_TRY(file_->write(offset_, buffer_.first(fill_)));
  offset_ += fill_;
  fill_ = 0;
  return {};
}

Status StreamWriter::append(std::span<const std::byte> data) {
  while (!data.empty()) {
    const uint64_t part = std::min<uint64_t>(data.size(), buffer_.size() - fill_);
    std::memcpy(buffer_.data() + fill_, data.data(), part);
    fill_ += part;
    data = data.subspan(part);
    if (fill_ == buffer_.size()) MILLRACE_TRY(write_block());
  }
  return {};
}

Status StreamWriter::append_zeros(uint64_t bytes) {
  static constexpr std::byte kZeros[kPackAlign] = {};
  while (bytes != 0) {
    const uint64_t part = std::min<uint64_t>(bytes, sizeof kZeros);
    MILLRACE_TRY(append({kZeros, part}));
    bytes -= part;
  }
  return {};
}

Status StreamWriter::flush() { return write_block(); }

Status hash_range(const InFile& file, uint64_t offset, uint64_t bytes, std::span<std::byte> block,
                  Hasher* hasher) {
  while (bytes != 0) {
    const uint64_t part = std::min<uint64_t>(bytes, block.size());
    MILLRACE_TRY(file.read(offset, block.first(part)));
    hasher->update(block.first(part));
    file.drop(offset, part);
    offset += part;
    bytes -= part;
  }
  return {};
}

Expected<Hash128> hash_file(const std::string& path, bool follow) {
  MILLRACE_ASSIGN(const InFile file, InFile::open(path, follow, true));
  const AlignedBuffer block(kIoBlock);
  Hasher hasher;
  MILLRACE_TRY(hash_range(file, 0, file.size(), block.first(kIoBlock), &hasher));
  return hasher.digest();
}

Expected<std::string> read_small(const std::string& path, uint64_t cap) {
  MILLRACE_ASSIGN(const InFile file, InFile::open(path, false, false));
  if (file.size() > cap) {
    return fail(Code::kInvalid, "{}: {} bytes, more than the {} allowed here", path, file.size(),
                cap);
  }
  std::string text(file.size(), '\0');
  MILLRACE_TRY(file.read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Status write_small(const std::string& path, std::string_view text) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.open()) return io_error(path, "create", errno);
  while (!text.empty()) {
    const ssize_t put = ::write(fd.get(), text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return io_error(path, "write", put < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<size_t>(put));
  }
  if (::fsync(fd.get()) != 0) return io_error(path, "fsync", errno);
  return {};
}

Status sync_folder(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.open()) return io_error(path, "open folder", errno);
  // Some file systems cannot sync a folder and say so with EINVAL; their renames are ordered
  // anyway.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return io_error(path, "fsync folder", errno);
  return {};
}

Expected<uint64_t> free_disk(const std::string& folder) {
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0) return io_error(folder, "free space", errno);
  return uint64_t{status.f_bavail} * status.f_frsize;
}

Expected<uint64_t> held_disk(const std::string& folder) {
  uint64_t held = 0;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    struct stat status = {};
    if (::lstat(entry->path().c_str(), &status) == 0) {
      held += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  if (error) return fail(Code::kIo, "{}: {}", folder, error.message());
  return held;
}

}  // namespace millrace::format
