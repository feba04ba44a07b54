// Reads before they are asked for, the clock of the disk, and the choice of a kind of prefetch.
#include "stream/prefetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "fakes.h"
#include "stream/store.h"

namespace millrace::stream {
namespace {

struct Rig {
  Rig(const Shape& shape, uint32_t top)
      : table(make_table(shape)), demand{top, false}, reader(table) {}
  void open(uint64_t budget, const std::string& prefetch, unsigned threads = 2) {
    auto plan = plan_residency(table, budget, demand);
    ASSERT_TRUE(plan) << plan.error().message;
    StoreOptions options;
    options.io_threads = threads;
    options.policy = PolicyKind::kLru;
    options.prefetch = prefetch;
    options.on_read = [this](const ReadRecord& record) {
      std::lock_guard lock(mutex);
      records.push_back(record);
    };
    auto made = PieceStore::create(table, std::move(*plan), reader, ledger, options);
    ASSERT_TRUE(made) << made.error().message;
    store = std::move(*made);
    ASSERT_TRUE(store->load_pinned({}));
  }
  uint64_t budget_with_experts(uint32_t slots, const Shape& shape) const {
    const auto whole = plan_residency(table, uint64_t{1} << 40, demand);
    const uint64_t experts = uint64_t{shape.layers} * shape.experts * shape.expert;
    return whole->full_budget - experts + slots * shape.expert;
  }
  void fire(uint32_t layer, const std::vector<uint32_t>& numbers, uint64_t work_us = 0) {
    std::vector<uint32_t> pieces;
    for (const uint32_t n : numbers) pieces.push_back(find_expert(table, layer, n));
    store->begin_fired(pieces);
    PieceStore::Fired fired;
    for (;;) {
      const auto more = store->next_fired(&fired);
      ASSERT_TRUE(more) << more.error().message;
      if (!*more) return;
      ASSERT_TRUE(holds_pattern(fired.piece, fired.data, table.pieces[fired.piece].bytes));
      if (work_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(work_us));
      store->release(fired.piece);
    }
  }
  // The disk works while the consumer does something else; it must look in now and then.
  void rest(const std::vector<uint32_t>& suggested) {
    for (int i = 0; i < 40; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      store->suggest(suggested);
    }
  }

