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

// About 100 microseconds: longer than the serial stretches between the products of a decode step,
// short enough that a busy machine gets its core back.
constexpr int kSpins = 3000;
// Pieces for each thread: enough that a late thread's share is taken by others, few enough that
// what a kernel prepares for each piece stays small.
constexpr uint64_t kPiecesPerThread = 4;

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
  // Each worker has its own word, so that one without work stays asleep and none can miss a call.
  struct alignas(64) Worker {
    std::atomic<uint32_t> calls{0};
    std::thread thread;
  };

  explicit Impl(unsigned threads) : workers(threads - 1) {
    for (unsigned i = 0; i < workers.size(); ++i) {
      workers[i].thread = std::thread([this, i] { work(i); });
    }
  }

  ~Impl() {
    stop.store(true, std::memory_order_relaxed);  // published by the increments below
    for (Worker& worker : workers) {
      worker.calls.fetch_add(1, std::memory_order_release);
      worker.calls.notify_one();
    }
    for (Worker& worker : workers) worker.thread.join();
  }

  // Takes pieces of call number `call` until none is left. A worker can come so late that it reads
  // fields of the next job here; but `next` was closed before those were written, so it then takes
  // nothing (acquire here and release in run() make that order visible).
  void take_pieces(uint32_t call, unsigned thread) {
    const Body b = body.load(std::memory_order_acquire);
    void* const c = context.load(std::memory_order_acquire);
    const uint64_t n = count.load(std::memory_order_acquire);
    const uint64_t k = pieces.load(std::memory_order_acquire);
    const auto cut = [n, k](uint64_t piece) { return n / k * piece + std::min(n % k, piece); };
    uint64_t at = next.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(at >> 32) == call) {
      const uint64_t piece = at & 0xffffffffu;
      if (piece >= k || piece == kClosed) return;
      if (!next.compare_exchange_weak(at, at + 1, std::memory_order_acq_rel)) continue;
      b(c, cut(piece), cut(piece + 1), thread);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) left.notify_one();
      at = next.load(std::memory_order_acquire);
    }
  }

  void work(unsigned index) {
    Worker& self = workers[index];
    uint32_t seen = 0;
    for (;;) {
      seen = await_change(self.calls, seen);
      if (stop.load(std::memory_order_relaxed)) return;
      take_pieces(static_cast<uint32_t>(next.load(std::memory_order_acquire) >> 32), index + 1);
    }
  }

  std::vector<Worker> workers;
  static constexpr uint32_t kClosed = UINT32_MAX;
  alignas(64) std::atomic<uint64_t> next{kClosed};  // call number << 32 | next piece
  alignas(64) std::atomic<uint32_t> left{0};        // pieces that are not done
  std::atomic<Body> body{nullptr};                  // the job; published by `next`
  std::atomic<void*> context{nullptr};
  std::atomic<uint64_t> count{0}, pieces{1};
  std::atomic<bool> stop{false};
  std::atomic<bool> running{false};  // asserts that calls do not nest or overlap
};

Threads::Threads(unsigned count) : impl_(std::make_unique<Impl>(std::max(count, 1u))) {}
Threads::~Threads() = default;

unsigned Threads::count() const { return static_cast<unsigned>(impl_->workers.size()) + 1; }

void Threads::run(uint64_t count, uint64_t grain, Body body, void* context) {
  if (count == 0) return;
  Impl& impl = *impl_;
  const uint64_t worth = std::max<uint64_t>(count / std::max<uint64_t>(grain, 1), 1);
  const uint64_t threads = std::min<uint64_t>(this->count(), worth);
  if (threads == 1) {
    body(context, 0, count, 0);
    return;
  }
  [[maybe_unused]] const bool nested = impl.running.exchange(true, std::memory_order_relaxed);
  assert(!nested && "Threads::run does not nest");

  const uint64_t pieces = std::min(worth, threads * kPiecesPerThread);
  const auto call = static_cast<uint32_t>(impl.next.load(std::memory_order_relaxed) >> 32) + 2;
  impl.next.store((uint64_t{call} - 1) << 32 | Impl::kClosed, std::memory_order_release);
  impl.body.store(body, std::memory_order_release);
  impl.context.store(context, std::memory_order_release);
  impl.count.store(count, std::memory_order_release);
  impl.pieces.store(pieces, std::memory_order_release);
  impl.left.store(static_cast<uint32_t>(pieces), std::memory_order_relaxed);
  impl.next.store(uint64_t{call} << 32, std::memory_order_release);
  for (uint64_t i = 0; i + 1 < threads; ++i) {
    impl.workers[i].calls.fetch_add(1, std::memory_order_release);
    impl.workers[i].calls.notify_one();
  }
  impl.take_pieces(call, 0);
  for (uint32_t left = impl.left.load(std::memory_order_acquire); left != 0;) {
    left = await_change(impl.left, left);
  }
  impl.running.store(false, std::memory_order_relaxed);
}

}  // namespace millrace
