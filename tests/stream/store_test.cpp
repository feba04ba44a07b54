#include "stream/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "io/uring.h"
#include "room.h"
#include "store_rig.h"
#include "stream/backend.h"

namespace millrace::stream {
namespace {

using format::PieceKind;

// The backend of the present test: every test of a store is run with each.
BackendKind tested = BackendKind::kPread;

std::string backend_name(BackendKind kind) {
  return kind == BackendKind::kUring ? "uring" : "pread";
}

struct Rig : StoreRig {
  Rig(const Shape& shape, Demand wanted, unsigned io_threads = 2)
      : StoreRig(shape, wanted, tested == BackendKind::kUring), threads(io_threads) {}

  void open(uint64_t budget, PolicyKind policy = kDefaultPolicy) {
    StoreOptions options;
    options.io_threads = threads;
    options.policy = policy;
    options.backend = tested;
    ASSERT_NO_FATAL_FAILURE(open_with(budget, options));
    const bool uring = store->reading().find("io_uring, ") == 0;
    ASSERT_EQ(uring, tested == BackendKind::kUring) << store->reading();
  }
  void pass() {
    for (uint32_t p : store->plan().scan) use(p);
  }
  std::vector<uint32_t> experts(uint32_t layer, const std::vector<uint32_t>& numbers) const {
    std::vector<uint32_t> pieces;
    for (uint32_t n : numbers) pieces.push_back(find_expert(table, layer, n));
    return pieces;
  }

  unsigned threads;
};

class Store : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    tested = GetParam();
    if (tested != BackendKind::kUring) return;
    if (const std::string why = io::why_no_io_uring(); !why.empty()) GTEST_SKIP() << why;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Store, testing::Values(BackendKind::kPread, BackendKind::kUring),
                         [](const auto& kind) { return backend_name(kind.param); });

TEST_P(Store, LedgerHoldsArenaAndScratch) {
  Rig rig({}, {0, false}, 3);
  rig.reader.scratch = 5000;
  rig.open(rig.full());
  EXPECT_EQ(rig.ledger.held(Use::kWeights), rig.full());
  EXPECT_EQ(rig.ledger.held(Use::kIo), 3u * 8192);
  rig.pass();
  rig.store.reset();
  EXPECT_EQ(rig.ledger.free(), rig.ledger.ceiling());

  Ledger small(rig.full());
  auto plan = plan_residency(rig.table, rig.full(), rig.demand);
  EXPECT_FALSE(PieceStore::create(rig.table, *plan, rig.reader, small, {}));
  EXPECT_EQ(small.free(), small.ceiling());
}

TEST_P(Store, EverythingResidentIsReadOnce) {
  Rig rig({.layers = 6}, {0, true});
  rig.open(rig.full());
  uint64_t last = 0, total = 0;
  ASSERT_TRUE(rig.store->load_pinned([&](uint64_t done, uint64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  }));
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, rig.full());
  for (int i = 0; i < 3; ++i) rig.pass();
  const StoreStats stats = rig.store->stats();
  EXPECT_EQ(stats.bytes_read, rig.full());
  EXPECT_EQ(stats.reads, rig.table.pieces.size());
  EXPECT_EQ(stats.scan_misses, 0u);
  EXPECT_EQ(stats.scan_hits, 3 * rig.store->plan().scan.size());
}

TEST_P(Store, PinnedPiecesAreReadOnFirstUse) {
  Rig rig({.layers = 6}, {0, false});
  rig.open(rig.full());
  for (int i = 0; i < 2; ++i) rig.pass();
  for (uint32_t p : rig.store->plan().scan) EXPECT_EQ(rig.reader.reads(p), 1u);
}

