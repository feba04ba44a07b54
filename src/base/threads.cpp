#include "base/threads.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace {
namespace {

// About 20-40 microseconds: longer than the serial stretches between the products of a decode step,
// short enough that a busy machine gets its core back.
constexpr int kSpins = 1000;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `word` differs from `old`, spinning first; returns the new value.
uint32_t await_change(std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != old) return now;
    relax();
  }
  for (;;) {
    word.wait(old, std::memory_order_acquire);
    const uint32_t now = word.load(std::memory_order_acquire);
    if (now != old) return now;
  }
}

}  // namespace

struct Threads::Impl {
  struct Job {
    Body body = nullptr;
    void* context = nullptr;
    uint64_t count = 0;
    uint32_t threads = 1;
  };
  // Each worker has its own word, so that one without work stays asleep and none can miss a call.
  struct alignas(64) Worker {
    std::atomic<uint32_t> calls{0};
    std::thread thread;
  };

  explicit Impl(unsigned count) : workers(count - 1) {
    for (unsigned i = 0; i < workers.size(); ++i) {
      workers[i].thread = std::thread([this, i] { work(i); });
    }
  }

  ~Impl() {
    stop = true;  // published by the increments below
    for (Worker& worker : workers) {
      worker.calls.fetch_add(1, std::memory_order_release);
      worker.calls.notify_one();
    }
    for (Worker& worker : workers) worker.thread.join();
  }

  void run_part(const Job& j, uint32_t thread) {
    const auto cut = [&](uint64_t t) {
      return j.count / j.threads * t + std::min<uint64_t>(j.count % j.threads, t);
    };
    const uint64_t begin = cut(thread);
    const uint64_t end = cut(thread + 1);
    if (begin < end) j.body(j.context, begin, end, thread);
  }

  void work(unsigned index) {
    Worker& self = workers[index];
    uint32_t seen = 0;
    for (;;) {
      seen = await_change(self.calls, seen);
      if (stop) return;
      run_part(job, index + 1);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }

  std::vector<Worker> workers;
  alignas(64) std::atomic<uint32_t> pending{0};  // workers that have not finished the current call
  Job job;                                       // published by Worker::calls
  bool stop = false;
  std::atomic<bool> running{false};  // asserts that calls do not nest or overlap
};

Threads::Threads(unsigned count) : impl_(std::make_unique<Impl>(std::max(count, 1u))) {}
Threads::~Threads() = default;

unsigned Threads::count() const { return static_cast<unsigned>(impl_->workers.size()) + 1; }

void Threads::run(uint64_t count, uint64_t grain, Body body, void* context) {
  if (count == 0) return;
  Impl& impl = *impl_;
  const uint64_t worth = std::max<uint64_t>(count / std::max<uint64_t>(grain, 1), 1);
  const auto threads = static_cast<uint32_t>(std::min<uint64_t>(this->count(), worth));
  if (threads == 1) {
    body(context, 0, count, 0);
    return;
  }
  [[maybe_unused]] const bool nested = impl.running.exchange(true, std::memory_order_relaxed);
  assert(!nested && "Threads::run does not nest");

  impl.job = {body, context, count, threads};
  impl.pending.store(threads - 1, std::memory_order_relaxed);
  for (uint32_t i = 0; i + 1 < threads; ++i) {
    impl.workers[i].calls.fetch_add(1, std::memory_order_release);
    impl.workers[i].calls.notify_one();
  }
  impl.run_part(impl.job, 0);
  for (uint32_t left = impl.pending.load(std::memory_order_acquire); left != 0;) {
    left = await_change(impl.pending, left);
  }
  impl.running.store(false, std::memory_order_relaxed);
}

}  // namespace millrace
