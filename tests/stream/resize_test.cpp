// Budgets that change while the model runs: every byte handed out is right, memory goes back, and
// what is used most stays.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <random>

#include "io/uring.h"
#include "room.h"
#include "store_rig.h"
#include "stream/store.h"

namespace millrace::stream {
namespace {

constexpr uint64_t kAll = UINT64_MAX;
constexpr uint64_t kMiB = 1 << 20;

// The backend of the present test.
BackendKind tested = BackendKind::kPread;

struct Bench : StoreRig {
  Bench(const Shape& shape, Demand wanted, PolicyKind kind = kDefaultPolicy)
      : StoreRig(shape, wanted, tested == BackendKind::kUring), policy(kind) {}

  void open(uint64_t budget, ArenaOptions arena = {}) {
    StoreOptions options;
    options.io_threads = 2;
    options.arena = arena;
    options.policy = policy;
    options.backend = tested;
    ASSERT_NO_FATAL_FAILURE(open_with(budget, options));
    const bool uring = store->reading().starts_with("io_uring, ");
    ASSERT_EQ(uring, tested == BackendKind::kUring) << store->reading();
  }
  void resize(uint64_t budget, uint64_t most_moved = kAll) {
    const Status done = store->resize(plan(budget), most_moved);
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_EQ(ledger.held(Use::kWeights), store->plan().arena_bytes);
    ASSERT_LE(store->plan().arena_bytes, budget);
  }
  // The scan, and behind each router some experts of its layer.
  template <class Choose>
  void pass(Choose choose) {
    const std::vector<uint32_t> scan = store->plan().scan;
    for (const uint32_t p : scan) {
      use(p);
      if (table.pieces[p].kind == format::PieceKind::kRouter)
        fire(choose(static_cast<uint32_t>(table.pieces[p].layer)));
    }
  }

