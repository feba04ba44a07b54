// The read backend that works everywhere: a few threads, each with one blocking read in flight.
#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/numeric.h"
#include "stream/backend.h"

namespace millrace::stream {
namespace {

// First in, first out, in memory reserved once.
template <class T>
class Ring {
 public:
  explicit Ring(uint32_t capacity) : items_(capacity) {}
  bool empty() const { return count_ == 0; }
  void push(T item) {
    assert(count_ < items_.size());
    at(count_++) = std::move(item);
  }
  T pop() {
    T item = std::move(at(0));
    head_ = (head_ + 1) % items_.size();
    --count_;
    return item;
  }
  // Takes the first item that matches out of the middle; the order of the others stays.
  template <class Match>
  bool take(Match match, T* out) {
    for (size_t i = 0; i < count_; ++i) {
      if (!match(at(i))) continue;
      *out = std::move(at(i));
      for (; i + 1 < count_; ++i) at(i) = std::move(at(i + 1));
      --count_;
      return true;
    }
    return false;
  }

 private:
  T& at(size_t i) { return items_[(head_ + i) % items_.size()]; }
  std::vector<T> items_;
  size_t head_ = 0;
  size_t count_ = 0;
};

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};

class PreadPool : public ReadBackend {
 public:
  PreadPool(PieceReader& reader, unsigned threads, uint32_t capacity)
      : reader_(reader), demand_(capacity), ahead_(capacity), done_(capacity) {
    threads_.reserve(threads);
    for (unsigned t = 0; t < threads; ++t) threads_.emplace_back([this] { work(); });
  }

  ~PreadPool() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(const ReadRequest& request) override {
    {
      std::lock_guard lock(mutex_);
      (request.urgency == Urgency::kDemand ? demand_ : ahead_).push(request);
    }
    wake_.notify_one();
  }

  void promote(uint32_t piece) override {
    std::lock_guard lock(mutex_);
    ReadRequest request;
    if (!ahead_.take([&](const ReadRequest& r) { return r.piece == piece; }, &request)) return;
    request.urgency = Urgency::kDemand;
    demand_.push(request);
  }

  bool cancel(uint32_t piece) override {
    std::lock_guard lock(mutex_);
    ReadRequest request;
    const auto match = [&](const ReadRequest& r) { return r.piece == piece; };
    return ahead_.take(match, &request) || demand_.take(match, &request);
  }

  bool reap(ReadResult* result, bool wait) override {
    std::unique_lock lock(mutex_);
    if (wait) finished_.wait(lock, [&] { return !done_.empty(); });
    if (done_.empty()) return false;
    *result = done_.pop();
    return true;
  }

  uint64_t bytes_read() const override { return bytes_.load(std::memory_order_relaxed); }
  uint64_t reads() const override { return reads_.load(std::memory_order_relaxed); }

 private:
  void work() {
    const uint64_t scratch_bytes = round_up(reader_.scratch_bytes(), 4096);
    std::unique_ptr<std::byte, FreeDeleter> scratch;
    if (scratch_bytes != 0) {
      scratch.reset(static_cast<std::byte*>(std::aligned_alloc(4096, scratch_bytes)));
    }
    for (;;) {
      ReadRequest request;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !demand_.empty() || !ahead_.empty(); });
        if (stop_) return;
        request = demand_.empty() ? ahead_.pop() : demand_.pop();
      }
      ReadResult result{request.piece, {}};
      if (scratch_bytes != 0 && !scratch) {
        result.status =
            fail(Code::kNoMemory, "no memory for a read buffer of {} bytes", scratch_bytes);
      } else if (auto bytes =
                     reader_.read(request.piece, request.slot, {scratch.get(), scratch_bytes})) {
        bytes_.fetch_add(*bytes, std::memory_order_relaxed);
        reads_.fetch_add(1, std::memory_order_relaxed);
      } else {
        result.status = tl::make_unexpected(std::move(bytes.error()));
      }
      {
        std::lock_guard lock(mutex_);
        done_.push(std::move(result));
      }
      finished_.notify_one();
    }
  }

  PieceReader& reader_;
  std::mutex mutex_;
  std::condition_variable wake_;      // workers: something to read, or stop
  std::condition_variable finished_;  // the consumer: something to reap
  Ring<ReadRequest> demand_;
  Ring<ReadRequest> ahead_;
  Ring<ReadResult> done_;
  bool stop_ = false;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> reads_{0};
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadBackend> make_pread_pool(PieceReader& reader, unsigned threads,
                                             uint32_t capacity) {
  return std::make_unique<PreadPool>(reader, std::max(1u, threads), std::max(1u, capacity));
}

}  // namespace millrace::stream