// With k pieces resident, a pass reads the other n - k exactly once.
TEST_P(Store, CyclicScanReadsWhatIsMissingOncePerPass) {
  Rig rig({.layers = 12, .embeddings = 1, .heads = 4}, {0, false});
  for (uint64_t budget = rig.smallest(); budget <= rig.full(); budget += rig.full() / 17) {
    rig.open(budget);
    ASSERT_TRUE(rig.store->load_pinned({}));
    const ResidencyPlan plan = rig.store->plan();
    constexpr uint32_t kPasses = 5;
    std::vector<uint32_t> before;
    for (uint32_t p = 0; p < rig.table.pieces.size(); ++p) before.push_back(rig.reader.reads(p));
    for (uint32_t i = 0; i < kPasses; ++i) rig.pass();
    rig.store.reset();  // what is in flight ends here
    for (uint32_t p : plan.scan) {
      const uint32_t reads = rig.reader.reads(p) - before[p];
      if (plan.pinned[p]) {
        EXPECT_EQ(reads, 0u) << p;
      } else {
        // One more may have been read ahead for the pass that did not come.
        EXPECT_LE(reads, kPasses + 1) << p;
        EXPECT_GE(reads, kPasses) << p;
      }
    }
  }
}

TEST_P(Store, ScanCountsAreExact) {
  // One class streams: 20 equal pieces, slots for 8 of them.
  Rig rig({.layers = 20, .embeddings = 1, .heads = 1}, {0, false});
  const uint64_t budget = rig.full() - 12 * 5 * kKiB4;
  rig.open(budget);
  ASSERT_TRUE(rig.store->load_pinned({}));
  const uint64_t pinned_reads = rig.store->stats().reads;
  uint32_t missing = 0;
  for (uint32_t p : rig.store->plan().scan) missing += !rig.store->plan().pinned[p];
  ASSERT_EQ(missing, 14u);  // 12 and two slots to read ahead
  for (int pass = 1; pass <= 6; ++pass) {
    rig.pass();
    const uint64_t reads =
        rig.store->stats().reads - pinned_reads - 1;  // the embedding is pinned, too
    EXPECT_LE(reads + 1, missing * static_cast<uint32_t>(pass) + 2);
    EXPECT_GE(reads + 1, missing * static_cast<uint32_t>(pass));
  }
}

TEST_P(Store, ReadsAheadWhileTheConsumerWorks) {
  Rig rig({.layers = 12, .embeddings = 1, .heads = 1}, {0, false}, 2);
  rig.open(rig.full() - 6 * 5 * kKiB4);
  ASSERT_TRUE(rig.store->load_pinned({}));
  rig.reader.most_delay_us = 500;
  rig.pass();
  const uint64_t misses = rig.store->stats().scan_misses;
  for (uint32_t p : rig.store->plan().scan) {
    rig.use(p);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than a read
  }
  EXPECT_LE(rig.store->stats().scan_misses, misses + 1);
}

TEST_P(Store, CutShortScansNeitherHangNorThrash) {
  Rig rig({.layers = 10, .embeddings = 1, .heads = 6}, {0, false});
  rig.open(rig.smallest() + 60 * kKiB4);
  ASSERT_TRUE(rig.store->load_pinned({}));
  const auto scan = rig.store->plan().scan;
  const size_t head = scan.size() - 6;
  const uint64_t before = rig.store->stats().reads;
  uint32_t missing = 0;
  for (size_t i = 0; i < head; ++i) missing += !rig.store->plan().pinned[scan[i]];
  constexpr uint32_t kSteps = 20;
  for (uint32_t step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < head; ++i) rig.use(scan[i]);  // no head in this step
  }
  EXPECT_LE(rig.store->stats().reads - before, kSteps * missing + 6);
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) rig.use(scan[random() % scan.size()]);
  rig.pass();
}

TEST_P(Store, TiedEmbeddingIsLookedUpAndScanned) {
  Rig rig({.layers = 6, .embeddings = 8, .heads = 0}, {0, true});
  rig.open(rig.smallest() + 30 * kKiB4);
  ASSERT_TRUE(rig.store->load_pinned({}));
  std::mt19937 random(4);
  const uint64_t before = rig.store->stats().reads;
  uint32_t missing = 0;
  for (uint32_t p : rig.store->plan().scan) missing += !rig.store->plan().pinned[p];
  constexpr uint32_t kSteps = 30;
  for (uint32_t step = 0; step < kSteps; ++step) {
    rig.use(random() % 8);
    rig.pass();
  }
  // The scan and one look-up a step; the look-up may cost one piece that was kept for the head.
  EXPECT_LE(rig.store->stats().reads - before, kSteps * (missing + 2) + 4);
  for (uint32_t e = 0; e < 8; ++e) rig.use(e);  // a prefill looks up many
  rig.pass();
}

