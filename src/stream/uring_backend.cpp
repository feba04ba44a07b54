// The read backend over io_uring: one thread keeps `depth` reads with the kernel, checks what comes
// back, and never waits for a single one of them.
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "io/uring.h"
#include "stream/read_queue.h"

namespace millrace::stream {
namespace {

using Clock = std::chrono::steady_clock;

// Of the kernel's table of registered buffers. Slots beyond it are read into all the same.
constexpr uint32_t kMostBuffers = 4096;
// Id of the wait for the eventfd. Not UINT64_MAX: liburing keeps that for itself on kernels before 5.11.
constexpr uint64_t kWake = UINT64_MAX - 1;

class EventFd {
 public:
  EventFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~EventFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  EventFd(EventFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  EventFd& operator=(EventFd&&) = delete;
  int get() const { return fd_; }
  void signal() const { static_cast<void>(!::eventfd_write(fd_, 1)); }
  void clear() const {
    eventfd_t value = 0;
    static_cast<void>(!::eventfd_read(fd_, &value));
  }

 private:
  int fd_;
};

// Slots whose pages the kernel keeps at hand. Used by the driving thread; told about by anyone.
class SlotBuffers {
 public:
  SlotBuffers(io::Uring& ring, uint32_t slots) : ring_(ring) {
    const Status reserved = ring_.reserve_buffers(std::min(slots, kMostBuffers));
    if (reserved) {
      left_ = std::min(slots, kMostBuffers);
      places_.reserve(left_);
    } else {
      why_not_ = reserved.error().message;
    }
  }

  // Where the slot is registered; kNone when it cannot be.
  int place_of(std::span<std::byte> slot) {
    if (const auto known = places_.find(slot.data()); known != places_.end()) {
      if (known->second.bytes >= slot.size()) return known->second.place;
      if (known->second.bytes != 0) static_cast<void>(ring_.set_buffer(at(known->second), {}));
      return set(known->second, slot) ? known->second.place : io::Uring::kNone;
    }
    if (left_ == 0 || !why_not_.empty()) return io::Uring::kNone;
    Entry entry{static_cast<int>(places_.size()), 0};
    if (!set(entry, slot)) return io::Uring::kNone;
    --left_;
    places_.emplace(slot.data(), entry);
    return entry.place;
  }

  void forget(std::span<std::byte> memory) {
    for (auto& [begin, entry] : places_) {
      const bool apart =
          begin >= memory.data() + memory.size() || begin + entry.bytes <= memory.data();
      if (entry.bytes == 0 || apart) continue;
      static_cast<void>(ring_.set_buffer(at(entry), {}));
      registered_.fetch_sub(1, std::memory_order_relaxed);
      entry.bytes = 0;
    }
  }

  std::string describe() const {
    const uint32_t count = registered_.load(std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    if (why_not_.empty()) return fmt::format("{} slots registered", count);
    return fmt::format("{} slots registered, then no more: {}", count, why_not_);
  }

 private:
  struct Entry {
    int place;
    uint64_t bytes;  // 0: not registered now
  };
  static unsigned at(const Entry& entry) { return static_cast<unsigned>(entry.place); }

  bool set(Entry& entry, std::span<std::byte> slot) {
    if (!why_not_.empty()) return false;
    const bool had = entry.bytes != 0;
    const Status status = ring_.set_buffer(at(entry), slot);
    entry.bytes = status ? slot.size() : 0;
    if (status && !had) registered_.fetch_add(1, std::memory_order_relaxed);
    if (!status && had) registered_.fetch_sub(1, std::memory_order_relaxed);
    if (status) return true;
    rlimit limit = {};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    std::lock_guard lock(mutex_);
    why_not_ = status.error().message;
    if (limit.rlim_cur != RLIM_INFINITY)
      why_not_ += fmt::format(" (RLIMIT_MEMLOCK is {} KiB)", limit.rlim_cur >> 10);
    return false;
  }

  io::Uring& ring_;
  std::unordered_map<std::byte*, Entry> places_;
  uint32_t left_ = 0;
  std::atomic<uint32_t> registered_{0};
  mutable std::mutex mutex_;  // of why_not_, which only the driving thread writes
  std::string why_not_;
};

class UringBackend : public QueuedBackend {
 public:
  UringBackend(WholePieces& pieces, ReadWatch* watch, io::Uring ring, EventFd wake, unsigned depth,
               uint32_t capacity)
      : QueuedBackend(capacity),
        pieces_(pieces),
        watch_(watch),
        depth_(depth),
        ring_(std::move(ring)),
        wake_(std::move(wake)),
        buffers_(ring_, capacity),
        ops_(2 * uint64_t{depth}) {
    const std::vector<int> files = pieces.copies().descriptors();
    files_registered_ = ring_.register_files(files).has_value();
    for (uint32_t i = 0; i < ops_.size(); ++i) free_.push_back(i);
    taken_.reserve(depth);
    whole_.reserve(ops_.size());
    late_.reserve(ops_.size());
    thread_ = std::thread([this] { drive(); });
  }