  format::PieceTable table;
  Demand demand;
  FakeReader reader;
  Ledger ledger{uint64_t{1} << 30};
  std::mutex mutex;
  std::vector<ReadRecord> records;
  std::unique_ptr<PieceStore> store;
};

TEST(Prefetch, SuggestedExpertsAreReadWhileTheDiskRests) {
  const Shape shape{.layers = 2, .experts = 16, .embeddings = 1};
  Rig rig(shape, 4);
  rig.open(rig.budget_with_experts(12, shape), "router");
  rig.fire(0, {0, 1, 2, 3});
  const std::vector<uint32_t> guess = {find_expert(rig.table, 1, 4), find_expert(rig.table, 1, 5),
                                       find_expert(rig.table, 1, 6)};
  rig.rest(guess);
  EXPECT_EQ(rig.store->stats().prefetch.issued, 3u);
  const uint64_t misses = rig.store->stats().expert_misses;
  rig.fire(1, {4, 5, 7});
  const StoreStats stats = rig.store->stats();
  EXPECT_EQ(stats.expert_misses, misses + 1);  // 7 was not guessed
  EXPECT_EQ(stats.prefetch.used, 2u);
  EXPECT_EQ(rig.reader.reads(guess[0]), 1u);
}

TEST(Prefetch, WhatTheLayerFiredLastComesBackBeforeItIsAskedFor) {
  const Shape shape{.layers = 2, .experts = 16, .embeddings = 1};
  Rig rig(shape, 4);
  rig.open(rig.budget_with_experts(6, shape), "temporal");
  rig.fire(0, {0, 1, 2, 3});
  rig.fire(1, {0, 1, 2, 3});  // takes the place of what layer 0 had
  for (int round = 0; round < 20; ++round) {
    rig.fire(0, {0, 1, 2, 3}, 2000);
    rig.fire(1, {0, 1, 2, 3}, 2000);
  }
  const StoreStats stats = rig.store->stats();
  EXPECT_GT(stats.prefetch.issued, 0u);
  EXPECT_GT(stats.prefetch.used, 0u);
  EXPECT_LE(stats.prefetch.used + stats.prefetch.wasted, stats.prefetch.issued);
}

TEST(Prefetch, WrongGuessesAreCountedAndHarmless) {
  const Shape shape{.layers = 2, .experts = 16, .embeddings = 1};
  Rig rig(shape, 2);
  rig.open(rig.budget_with_experts(4, shape), "router");
  for (uint32_t round = 0; round < 10; ++round) {
    rig.fire(0, {round % 8, 8 + round % 8});
    rig.rest({find_expert(rig.table, 1, 15)});
    rig.fire(1, {0, 1});
    rig.fire(1, {2, 3});
  }
  const StoreStats stats = rig.store->stats();
  EXPECT_EQ(stats.prefetch.used, 0u);
  EXPECT_GT(stats.prefetch.wasted, 0u);
}

// A demand does not queue behind guesses: what has not begun gives way.
TEST(Prefetch, GivesWayToADemand) {
  const Shape shape{.layers = 2, .experts = 16, .embeddings = 1};
  Rig rig(shape, 2);
  rig.open(rig.budget_with_experts(8, shape), "router", 1);
  rig.reader.delay(find_expert(rig.table, 1, 0), 20000);
  rig.store->suggest(
      std::vector<uint32_t>{find_expert(rig.table, 1, 0), find_expert(rig.table, 1, 1)});
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the first one has begun
  rig.fire(0, {3, 4});
  const StoreStats stats = rig.store->stats();
  EXPECT_EQ(stats.prefetch.cancelled, 1u);
  EXPECT_EQ(rig.reader.reads(find_expert(rig.table, 1, 1)), 0u);
}

TEST(Prefetch, OffReadsNothingMore) {
  const Shape shape{.layers = 2, .experts = 16, .embeddings = 1};
  Rig rig(shape, 4);
  rig.open(rig.budget_with_experts(8, shape), "off");
  rig.fire(0, {0, 1, 2, 3});
  const uint64_t reads = rig.store->stats().reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(rig.store->stats().reads, reads);
  EXPECT_EQ(rig.store->stats().prefetch.issued, 0u);
}

TEST(Prefetch, UnknownKindsAreRefusedWithTheList) {
  const Shape shape{.layers = 1, .experts = 4, .embeddings = 1};
  const auto table = make_table(shape);
  const auto made = Prefetch::create(table, "psychic");
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("auto, off, temporal, router"), std::string::npos);
}

// The prompt of a wave: each expert that fires is read once, however few slots there are.
TEST(Waves, EachFiredExpertIsReadOnce) {
  const Shape shape{.layers = 3, .experts = 32, .embeddings = 1};
  Rig rig(shape, 3);
  rig.open(rig.budget_with_experts(4, shape), "off");
  std::vector<uint32_t> all(32);
  for (uint32_t e = 0; e < 32; ++e) all[e] = e;
  for (uint32_t layer = 0; layer < 3; ++layer) rig.fire(layer, all);
  for (uint32_t layer = 0; layer < 3; ++layer)
    for (const uint32_t e : all) EXPECT_EQ(rig.reader.reads(find_expert(rig.table, layer, e)), 1u);
  EXPECT_EQ(rig.store->stats().expert_misses, 3u * 32);
}

TEST(ReadClock, BusyTimeIsTheUnionOfTheReads) {
  const Shape shape{.layers = 2, .experts = 32, .embeddings = 1};
  Rig rig(shape, 4);
  rig.reader.most_delay_us = 400;
  rig.open(rig.budget_with_experts(16, shape), "off", 3);
  for (uint32_t i = 0; i < 20; ++i)
    rig.fire(i % 2, {i % 32, (i + 7) % 32, (i + 15) % 32, (i + 23) % 32});
  const StoreStats stats = rig.store->stats();
  std::lock_guard lock(rig.mutex);
  auto reads = rig.records;
  std::sort(reads.begin(), reads.end(),
            [](const ReadRecord& a, const ReadRecord& b) { return a.begin_ns < b.begin_ns; });
  uint64_t busy = 0, until = 0;
  for (const ReadRecord& r : reads) {
    if (r.end_ns > std::max(until, r.begin_ns)) busy += r.end_ns - std::max(until, r.begin_ns);
    until = std::max(until, r.end_ns);
  }
  EXPECT_EQ(stats.busy_ns, busy);
  EXPECT_EQ(stats.reads, reads.size());
}

// The clock itself, with reads that are told to it in a known order.
TEST(ReadClock, IdleIsCountedOnlyWhileSomethingIsWanted) {
  ReadClock clock(4);
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
  pause();
  EXPECT_EQ(clock.times().idle_ns, 0u);  // nothing is wanted
  clock.want(1);
  pause();
  clock.begin();
  const uint64_t idle = clock.times().idle_ns;
  EXPECT_GE(idle, 3'000'000u);
  pause();
  EXPECT_GT(clock.end(1).wanted_ns, 0u);
  clock.give_up(1);
  pause();
  clock.begin();
  clock.want(2);
  pause();
  EXPECT_EQ(clock.end(3).wanted_ns, 0u);  // read ahead; 2 still waits
  pause();
  clock.give_up(2);
  const auto times = clock.times();
  EXPECT_GE(times.busy_ns, 6'000'000u);
  EXPECT_GE(times.idle_ns, idle + 3'000'000u);
  pause();
  clock.want(0);
  EXPECT_EQ(clock.times().idle_ns, times.idle_ns);
}

// With room for all that fired, reads follow each other without a gap worth speaking of.
TEST(ReadClock, TheDiskDoesNotRestWhileMissesWait) {
  const Shape shape{.layers = 2, .experts = 32, .embeddings = 1};
  Rig rig(shape, 8);
  rig.open(rig.budget_with_experts(32, shape), "off");
  rig.reader.most_delay_us = 4000;
  for (uint32_t i = 0; i < 8; ++i) {
    std::vector<uint32_t> fired;
    for (uint32_t e = 0; e < 8; ++e) fired.push_back((i * 8 + e) % 32);
    rig.fire(i % 2, fired, 200);
  }
  const StoreStats stats = rig.store->stats();
  EXPECT_GE(stats.expert_misses, 32u);
  EXPECT_LT(stats.idle_ns, stats.busy_ns / 3);
}

// Steps whose time depends on the kind that runs them.
void run(PrefetchTuner& tuner, uint32_t steps, double off, double temporal, double router) {
  for (uint32_t i = 0; i < steps; ++i) {
    const double seconds = tuner.kind() == PrefetchKind::kOff        ? off
                           : tuner.kind() == PrefetchKind::kTemporal ? temporal
                                                                     : router;
    tuner.step(seconds * (1 + 0.001 * (i % 7)), true);
  }
}
constexpr uint32_t kTrial = PrefetchTuner::kWindow * PrefetchTuner::kRounds * kPrefetchKinds;

TEST(PrefetchTuner, KeepsWhatIsFasterAndOffUnlessItIsClearlySlower) {
  struct Case {
    double off, temporal, router;
    PrefetchKind best;
  };
  for (const Case& c :
       {Case{1, 1, 1, PrefetchKind::kOff}, Case{1, 0.9, 1, PrefetchKind::kTemporal},
        Case{1, 0.9, 0.8, PrefetchKind::kRouter}, Case{1, 0.99, 0.985, PrefetchKind::kOff},
        Case{1, 1.3, 1.2, PrefetchKind::kOff}}) {
    PrefetchTuner tuner;
    run(tuner, kTrial, c.off, c.temporal, c.router);
    ASSERT_TRUE(tuner.decided());
    EXPECT_EQ(tuner.kind(), c.best) << c.temporal << " " << c.router;
  }
}

TEST(PrefetchTuner, TriesAgainAfterAWhile) {
  PrefetchTuner tuner;
  run(tuner, kTrial, 1, 0.8, 1);
  EXPECT_EQ(tuner.kind(), PrefetchKind::kTemporal);
  run(tuner, PrefetchTuner::kKept, 1, 0.8, 1);
  EXPECT_FALSE(tuner.decided());
  run(tuner, kTrial, 1, 1.2, 1);
  EXPECT_TRUE(tuner.decided());
  EXPECT_EQ(tuner.kind(), PrefetchKind::kOff);
}

TEST(PrefetchTuner, TriesNothingWhileNothingIsMissed) {
  PrefetchTuner tuner;
  for (uint32_t i = 0; i < 10 * kTrial; ++i) {
    tuner.step(1, false);
    EXPECT_EQ(tuner.kind(), PrefetchKind::kOff);
  }
  EXPECT_FALSE(tuner.decided());
}

}  // namespace
}  // namespace millrace::stream