TEST_P(Store, ExpertsGoAsThePolicySays) {
  Rig rig({.layers = 1, .experts = 8}, {4, false});
  rig.open(rig.smallest(), PolicyKind::kLru);
  ASSERT_TRUE(rig.store->load_pinned({}));
  for (uint32_t e : {0, 1, 2, 3}) rig.fire(rig.experts(0, {e}));
  rig.fire(rig.experts(0, {0}));           // 1 is the oldest now
  rig.fire(rig.experts(0, {4}));           // and goes
  rig.fire(rig.experts(0, {0, 2, 3, 4}));  // all resident
  StoreStats stats = rig.store->stats();
  EXPECT_EQ(stats.expert_hits, 5u);
  EXPECT_EQ(stats.expert_misses, 5u);
  rig.fire(rig.experts(0, {1}));
  EXPECT_EQ(rig.store->stats().expert_misses, 6u);
  rig.fire(rig.experts(0, {2, 3, 4}));  // 0 went for 1: it was used first in the last pass
  EXPECT_EQ(rig.store->stats().expert_misses, 6u);
}

TEST_P(Store, HitsComeWhileMissesLoad) {
  Rig rig({.layers = 1, .experts = 8}, {4, false});
  rig.open(rig.smallest());
  rig.fire(rig.experts(0, {2, 5}));
  rig.reader.delay(find_expert(rig.table, 0, 0), 30000);
  rig.reader.delay(find_expert(rig.table, 0, 1), 1000);
  const auto order = rig.fire(rig.experts(0, {0, 2, 1, 5}));
  EXPECT_EQ(order, rig.experts(0, {2, 5, 1, 0}));
  EXPECT_GE(rig.store->stats().stall_ns, 25'000'000u);
}

TEST_P(Store, MoreFiredThanSlotsGoInWaves) {
  Rig rig({.layers = 2, .experts = 16}, {3, false});
  rig.reader.most_delay_us = 300;
  rig.open(rig.smallest());
  for (int round = 0; round < 5; ++round) {
    for (uint32_t layer : {0u, 1u}) {
      std::vector<uint32_t> all;
      for (uint32_t e = 0; e < 16; ++e) all.push_back(find_expert(rig.table, layer, e));
      auto order = rig.fire(all);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, all);
    }
  }
}

TEST_P(Store, FiredPiecesInHandAreNeverTaken) {
  Rig rig({.layers = 1, .experts = 16}, {4, false});
  rig.open(rig.smallest());
  std::vector<uint32_t> all;
  for (uint32_t e = 0; e < 12; ++e) all.push_back(find_expert(rig.table, 0, e));
  rig.store->begin_fired(all);
  std::vector<PieceStore::Fired> held;
  PieceStore::Fired fired;
  size_t seen = 0;
  for (;;) {
    const auto more = rig.store->next_fired(&fired);
    ASSERT_TRUE(more) << more.error().message;
    if (!*more) break;
    ++seen;
    held.push_back(fired);
    for (const auto& h : held) rig.check(h.piece, h.data);
    if (held.size() == 3) {
      rig.store->release(held.front().piece);
      held.erase(held.begin());
    }
  }
  EXPECT_EQ(seen, all.size());
  for (const auto& h : held) rig.store->release(h.piece);
}

TEST_P(Store, WhatServesMostRowsOfAPassStays) {
  Rig rig({.layers = 1, .experts = 16}, {3, false});
  rig.open(rig.smallest());
  const auto pass = [&](const std::vector<uint32_t>& pieces, const FiredRows& rows) {
    rig.store->begin_fired(pieces, rows);
    PieceStore::Fired fired;
    while (rig.store->next_fired(&fired).value_or(false)) rig.store->release(fired.piece);
  };
  const std::vector<uint32_t> counts = {1, 9, 7};
  pass(rig.experts(0, {4, 5, 6}), {counts, 10});
  pass(rig.experts(0, {7}), {});
  const uint64_t before = rig.store->stats().expert_misses;
  pass(rig.experts(0, {5, 6}), {});
  EXPECT_EQ(rig.store->stats().expert_misses, before);
  pass(rig.experts(0, {4}), {});
  EXPECT_EQ(rig.store->stats().expert_misses, before + 1);
}

