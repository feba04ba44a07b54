// The read backend that works everywhere: a few threads, each with one blocking read in flight.
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/numeric.h"
#include "stream/read_queue.h"

namespace millrace::stream {
namespace {

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};

class PreadPool : public ReadBackend {
 public:
  PreadPool(PieceReader& reader, unsigned depth, uint32_t capacity)
      : reader_(reader), queue_(capacity) {
    threads_.reserve(depth);
    for (unsigned t = 0; t < depth; ++t) threads_.emplace_back([this] { work(); });
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
      queue_.push(request);
    }
    wake_.notify_one();
  }

  void promote(uint32_t piece) override {
    std::lock_guard lock(mutex_);
    queue_.promote(piece);
  }

  bool cancel(uint32_t piece) override {
    std::lock_guard lock(mutex_);
    return queue_.cancel(piece);
  }

  bool reap(ReadResult* result, bool wait) override {
    std::unique_lock lock(mutex_);
    if (wait) finished_.wait(lock, [&] { return queue_.finished(); });
    if (!queue_.finished()) return false;
    *result = queue_.reap();
    return true;
  }

  uint64_t bytes_read() const override { return bytes_.load(std::memory_order_relaxed); }
  uint64_t reads() const override { return reads_.load(std::memory_order_relaxed); }
  std::string describe() const override {
    return fmt::format("pread pool, {} reads in flight", threads_.size());
  }

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
        wake_.wait(lock, [&] { return stop_ || queue_.waiting(); });
        if (stop_) return;
        request = queue_.pop();
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
        queue_.finish(std::move(result));
      }
      finished_.notify_one();
    }
  }

  PieceReader& reader_;
  std::mutex mutex_;
  std::condition_variable wake_;      // workers: something to read, or stop
  std::condition_variable finished_;  // the consumer: something to reap
  ReadQueue queue_;
  bool stop_ = false;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> reads_{0};
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadBackend> make_pread_pool(PieceReader& reader, unsigned depth,
                                             uint32_t capacity) {
  return std::make_unique<PreadPool>(reader, std::max(1u, depth), std::max(1u, capacity));
}

}  // namespace millrace::stream
