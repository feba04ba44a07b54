// What the store counts: by its consumer, read by anyone.
#pragma once

#include <atomic>
#include <cstdint>

#include "stream/prefetch.h"

namespace millrace::stream {

struct StoreStats {
  uint64_t bytes_read = 0;   // from disk
  uint64_t reads = 0;        // pieces
  uint64_t expert_hits = 0;  // resident when fired
  uint64_t expert_misses = 0;
  uint64_t scan_hits = 0, scan_misses = 0;
  uint64_t stall_ns = 0;  // the consumer waited
  uint64_t busy_ns = 0;   // at least one read was in flight
  uint64_t idle_ns = 0;   // none was, although the consumer needed bytes that were not there
  PrefetchStats prefetch;
};

struct StoreCounters {
  using Count = std::atomic<uint64_t>;
  Count expert_hits{0}, expert_misses{0}, scan_hits{0}, scan_misses{0}, stall_ns{0};
  Count prefetched{0}, prefetch_used{0}, prefetch_wasted{0}, prefetch_cancelled{0};

  static void add(Count& counter, uint64_t n = 1) {
    counter.fetch_add(n, std::memory_order_relaxed);
  }
  static uint64_t get(const Count& counter) { return counter.load(std::memory_order_relaxed); }

  void publish(const PrefetchStats& s) {
    prefetched.store(s.issued, std::memory_order_relaxed);
    prefetch_used.store(s.used, std::memory_order_relaxed);
    prefetch_wasted.store(s.wasted, std::memory_order_relaxed);
    prefetch_cancelled.store(s.cancelled, std::memory_order_relaxed);
  }
  void write_to(StoreStats* s) const {
    s->expert_hits = get(expert_hits);
    s->expert_misses = get(expert_misses);
    s->scan_hits = get(scan_hits);
    s->scan_misses = get(scan_misses);
    s->stall_ns = get(stall_ns);
    s->prefetch.issued = get(prefetched);
    s->prefetch.used = get(prefetch_used);
    s->prefetch.wasted = get(prefetch_wasted);
    s->prefetch.cancelled = get(prefetch_cancelled);
  }
};

}  // namespace millrace::stream
