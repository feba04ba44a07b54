#include "io/uring.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#ifdef MILLRACE_HAVE_LIBURING
#include <liburing.h>
#include <poll.h>
#endif

namespace millrace::io {

#ifdef MILLRACE_HAVE_LIBURING

namespace {

tl::unexpected<Error> ring_error(Code code, std::string_view call, int result) {
  return fail(code, "{}: {}", call, std::strerror(-result));
}

}  // namespace

struct Uring::Ring {
  io_uring ring = {};
  ~Ring() { io_uring_queue_exit(&ring); }
};

Expected<Uring> Uring::create(unsigned entries) {
  io_uring ring = {};
  // Completions need no interrupt of whatever the thread does: it comes for them by itself.
  int result = io_uring_queue_init(std::max(1u, entries), &ring, IORING_SETUP_COOP_TASKRUN);
  if (result == -EINVAL) result = io_uring_queue_init(std::max(1u, entries), &ring, 0);
  if (result < 0) {
    auto error = ring_error(Code::kUnsupported, "io_uring_setup", result);
    if (result == -EPERM) error.value().message += " (forbidden by a sandbox or by sysctl)";
    return error;
  }
  Uring made;
  made.ring_ = std::make_unique<Ring>();
  made.ring_->ring = ring;
  return made;
}

Status Uring::register_files(std::span<const int> descriptors) {
  const int result = io_uring_register_files(&ring_->ring, descriptors.data(),
                                             static_cast<unsigned>(descriptors.size()));
  if (result < 0) return ring_error(Code::kIo, "registering files", result);
  return {};
}

Status Uring::reserve_buffers(unsigned count) {
  const int result = io_uring_register_buffers_sparse(&ring_->ring, count);
  if (result < 0) return ring_error(Code::kUnsupported, "registering a table of buffers", result);
  return {};
}

Status Uring::set_buffer(unsigned place, std::span<std::byte> memory) {
  const iovec vector = {memory.data(), memory.size()};
  const __u64 tag = 0;
  const int result = io_uring_register_buffers_update_tag(&ring_->ring, place, &vector, &tag, 1);
  if (result < 0) return ring_error(Code::kNoMemory, "registering memory", result);
  return {};
}

namespace {

io_uring_sqe* next_entry(io_uring* ring) {
  io_uring_sqe* sqe = io_uring_get_sqe(ring);
  while (sqe == nullptr) {  // full of what was queued and not yet submitted
    io_uring_submit(ring);
    sqe = io_uring_get_sqe(ring);
  }
  return sqe;
}

}  // namespace

void Uring::watch(int descriptor, uint64_t id) {
  io_uring_sqe* sqe = next_entry(&ring_->ring);
  io_uring_prep_poll_add(sqe, descriptor, POLLIN);
  io_uring_sqe_set_data64(sqe, id);
}

void Uring::read(int descriptor, int file_place, uint64_t offset, std::span<std::byte> to,
                 int buffer_place, uint64_t id) {
  io_uring_sqe* sqe = next_entry(&ring_->ring);
  const int file = file_place == kNone ? descriptor : file_place;
  const auto bytes = static_cast<unsigned>(std::min<uint64_t>(to.size(), 1u << 30));
  if (buffer_place == kNone) {
    io_uring_prep_read(sqe, file, to.data(), bytes, offset);
  } else {
    io_uring_prep_read_fixed(sqe, file, to.data(), bytes, offset, buffer_place);
  }
  if (file_place != kNone) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, id);
}

namespace {

std::optional<Uring::Done> take(io_uring* ring, io_uring_cqe* cqe) {
  const Uring::Done done{io_uring_cqe_get_data64(cqe), cqe->res};
  io_uring_cqe_seen(ring, cqe);
  return done;
}

}  // namespace

Expected<std::optional<Uring::Done>> Uring::wait(
    std::optional<std::chrono::steady_clock::time_point> deadline) {
  io_uring_cqe* cqe = nullptr;
  for (;;) {
    int result = 0;
    if (deadline) {
      const auto left =
          std::max(std::chrono::nanoseconds(0),
                   std::chrono::nanoseconds(*deadline - std::chrono::steady_clock::now()));
      __kernel_timespec time = {left.count() / 1000000000, left.count() % 1000000000};
      result = io_uring_submit_and_wait_timeout(&ring_->ring, &cqe, 1, &time, nullptr);
    } else {
      result = io_uring_submit_and_wait(&ring_->ring, 1);
    }
    if (result == -ETIME) return std::nullopt;
    if (result == -EINTR || result == -EAGAIN || result == -EBUSY) continue;
    if (result < 0) return ring_error(Code::kIo, "io_uring_enter", result);
    if (io_uring_peek_cqe(&ring_->ring, &cqe) == 0) return take(&ring_->ring, cqe);
  }
}

Expected<std::optional<Uring::Done>> Uring::poll() {
  if (io_uring_sq_ready(&ring_->ring) > 0) {
    const int result = io_uring_submit(&ring_->ring);
    if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
      return ring_error(Code::kIo, "io_uring_enter", result);
    }
  }
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(&ring_->ring, &cqe) != 0) return std::nullopt;
  return take(&ring_->ring, cqe);
}

#else

struct Uring::Ring {};

namespace {
constexpr const char* kWhy = "built without liburing (Debian: liburing-dev)";
}

Expected<Uring> Uring::create(unsigned) { return fail(Code::kUnsupported, "{}", kWhy); }
Status Uring::register_files(std::span<const int>) { return fail(Code::kUnsupported, "{}", kWhy); }
Status Uring::reserve_buffers(unsigned) { return fail(Code::kUnsupported, "{}", kWhy); }
Status Uring::set_buffer(unsigned, std::span<std::byte>) {
  return fail(Code::kUnsupported, "{}", kWhy);
}
void Uring::watch(int, uint64_t) {}
void Uring::read(int, int, uint64_t, std::span<std::byte>, int, uint64_t) {}
Expected<std::optional<Uring::Done>> Uring::wait(
    std::optional<std::chrono::steady_clock::time_point>) {
  return fail(Code::kUnsupported, "{}", kWhy);
}
Expected<std::optional<Uring::Done>> Uring::poll() { return fail(Code::kUnsupported, "{}", kWhy); }

#endif

Uring::Uring() = default;
Uring::~Uring() = default;
Uring::Uring(Uring&& other) noexcept = default;
Uring& Uring::operator=(Uring&& other) noexcept = default;

std::string why_no_io_uring() {
  const auto ring = Uring::create(4);
  return ring ? std::string() : ring.error().message;
}

}  // namespace millrace::io