  PolicyKind policy;
};

class Resize : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    tested = GetParam();
    if (tested != BackendKind::kUring) return;
    if (const std::string why = io::why_no_io_uring(); !why.empty()) GTEST_SKIP() << why;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Resize,
                         testing::Values(BackendKind::kPread, BackendKind::kUring),
                         [](const auto& kind) {
                           return kind.param == BackendKind::kUring ? "uring" : "pread";
                         });

void stress(const Shape& shape, Demand demand, PolicyKind policy, uint32_t seed) {
  Bench bench(shape, demand, policy);
  bench.reader.most_delay_us = 30;
  std::mt19937 random(seed);
  const uint64_t least = bench.smallest(), most = bench.full();
  bench.open(least + random() % (most - least + 1));
  for (int round = 0; round < 60; ++round) {
    bench.pass([&](uint32_t layer) {
      std::vector<uint32_t> pieces;
      for (uint32_t i = 0; i < demand.experts_per_token + random() % 3; ++i) {
        const uint32_t p = find_expert(bench.table, layer, random() % shape.experts);
        if (std::find(pieces.begin(), pieces.end(), p) == pieces.end()) pieces.push_back(p);
      }
      std::sort(pieces.begin(), pieces.end());
      return pieces;
    });
    if (testing::Test::HasFatalFailure()) return;
    const uint64_t budgets[] = {least, most, least + random() % (most - least + 1)};
    const uint64_t moved[] = {0, 3 * kKiB4, kAll};
    bench.resize(budgets[random() % 3], moved[random() % 3]);
    if (random() % 4 == 0) bench.resize(budgets[2], kAll);  // twice between two passes
    if (testing::Test::HasFatalFailure()) return;
  }
  bench.store.reset();
  EXPECT_EQ(bench.ledger.free(), bench.ledger.ceiling());
}

TEST_P(Resize, DenseStaysRight) {
  stress({.layers = 12, .mixed = true}, {0, false}, kDefaultPolicy, 1);
  stress({.layers = 12, .heads = 0}, {0, true}, kDefaultPolicy, 2);
}

TEST_P(Resize, ExpertsStayRightUnderEveryPolicy) {
  uint32_t seed = 10;
  for (const PolicyName& policy : policy_names()) {
    stress({.layers = 5, .experts = 12}, {3, false}, policy.kind, ++seed);
    stress({.layers = 5, .experts = 9, .heads = 0, .mixed = true}, {2, true}, policy.kind, ++seed);
  }
}

// A smaller budget gives up what is used least, and the rest is not read again.
TEST_P(Resize, WhatIsUsedStays) {
  for (const PolicyKind policy : {PolicyKind::kLru, PolicyKind::kLfu, PolicyKind::kNextUse}) {
    Bench bench({.layers = 4, .experts = 16}, {2, false}, policy);
    bench.open(bench.full());
    // Every expert once, then always the same four of each layer, from all over the region.
    for (uint32_t e = 0; e < 16; e += 2)
      bench.pass([&](uint32_t layer) {
        return std::vector<uint32_t>{find_expert(bench.table, layer, e),
                                     find_expert(bench.table, layer, e + 1)};
      });
    const auto favourites = [&](uint32_t layer) {
      std::vector<uint32_t> pieces;
      for (const uint32_t e : {1u, 6u, 11u, 15u})
        pieces.push_back(find_expert(bench.table, layer, e));
      return pieces;
    };
    for (int i = 0; i < 20; ++i) bench.pass(favourites);
    const uint64_t reads = bench.store->stats().reads;
    bench.resize(bench.full() - 40 * 3 * kKiB4);  // room for 24 of 64 experts
    for (int i = 0; i < 3; ++i) bench.pass(favourites);
    EXPECT_EQ(bench.store->stats().reads, reads) << name(policy);
    // And more room costs nothing of what is there (while others come into it).
    const uint64_t misses = bench.store->stats().expert_misses;
    bench.resize(bench.full());
    bench.pass(favourites);
    EXPECT_EQ(bench.store->stats().expert_misses, misses) << name(policy);
  }
}

// More room pins pieces that were streamed: after one more pass nothing is read.
TEST_P(Resize, GrowingPins) {
  Bench bench({.layers = 10}, {0, false});
  bench.open(bench.smallest());
  const auto none = [](uint32_t) { return std::vector<uint32_t>{}; };
  for (int i = 0; i < 2; ++i) bench.pass(none);
  bench.resize(bench.full());
  bench.pass(none);
  const uint64_t reads = bench.store->stats().reads;
  for (int i = 0; i < 3; ++i) bench.pass(none);
  EXPECT_EQ(bench.store->stats().reads, reads);
  bench.resize(bench.smallest());
  bench.pass(none);
  EXPECT_GT(bench.store->stats().reads, reads);
}

TEST_P(Resize, ALedgerThatHasNoMoreRefuses) {
  Bench bench({.layers = 6}, {0, false});
  ASSERT_TRUE(bench.ledger.set_ceiling(bench.full() - kKiB4));
  bench.open(bench.smallest());
  const auto none = [](uint32_t) { return std::vector<uint32_t>{}; };
  bench.pass(none);
  const Status refused = bench.store->resize(bench.plan(bench.full()), kAll);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoMemory);
  EXPECT_EQ(bench.store->plan().arena_bytes, bench.smallest());
  bench.pass(none);  // as before
}