TEST_P(Store, HoldingEverySlotIsAnErrorNotAHang) {
  Rig rig({.layers = 3, .experts = 8}, {2, false});
  rig.open(rig.smallest());
  rig.store->begin_fired(rig.experts(0, {0, 1, 2}));
  PieceStore::Fired fired;
  ASSERT_TRUE(rig.store->next_fired(&fired));
  ASSERT_TRUE(rig.store->next_fired(&fired));
  const auto stuck = rig.store->next_fired(&fired);
  ASSERT_FALSE(stuck);
  EXPECT_EQ(stuck.error().code, Code::kInternal);
  rig.fire(rig.experts(0, {3, 4, 5}));  // nothing stays held by the failed pass

  const auto& scan = rig.store->plan().scan;
  ASSERT_TRUE(rig.store->acquire(scan[0]));
  EXPECT_FALSE(rig.store->acquire(scan[2]));  // the one mixer slot is taken
  rig.store->release(scan[0]);
  rig.use(scan[2]);
}

TEST_P(Store, FailedReadsReachOnlyTheirConsumer) {
  Rig rig({.layers = 6, .experts = 8}, {2, false});
  rig.open(rig.smallest());
  const auto scan = rig.store->plan().scan;
  // However often it was read ahead before.
  rig.reader.fail_next(scan[4], UINT32_MAX);
  rig.use(scan[0]);
  rig.use(scan[1]);
  for (int i = 0; i < 2; ++i) {
    const auto broken = rig.store->acquire(scan[4]);
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().code, Code::kIo);
    EXPECT_NE(broken.error().message.find("injected"), std::string::npos);
    rig.use(scan[0]);
    rig.use(scan[1]);
  }
  rig.reader.fail_next(scan[4], 0);
  rig.use(scan[4]);

  const auto fired = rig.experts(2, {1, 3, 5, 7});
  rig.reader.fail_next(fired[2], 1);
  rig.store->begin_fired(fired);
  PieceStore::Fired one;
  bool failed = false;
  for (;;) {
    const auto more = rig.store->next_fired(&one);
    if (!more) {
      failed = true;
      EXPECT_NE(more.error().message.find("injected"), std::string::npos);
      break;
    }
    if (!*more) break;
    rig.check(one.piece, one.data);
    rig.store->release(one.piece);
  }
  EXPECT_TRUE(failed);
  rig.store->release(one.piece);  // harmless
  EXPECT_EQ(rig.fire(fired).size(), 4u);
  rig.pass();
}

TEST_P(Store, LoadPinnedReportsTheFirstError) {
  Rig rig({.layers = 12}, {0, false});
  rig.open(rig.full());
  rig.reader.fail_next(9, 1);
  EXPECT_FALSE(rig.store->load_pinned({}));
  ASSERT_TRUE(rig.store->load_pinned({}));
  rig.pass();
  EXPECT_EQ(rig.reader.reads(9), 1u);
}

