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

class PreadPool : public QueuedBackend {
 public:
  PreadPool(PieceReader& reader, unsigned depth, uint32_t capacity)
      : QueuedBackend(capacity), reader_(reader) {
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
        count_read(*bytes);
      } else {
        result.status = tl::make_unexpected(std::move(bytes.error()));
      }
      finish(std::move(result));
    }
  }

  PieceReader& reader_;
  std::condition_variable wake_;  // workers: something to read, or stop
  bool stop_ = false;             // under mutex_
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadBackend> make_pread_pool(PieceReader& reader, unsigned depth,
                                             uint32_t capacity) {
  return std::make_unique<PreadPool>(reader, std::max(1u, depth), std::max(1u, capacity));
}

}  // namespace millrace::stream
