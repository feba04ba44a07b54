// The read backend that works everywhere: a few threads, each with one blocking read in flight.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/numeric.h"
#include "io/file.h"
#include "stream/read_queue.h"

namespace millrace::stream {
namespace {

class PreadPool : public QueuedBackend {
 public:
  PreadPool(PieceReader& reader, ReadWatch* watch, unsigned depth, uint32_t capacity)
      : QueuedBackend(capacity), reader_(reader), watch_(watch) {
    threads_.reserve(depth);
    try {
      for (unsigned t = 0; t < depth; ++t) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // The system gives no more of them: fewer reads at a time. With none there is no engine.
      if (threads_.empty()) throw;
    }
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
    const uint32_t steps = reader_.steps(request.piece);
    {
      std::lock_guard lock(mutex_);
      queue_.push(request);
    }
    if (steps == 1) {
      wake_.notify_one();
    } else {
      wake_.notify_all();
    }
  }

  void promote(uint32_t piece) override {
    std::lock_guard lock(mutex_);
    queue_.promote(piece);
    for (Job& job : jobs_) {
      if (job.active && job.request.piece == piece) job.request.urgency = Urgency::kDemand;
    }
  }

  std::string describe() const override {
    return fmt::format("pread pool, {} reads in flight", threads_.size());
  }

 private:
  // A piece of which at least one step has begun.
  struct Job {
    bool active = false;
    ReadRequest request;
    uint32_t steps = 0, begun = 0, fetched = 0, over = 0;
    uint64_t bytes = 0;
    Status status;
    // Nothing is begun any more once a step has failed.
    bool waiting() const { return active && begun < steps && status; }
  };

  void work() {
    const uint64_t scratch_bytes = round_up(reader_.scratch_bytes(), io::kAlign);
    Expected<io::AlignedBuffer> scratch = io::AlignedBuffer::allocate(scratch_bytes);
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      wake_.wait(lock, [&] { return stop_ || (job = next()) != nullptr; });
      if (stop_) return;
      const uint32_t step = job->begun++;
      const ReadRequest request = job->request;
      lock.unlock();
      bool told = false;
      const auto landed = [&] {
        if (!std::exchange(told, true)) fetched(*job);
      };
      Expected<uint64_t> bytes = uint64_t{0};
      if (scratch) {
        bytes = reader_.read_step(request.piece, step, request.slot, scratch->span(), landed);
      } else {
        bytes = tl::make_unexpected(scratch.error());
      }
      lock.lock();
      if (bytes) {
        job->bytes += *bytes;
      } else if (job->status) {
        job->status = tl::make_unexpected(std::move(bytes.error()));
      }
      ++job->over;
      end_if_over(*job, lock);
    }
  }

  // The piece to go on with: what is demanded first, and of it what was begun. Null: there is none.
  Job* next() {
    Job* ahead = nullptr;
    for (Job& job : jobs_) {
      if (!job.waiting()) continue;
      if (job.request.urgency == Urgency::kDemand) return &job;
      ahead = &job;
    }
    if (queue_.demanded() || (ahead == nullptr && queue_.waiting())) return begin(queue_.pop());
    return ahead;
  }

  Job* begin(const ReadRequest& request) {
    if (free_.empty()) free_.push_back(&jobs_.emplace_back());
    Job* job = free_.back();
    free_.pop_back();
    *job = {
        .active = true, .request = request, .steps = reader_.steps(request.piece), .status = {}};
    return job;
  }

  void fetched(Job& job) {
    std::lock_guard lock(mutex_);
    if (++job.fetched == job.steps && watch_) watch_->fetched(job.request.piece);
  }

  void end_if_over(Job& job, std::unique_lock<std::mutex>& lock) {
    if (job.over < job.begun || job.waiting()) return;
    ReadResult result{job.request.piece, std::move(job.status)};
    if (result.status) count_read(job.bytes);
    job.active = false;
    free_.push_back(&job);
    lock.unlock();
    finish(std::move(result));
    lock.lock();
  }

  PieceReader& reader_;
  ReadWatch* const watch_;

  // Under mutex_:
  std::condition_variable wake_;  // workers: something to read, or stop
  bool stop_ = false;
  std::deque<Job> jobs_;
  std::vector<Job*> free_;

  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadBackend> make_pread_pool(PieceReader& reader, ReadWatch* watch, unsigned depth,
                                             uint32_t capacity) {
  return std::make_unique<PreadPool>(reader, watch, std::max(1u, depth), std::max(1u, capacity));
}

}  // namespace millrace::stream