TEST_P(Store, EndsWithReadsInFlight) {
  for (int i = 0; i < 20; ++i) {
    Rig rig({.layers = 2, .experts = 16}, {8, false}, 3);
    rig.reader.most_delay_us = 2000;
    rig.open(rig.smallest());
    rig.store->begin_fired(rig.experts(0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    PieceStore::Fired fired;
    if (i % 2) {
      ASSERT_TRUE(rig.store->next_fired(&fired));
    }
    rig.store.reset();
    EXPECT_EQ(rig.ledger.free(), rig.ledger.ceiling());
  }
}

// A piece that is read in steps: by several threads, and over only when all of them are.
TEST(PreadPool, ThreadsShareTheStepsOfOnePiece) {
  const auto table = make_table({.layers = 2, .mixer = 8 * kKiB4});
  FakeReader reader(table);
  reader.split = 4;
  ReadLog log(table.pieces.size(), {});
  reader.watch(&log);
  const uint32_t piece = 3;  // the first mixer
  reader.delay(piece, 60'000);
  auto pool = make_pread_pool(reader, &log, 4, 8);
  std::vector<std::byte> slot(table.pieces[piece].bytes);
  ReadResult result;
  log.clock().want(piece);
  pool->submit({piece, slot, Urgency::kDemand});
  ASSERT_TRUE(pool->reap(&result, true));
  EXPECT_TRUE(result.status);
  EXPECT_TRUE(holds_pattern(piece, slot.data(), slot.size()));
  EXPECT_GE(reader.most_together, 2u);  // 4, where all threads wake in time
  EXPECT_EQ(pool->reads(), 1u);
  EXPECT_EQ(pool->bytes_read(), slot.size());
  // Nothing is wanted any more, although nobody said so: its bytes are there.
  const uint64_t idle = log.clock().times().idle_ns;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  log.clock().want(piece + 1);
  EXPECT_EQ(log.clock().times().idle_ns, idle);

  // One step fails: one result, and nobody writes into the slot behind it.
  reader.fail_next(piece, 1);
  pool->submit({piece, slot, Urgency::kDemand});
  ASSERT_TRUE(pool->reap(&result, true));
  ASSERT_FALSE(result.status);
  const auto left = slot;
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(left, slot);
  EXPECT_FALSE(pool->reap(&result, false));
  EXPECT_EQ(pool->reads(), 1u);
}

// A system that gives no more threads: fewer reads at a time, and all of them are right.
TEST(PreadPool, TakesAsManyThreadsAsThereAre) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory is part of what is limited";
#endif
  if (!Room::holds()) GTEST_SKIP() << "no limit on writable memory here";
  const auto table = make_table({.layers = 2});
  FakeReader reader(table);
  std::unique_ptr<ReadBackend> pool;
  {
    const Room room(uint64_t{40} << 20);  // stacks have 8 MiB each
    pool = make_pread_pool(reader, nullptr, 64, 8);
  }
  EXPECT_EQ(pool->describe().find("pread pool, 64 "), std::string::npos) << pool->describe();
  std::vector<std::byte> slot(table.pieces[3].bytes);
  pool->submit({3, slot, Urgency::kDemand});
  ReadResult result;
  ASSERT_TRUE(pool->reap(&result, true));
  EXPECT_TRUE(result.status);
  EXPECT_TRUE(holds_pattern(3, slot.data(), slot.size()));
}

// What is demanded goes first, also before the steps that are left of a piece that is read ahead.
TEST(PreadPool, ADemandPassesTheStepsOfAReadAhead) {
  const auto table = make_table({.layers = 2, .mixer = 8 * kKiB4});
  FakeReader reader(table);
  reader.split = 8;
  const uint32_t ahead = 3, wanted = 4;
  reader.delay(ahead, 50'000);
  auto pool = make_pread_pool(reader, nullptr, 1, 8);
  std::vector<std::byte> a(table.pieces[ahead].bytes), b(table.pieces[wanted].bytes);
  pool->submit({ahead, a, Urgency::kAhead});
  std::this_thread::sleep_for(std::chrono::milliseconds(60));  // its first steps
  pool->submit({wanted, b, Urgency::kDemand});
  ReadResult result;
  ASSERT_TRUE(pool->reap(&result, true));
  EXPECT_EQ(result.piece, wanted);
  ASSERT_TRUE(pool->reap(&result, true));
  EXPECT_EQ(result.piece, ahead);
  EXPECT_TRUE(holds_pattern(ahead, a.data(), a.size()));
  EXPECT_TRUE(holds_pattern(wanted, b.data(), b.size()));
}

// Look-ups that are announced are read together.
TEST_P(Store, AnnouncedPiecesAreReadAtTheSameTime) {
  Rig rig({.layers = 1, .experts = 4, .embeddings = 8}, {1, false}, 4);
  rig.open(rig.smallest() + 4 * 4 * kKiB4);
  std::vector<uint32_t> rows = {0, 2, 4, 6};
  for (const uint32_t row : rows) rig.reader.delay(row, 100'000);
  const auto begin = std::chrono::steady_clock::now();
  rig.store->will_acquire(rows);
  for (const uint32_t row : rows) rig.use(row);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(taken.count(), 0.39);  // one after another: 0.4
  // More of them than there is room for: the rest is read when its turn comes.
  rows = {0, 1, 2, 3, 4, 5, 6, 7};
  rig.store->will_acquire(rows);
  for (const uint32_t row : rows) rig.use(row);
}

// Everything at once: look-ups, cut-short scans, fired sets of any size, several pieces in hand,
// failing reads.
class StoreStress : public testing::TestWithParam<std::tuple<uint32_t, BackendKind>> {
 protected:
  void SetUp() override {
    tested = std::get<1>(GetParam());
    if (tested != BackendKind::kUring) return;
    if (const std::string why = io::why_no_io_uring(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(StoreStress, EveryByteIsRight) {
  std::mt19937 random(std::get<0>(GetParam()));
  const auto pick = [&](uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(random()) % (high - low + 1);
  };
  Shape shape{
      .layers = pick(1, 6), .experts = pick(0, 2) ? pick(2, 20) : 0, .embeddings = pick(1, 5)};
  shape.heads = pick(0, 3);
  shape.mixed = pick(0, 1) != 0;
  const uint32_t top = shape.experts ? pick(1, std::min(4u, shape.experts)) : 0;
  Rig rig(shape, {top, shape.heads == 0}, pick(1, 4));
  rig.reader.most_delay_us = pick(0, 1) ? 0 : 200;
  rig.reader.split = std::get<0>(GetParam()) % 4 + 1;
  rig.open(rig.smallest() + random() % (1 + rig.full() - rig.smallest()));
  if (HasFatalFailure()) return;
  if (pick(0, 1)) {
    ASSERT_TRUE(rig.store->load_pinned({}));
  }
  const auto scan = rig.store->plan().scan;
  for (int step = 0; step < 30; ++step) {
    if (pick(0, 9) == 0) {
      rig.reader.fail_next(pick(0, static_cast<uint32_t>(rig.table.pieces.size()) - 1), 1);
    }
    for (uint32_t i = pick(1, 3); i-- > 0;) {
      const uint32_t row = pick(0, shape.embeddings - 1);
      const auto data = rig.store->acquire(row);
      if (!data) continue;
      rig.check(row, *data);
      rig.store->release(row);
    }
    const size_t end = pick(0, 2) ? scan.size() : pick(1, static_cast<uint32_t>(scan.size()));
    for (size_t i = 0; i < end; ++i) {
      const auto held = rig.store->acquire(scan[i]);
      if (!held) {
        EXPECT_EQ(held.error().code, Code::kIo) << held.error().message;
        break;
      }
      const format::Piece& piece = rig.table.pieces[scan[i]];
      if (piece.kind == PieceKind::kRouter) {
        std::vector<uint32_t> fired;
        for (uint32_t e = 0; e < shape.experts; ++e) {
          fired.push_back(find_expert(rig.table, static_cast<uint32_t>(piece.layer), e));
        }
        std::shuffle(fired.begin(), fired.end(), random);
        fired.resize(pick(0, 3) ? top : pick(1, shape.experts));
        rig.store->begin_fired(fired);
        size_t seen = 0;
        PieceStore::Fired one;
        bool whole = true;
        for (;;) {
          const auto more = rig.store->next_fired(&one);
          if (!more) {
            EXPECT_EQ(more.error().code, Code::kIo) << more.error().message;
            whole = false;
            break;
          }
          if (!*more) break;
          rig.check(one.piece, one.data);
          ++seen;
          rig.store->release(one.piece);
          if (pick(0, 50) == 0) {  // a cancelled request
            whole = false;
            break;
          }
        }
        if (whole) {
          EXPECT_EQ(seen, fired.size());
        }
      }
      rig.check(scan[i], *held);
      rig.store->release(scan[i]);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreStress,
                         testing::Combine(testing::Range(0u, 60u),
                                          testing::Values(BackendKind::kPread,
                                                          BackendKind::kUring)),
                         [](const auto& of) {
                           return fmt::format("{}_{}", backend_name(std::get<1>(of.param)),
                                              std::get<0>(of.param));
                         });

}  // namespace
}  // namespace millrace::stream