// Some classes grow while others shrink: no more memory is taken than the larger arena has, and what
// fails leaves an arena that is consistent.
TEST_P(Resize, WhatShrinksMakesRoomForWhatGrows) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory is part of what is limited";
#endif
  if (!Room::holds()) GTEST_SKIP() << "no limit on writable memory here";
  Bench bench({.layers = 3, .experts = 6, .ffn = 8 * kMiB, .expert = 3 * kMiB}, {1, false});
  // One more router or fewer: room for one of them is room for two experts, too.
  const auto slots = [](const ResidencyPlan& plan, format::PieceKind kind) {
    uint64_t count = 0;
    for (const SlotClass& c : plan.classes)
      if (c.kind == kind) count += c.pinned + c.shared;
    return count;
  };
  ResidencyPlan few, many;
  for (uint64_t budget = bench.smallest(); budget < bench.full(); budget += kMiB) {
    few = bench.plan(budget), many = bench.plan(budget + 2 * kMiB);
    if (slots(few, format::PieceKind::kRouter) < slots(many, format::PieceKind::kRouter) &&
        slots(few, format::PieceKind::kExpert) > slots(many, format::PieceKind::kExpert))
      break;
  }
  ASSERT_LT(slots(many, format::PieceKind::kExpert), slots(few, format::PieceKind::kExpert));
  const auto some = [&](uint32_t layer) {
    return std::vector<uint32_t>{find_expert(bench.table, layer, 0),
                                 find_expert(bench.table, layer, 5)};
  };
  bench.open(few.arena_bytes);
  ASSERT_EQ(bench.store->plan().arena_bytes, few.arena_bytes);
  for (int i = 0; i < 2; ++i) bench.pass(some);
  const uint64_t larger = many.arena_bytes - few.arena_bytes;
  ASSERT_LT(larger + kMiB, 8 * kMiB) << "so growing first would take more";
  {
    const Room room(larger + kMiB);
    const Status done = bench.store->resize(many, kAll);
    ASSERT_TRUE(done) << done.error().message;
  }
  bench.pass(some);
  {
    const Room room(larger + kMiB);
    const Status done = bench.store->resize(few, kAll);
    ASSERT_TRUE(done) << done.error().message;
  }
  bench.pass(some);

  // No room at all for another router: what was given up for it is gone, and the rest runs.
  const uint64_t shrunk =
      3 * kMiB * (slots(few, format::PieceKind::kExpert) - slots(many, format::PieceKind::kExpert));
  {
    const Room room(0);
    const Status refused = bench.store->resize(many, kAll);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kNoMemory);
  }
  EXPECT_EQ(bench.store->plan().arena_bytes, few.arena_bytes - shrunk);
  EXPECT_EQ(bench.ledger.held(Use::kWeights), few.arena_bytes - shrunk);
  bench.pass(some);
  bench.resize(few.arena_bytes);  // and back
  bench.pass(some);
  bench.store.reset();
  EXPECT_EQ(bench.ledger.free(), bench.ledger.ceiling());
}

uint64_t resident_bytes(const std::byte* begin, uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / 4096);
  EXPECT_EQ(mincore(const_cast<std::byte*>(begin), bytes, pages.data()), 0);
  uint64_t resident = 0;
  for (const unsigned char page : pages) resident += (page & 1) * 4096u;
  return resident;
}

TEST(Arena, GivesMemoryBackAndNeverTakesMoreThanCommitted) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory is part of what is measured";
#endif
  for (const HugePages mode : {HugePages::kAuto, HugePages::kOff, HugePages::kOn}) {
    for (const bool lock : {false, true}) {
      const uint64_t regions[] = {20 * kMiB, 12 * kKiB4, 20 * kMiB};
      auto arena = Arena::reserve(regions, {mode, lock});
      ASSERT_TRUE(arena) << arena.error().message;
      if (arena->rounding() != 0) continue;  // explicit huge pages are whole
      for (size_t c = 0; c < 3; ++c) EXPECT_EQ(resident_bytes(arena->region(c), regions[c]), 0u);
      const uint64_t sizes[] = {5 * kMiB + 3 * kKiB4, 15 * kMiB + kKiB4, 3 * kMiB,        0,
                                7 * kMiB + 9 * kKiB4, 20 * kMiB,         2 * kMiB + kKiB4};
      uint64_t old = 0;
      for (const uint64_t bytes : sizes) {
        if (Status grown = arena->commit(2, bytes); !grown) {
          ASSERT_TRUE(lock) << grown.error().message;
          EXPECT_NE(grown.error().message.find("ulimit -l"), std::string::npos);
          break;  // not allowed to lock memory here
        }
        std::byte* const at = arena->region(2);
        for (uint64_t i = 0; i < std::min(old, bytes); i += 4096)
          ASSERT_EQ(at[i], static_cast<std::byte>(i >> 12)) << i;
        for (uint64_t i = 0; i < bytes; i += 4096) at[i] = static_cast<std::byte>(i >> 12);
        EXPECT_EQ(resident_bytes(at, 20 * kMiB), bytes) << "huge pages " << int(mode);
        EXPECT_EQ(resident_bytes(arena->region(0), 20 * kMiB), 0u);
        EXPECT_EQ(arena->committed(), bytes);
        old = bytes;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::stream