  ~UringBackend() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.signal();
    thread_.join();
  }

  void submit(const ReadRequest& request) override {
    bool room = false;
    {
      std::lock_guard lock(mutex_);
      queue_.push(request);
      room = flying_ < depth_;
    }
    if (room) wake_.signal();
  }

  void forget(std::span<std::byte> memory) override {
    std::unique_lock lock(mutex_);
    forgotten_.push_back(memory);
    wake_.signal();
    let_go_.wait(lock, [this] { return forgotten_.empty(); });
  }

  std::string describe() const override {
    return fmt::format("io_uring, {} reads in flight, {}{}", depth_, buffers_.describe(),
                       files_registered_ ? "" : ", files not registered");
  }

 private:
  struct Op {
    uint32_t piece = 0;
    std::span<std::byte> slot;
    WholePieces::Place place;
    io::ReadProgress progress;
    unsigned tries = 0;  // begun
  };
  struct Late {  // a result that a hook holds back
    Clock::time_point due;
    uint32_t op = 0;
    int64_t got = 0;
  };

  void drive() {
    ring_.watch(wake_.get(), kWake);
    while (take_requests()) {
      auto done = ring_.wait(next_due());
      // A ring that works at all has no other errors than passing ones.
      if (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (; done && *done; done = ring_.poll()) arrived((*done)->id, (*done)->result);
      const auto now = Clock::now();
      for (size_t i = 0; i < late_.size();) {
        if (late_[i].due > now) {
          ++i;
          continue;
        }
        const Late late = late_[i];
        late_[i] = late_.back();
        late_.pop_back();
        advance(late.op, late.got);
      }
      if (whole_.empty()) continue;
      // The disk first: hashes are made while it reads.
      if (!take_requests()) break;
      if (auto more = ring_.poll(); more && *more) arrived((*more)->id, (*more)->result);
      checking_.swap(whole_);
      for (const uint32_t op : checking_) check(op);
      checking_.clear();
    }
  }

  // Starts what waits, as far as there is room. False when it is time to end.
  bool take_requests() {
    for (;;) {
      taken_.clear();
      {
        std::lock_guard lock(mutex_);
        if (stop_ && flying_ == 0) return false;
        while (!stop_ && flying_ < depth_ && queue_.waiting() && taken_.size() < free_.size()) {
          taken_.push_back(queue_.pop());
          ++flying_;
        }
        for (const auto& memory : forgotten_) buffers_.forget(memory);
        if (!forgotten_.empty()) let_go_.notify_all();
        forgotten_.clear();
      }
      if (taken_.empty()) return true;
      for (const ReadRequest& request : taken_) {
        const uint32_t op = free_.back();
        free_.pop_back();
        ops_[op].piece = request.piece;
        ops_[op].slot = request.slot;
        ops_[op].tries = 0;
        begin(op);  // may fail at once: then there is room again
      }
    }
  }

  void begin(uint32_t index) {
    Op& op = ops_[index];
    for (;;) {
      ++op.tries;
      auto place = pieces_.begin(op.piece);
      if (place) {
        op.place = std::move(*place);
        op.progress = io::ReadProgress(*op.place.lease.file, op.place.offset,
                                       op.slot.first(op.place.bytes), op.place.bytes);
        return ask(index);
      }
      if (op.tries >= pieces_.copies().tries()) {
        land();
        return end(index, tl::make_unexpected(std::move(place.error())));
      }
    }
  }

  void ask(uint32_t index) {
    const Op& op = ops_[index];
    const io::File& file = *op.place.lease.file;
    ring_.read(file.descriptor(), files_registered_ ? op.place.lease.place : io::Uring::kNone,
               op.progress.next_offset(), op.progress.next(), buffers_.place_of(op.slot), index);
  }

  void arrived(uint64_t id, int64_t got) {
    if (id == kWake) {
      wake_.clear();
      ring_.watch(wake_.get(), kWake);
      return;
    }
    const auto index = static_cast<uint32_t>(id);
    const Op& op = ops_[index];
    const io::File& file = *op.place.lease.file;
    std::chrono::microseconds delay{0};
    if (file.hook() != nullptr) {
      got = file.hook()->finished(file.path(), op.progress.next_offset(), op.progress.next(), got,
                                  &delay);
    }
    if (delay.count() > 0) {
      late_.push_back({Clock::now() + delay, index, got});
    } else {
      advance(index, got);
    }
  }

  void advance(uint32_t index, int64_t got) {
    Op& op = ops_[index];
    auto whole = op.progress.advance(got);
    if (!whole) return again(index, tl::make_unexpected(std::move(whole.error())));
    if (!*whole) return ask(index);
    static_cast<void>(pieces_.landed(op.piece, op.place, {}));
    if (watch_) watch_->fetched(op.piece);
    land();
    whole_.push_back(index);
  }

  void check(uint32_t index) {
    Op& op = ops_[index];
    Status status = pieces_.check(op.piece, op.place, op.slot);
    if (status) {
      count_read(op.place.bytes);
    } else if (op.tries < pieces_.copies().tries()) {
      {
        std::lock_guard lock(mutex_);
        ++flying_;
      }
      return begin(index);
    }
    end(index, std::move(status));
  }

  void again(uint32_t index, Status error) {
    Op& op = ops_[index];
    Status named = pieces_.landed(op.piece, op.place, std::move(error));
    if (op.tries < pieces_.copies().tries()) return begin(index);
    land();
    end(index, std::move(named));
  }

  void land() {
    std::lock_guard lock(mutex_);
    --flying_;
  }

  void end(uint32_t index, Status status) {
    ops_[index].place = {};
    free_.push_back(index);
    finish({ops_[index].piece, std::move(status)});
  }

  std::optional<Clock::time_point> next_due() const {
    std::optional<Clock::time_point> due;
    for (const Late& late : late_) due = due ? std::min(*due, late.due) : late.due;
    return due;
  }

  WholePieces& pieces_;
  ReadWatch* const watch_;
  const unsigned depth_;
  io::Uring ring_;
  EventFd wake_;
  SlotBuffers buffers_;
  bool files_registered_ = false;

  // Under mutex_:
  std::condition_variable let_go_;  // forget(): nothing is pinned any more
  unsigned flying_ = 0;             // reads that are with the kernel
  bool stop_ = false;
  std::vector<std::span<std::byte>> forgotten_;

  // Of the driving thread.
  std::vector<Op> ops_;
  std::vector<uint32_t> free_;
  std::vector<ReadRequest> taken_;
  std::vector<uint32_t> whole_, checking_;  // read, and not yet checked
  std::vector<Late> late_;

  std::thread thread_;
};

}  // namespace

Expected<std::unique_ptr<ReadBackend>> make_uring_backend(PieceReader& reader, ReadWatch* watch,
                                                          unsigned depth, uint32_t capacity) {
  WholePieces* const pieces = reader.whole();
  if (pieces == nullptr) {
    return fail(Code::kUnsupported,
                "source files are rearranged while they are read, which takes threads");
  }
  depth = std::clamp(depth, 1u, 1024u);
  // Room for each read, its second try, and the wait for the eventfd.
  MILLRACE_ASSIGN(io::Uring ring, io::Uring::create(2 * depth + 2));
  EventFd wake;
  if (wake.get() < 0) return fail(Code::kUnsupported, "eventfd: no descriptor is left");
  return std::make_unique<UringBackend>(*pieces, watch, std::move(ring), std::move(wake), depth,
                                        std::max(1u, capacity));
}

}  // namespace millrace::stream
