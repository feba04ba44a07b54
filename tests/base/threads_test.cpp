// The thread pool: every index once, the same cut every time, no missed wake-up (run it under
// TSan).
#include "base/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "base/cpu.h"

namespace millrace {
namespace {

using Ranges = std::vector<std::tuple<uint64_t, uint64_t, unsigned>>;

Ranges ranges_of(Threads& threads, uint64_t count, uint64_t grain) {
  std::mutex mutex;
  Ranges ranges;
  threads.parallel(count, grain, [&](uint64_t begin, uint64_t end, unsigned thread) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end, thread);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(Threads, CoversEveryIndexOnceInContiguousRanges) {
  for (unsigned n : {1u, 2u, 3u, 8u}) {
    Threads threads(n);
    EXPECT_EQ(threads.count(), n);
    for (uint64_t count : {0ull, 1ull, 2ull, 7ull, 8ull, 9ull, 1000ull}) {
      for (uint64_t grain : {0ull, 1ull, 4ull, 5000ull}) {
        uint64_t next = 0;
        for (const auto& [begin, end, thread] : ranges_of(threads, count, grain)) {
          EXPECT_EQ(begin, next);
          EXPECT_LT(begin, end);
          EXPECT_LT(thread, n);
          next = end;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

TEST(Threads, CutsTheSameWayEveryTime) {
  Threads threads(3);
  const auto cuts = [&] {
    Ranges ranges = ranges_of(threads, 100, 1);
    for (auto& range : ranges) std::get<2>(range) = 0;  // who takes a piece is chance
    return ranges;
  };
  const Ranges first = cuts();
  EXPECT_EQ(first.size(), 12u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cuts(), first);
}

TEST(Threads, GrainLimitsThePieces) {
  Threads threads(4);
  EXPECT_EQ(ranges_of(threads, 10, 6).size(), 1u);
  EXPECT_EQ(ranges_of(threads, 12, 6).size(), 2u);
}

// The others do the share of a thread that is held up.
TEST(Threads, ALateThreadHoldsNobodyUp) {
  Threads threads(2);
  std::atomic<unsigned> held{99};
  std::atomic<uint64_t> by_others{0};
  threads.parallel(8, 1, [&](uint64_t begin, uint64_t end, unsigned thread) {
    if (begin == 0) {
      held = thread;
      while (by_others < 7) std::this_thread::yield();
    } else {
      by_others += end - begin;
    }
  });
  EXPECT_EQ(by_others.load(), 7u);
}

TEST(Threads, ManyShortCallsWithAndWithoutSleep) {
  Threads threads(4);
  std::vector<uint32_t> counts(64,
                               0);  // unsynchronised on purpose: each index belongs to one thread
  uint32_t calls = 0;
  for (int i = 0; i < 3000; ++i) {
    const uint64_t count = 1 + static_cast<uint64_t>(i) % counts.size();
    threads.parallel(count, 1, [&](uint64_t begin, uint64_t end, unsigned) {
      for (uint64_t j = begin; j < end; ++j) ++counts[j];
    });
    ++calls;
    if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(counts[0], calls);
}

TEST(Threads, MoreThreadsThanProcessorsStillFinish) {
  Threads threads(16);
  std::atomic<uint64_t> total{0};
  for (int i = 0; i < 200; ++i) {
    threads.parallel(160, 1, [&](uint64_t begin, uint64_t end, unsigned) { total += end - begin; });
  }
  EXPECT_EQ(total.load(), 200u * 160u);
}

TEST(Cpu, DetectsAtLeastOneProcessor) {
  const Cpu cpu = Cpu::detect();
  EXPECT_GE(cpu.logical, 1u);
  EXPECT_FALSE(Cpu::scalar().avx2);
  EXPECT_TRUE(cpu.avx2 || !cpu.avx512);
}

TEST(Cpu, LimitedToASet) {
  Cpu cpu;
  cpu.avx2 = cpu.avx512 = cpu.avx512_vnni = true;
  EXPECT_TRUE(cpu.has(Isa::kScalar));
  EXPECT_TRUE(cpu.has(Isa::kAvx512Vnni));
  EXPECT_FALSE(cpu.has(Isa::kNeon));
  auto limited = cpu.limited_to("avx512");
  ASSERT_TRUE(limited);
  EXPECT_EQ(limited->sets(), (std::vector<Isa>{Isa::kScalar, Isa::kAvx2, Isa::kAvx512}));
  EXPECT_EQ(cpu.limited_to("scalar")->sets(), std::vector<Isa>{Isa::kScalar});
  auto lacking = cpu.limited_to("neon_i8mm");
  ASSERT_FALSE(lacking);
  EXPECT_EQ(lacking.error().message,
            "this processor does not have neon_i8mm; it runs scalar, avx2, avx512, avx512_vnni");
  auto unknown = cpu.limited_to("avx1024");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("'avx1024'"), std::string::npos);
}

}  // namespace
}  // namespace millrace
