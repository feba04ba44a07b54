#include "io/file.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/numeric.h"

namespace millrace::io {
namespace {

tl::unexpected<Error> system_error(const std::string& path, std::string_view what, int error) {
  return fail(error == ENOENT ? Code::kNotFound : Code::kIo, "{}: {}: {}", path, what,
              std::strerror(error));
}

// Offset alignment for direct reads as statx tells it (Linux 6.1), 0 when it does not.
struct DirectFacts {
  bool told = false;
  uint32_t memory = 0;
  uint32_t offset = 0;
};

DirectFacts direct_facts(int fd) {
  DirectFacts facts;
#if defined(STATX_DIOALIGN) && defined(SYS_statx)
  // The kernel's own struct: the C library's may be older than the kernel's headers.
  struct statx info = {};
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    facts = {true, info.stx_dio_mem_align, info.stx_dio_offset_align};
  }
#else
  static_cast<void>(fd);
#endif
  return facts;
}

// Whether an open direct descriptor can be read at kAlign; why not, else.
std::string check_direct(int fd) {
  const DirectFacts facts = direct_facts(fd);
  if (facts.told && facts.offset == 0) return "the file system has no direct reads";
  if (facts.told && (kAlign % facts.offset != 0 || kAlign % facts.memory != 0)) {
    return fmt::format("direct reads need an alignment of {} in the file and {} in memory",
                       facts.offset, facts.memory);
  }
  // Some file systems accept the flag and refuse the read.
  auto buffer = AlignedBuffer::allocate(kAlign);
  if (!buffer) return buffer.error().message;
  ssize_t got;
  do {
    got = ::pread(fd, buffer->data(), kAlign, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EINVAL) return "the file system refuses direct reads";
  return {};
}

}  // namespace

std::string_view name(Mode mode) { return mode == Mode::kDirect ? "direct" : "buffered"; }

Expected<File> File::open(const std::string& path, Mode mode, ReadHook* hook) {
  File file;
  file.path_ = path;
  file.mode_ = mode;
  file.hook_ = hook;
  // O_NONBLOCK: a FIFO of that name must not hang us. Taken away again from regular files: io_uring
  // may take it for a wish to fail rather than wait.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (mode == Mode::kDirect ? O_DIRECT : 0);
  file.fd_ = ::open(path.c_str(), flags);
  if (file.fd_ < 0) {
    if (errno == EINVAL && mode == Mode::kDirect) {
      return fail(Code::kUnsupported, "{}: the file system has no direct reads", path);
    }
    return system_error(path, "open", errno);
  }
  struct stat status = {};
  if (fstat(file.fd_, &status) != 0) return system_error(path, "stat", errno);
  if (!S_ISREG(status.st_mode)) return fail(Code::kInvalid, "{}: not a regular file", path);
  if (fcntl(file.fd_, F_SETFL, flags & ~O_NONBLOCK) != 0) return system_error(path, "fcntl", errno);
  file.size_ = static_cast<uint64_t>(status.st_size);
  constexpr int64_t kSecond = 1'000'000'000;
  file.identity_ = {status.st_dev, status.st_ino,
                    int64_t{status.st_mtim.tv_sec} * kSecond + status.st_mtim.tv_nsec};
  if (mode == Mode::kDirect) {
    const std::string reason = check_direct(file.fd_);
    if (!reason.empty()) return fail(Code::kUnsupported, "{}: {}", path, reason);
  } else {
    // Pieces are large and read whole: the kernel's own read-ahead would only read past their ends.
    posix_fadvise(file.fd_, 0, 0, POSIX_FADV_RANDOM);
  }
  return file;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      identity_(other.identity_),
      mode_(other.mode_),
      hook_(other.hook_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(identity_, other.identity_);
  std::swap(mode_, other.mode_);
  std::swap(hook_, other.hook_);
  return *this;
}

Expected<uint64_t> File::read(uint64_t offset, std::span<std::byte> to, uint64_t least) const {
  ReadProgress progress(*this, offset, to, least);
  if (to.empty()) return 0;
  for (;;) {
    const uint64_t at = progress.next_offset();
    const std::span<std::byte> part = progress.next();
    const ssize_t read = ::pread(fd_, part.data(), part.size(), static_cast<off_t>(at));
    int64_t got = read < 0 ? -errno : read;
    if (hook_ != nullptr) {
      std::chrono::microseconds delay{0};
      got = hook_->finished(path_, at, part, got, &delay);
      if (delay.count() > 0) std::this_thread::sleep_for(delay);
    }
    MILLRACE_ASSIGN(const bool whole, progress.advance(got));
    if (whole) return progress.done();
  }
}

ReadProgress::ReadProgress(const File& file, uint64_t offset, std::span<std::byte> to,
                           uint64_t least)
    : file_(&file), offset_(offset), least_(least), to_(to) {
  assert(file.mode() != Mode::kDirect || (offset % kAlign == 0 && to.size() % kAlign == 0 &&
                                          reinterpret_cast<uintptr_t>(to.data()) % kAlign == 0));
}

// A direct read goes on at a multiple of kAlign, even when the last one ended inside a block.
uint64_t ReadProgress::from() const {
  return file_->mode() == Mode::kDirect ? done_ / kAlign * kAlign : done_;
}

Expected<bool> ReadProgress::advance(int64_t got) {
  if (got == -EINTR) return false;
  if (got < 0) {
    return system_error(file_->path(), fmt::format("read at offset {}", next_offset()),
                        static_cast<int>(-got));
  }
  const uint64_t reached = from() + static_cast<uint64_t>(got);
  if (reached > done_) {
    done_ = reached;
    stuck_ = false;
    if (done_ == to_.size()) return true;
    if (done_ < least_ || offset_ + done_ < file_->size()) return false;
    return true;
  }
  // No progress: the end of the file, or a direct read cut inside one block, which is tried once
  // more.
  if (got != 0 && !std::exchange(stuck_, true)) return false;
  if (done_ >= least_) return true;
  return fail(Code::kIo, "{}: read at offset {} ended after {} of {} bytes", file_->path(), offset_,
              done_, least_);
}

Expected<AlignedBuffer> AlignedBuffer::allocate(uint64_t bytes) {
  AlignedBuffer buffer;
  buffer.bytes_ = bytes;
  // Large reads go to the disk in as many requests as there are pieces of memory: huge pages make few.
  const bool huge = bytes >= kHugePage;
  const uint64_t align = huge ? kHugePage : kAlign;
  buffer.data_.reset(static_cast<std::byte*>(std::aligned_alloc(align, round_up(bytes, align))));
  if (!buffer.data_ && bytes != 0)
    return fail(Code::kNoMemory, "no memory for a read buffer of {} bytes", bytes);
  if (huge) (void)::madvise(buffer.data(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return buffer;
}

void AlignedBuffer::Free::operator()(std::byte* data) const { std::free(data); }

std::string why_not_direct(const std::string& path) {
  const auto file = File::open(path, Mode::kDirect);
  return file ? std::string() : file.error().message;
}

}  // namespace millrace::io
