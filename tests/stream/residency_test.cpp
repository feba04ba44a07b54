#include "stream/residency.h"

#include <gtest/gtest.h>

#include <random>

#include "base/size_text.h"
#include "fakes.h"

namespace millrace::stream {
namespace {

using format::PieceKind;

struct Case {
  format::PieceTable table;
  Demand demand;
};

Case random_case(std::mt19937& random) {
  const auto pick = [&](uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(random()) % (high - low + 1);
  };
  Shape shape;
  shape.layers = pick(1, 12);
  shape.experts = pick(0, 1) ? pick(1, 24) : 0;
  shape.embeddings = pick(1, 9);
  const bool tied = pick(0, 1) != 0;
  shape.heads = tied ? 0 : pick(1, 9);
  shape.mixer = pick(1, 20) * kKiB4;
  shape.ffn = pick(1, 50) * kKiB4;
  shape.expert = pick(1, 9) * kKiB4;
  shape.mixed = pick(0, 1) != 0;
  const uint32_t top = shape.experts == 0 ? 0 : pick(1, std::min(8u, shape.experts));
  return {make_table(shape), {top, tied}};
}

void check_plan(const Case& c, const ResidencyPlan& plan, uint64_t budget) {
  ASSERT_LE(plan.arena_bytes, budget);
  ASSERT_LE(plan.arena_bytes, plan.full_budget);
  uint64_t arena = 0;
  std::vector<uint32_t> pinned(plan.classes.size());
  for (uint32_t p = 0; p < c.table.pieces.size(); ++p) {
    const SlotClass& of = plan.classes[plan.class_of[p]];
    ASSERT_EQ(of.kind, c.table.pieces[p].kind);
    ASSERT_GE(of.slot_bytes, c.table.pieces[p].bytes);
    pinned[plan.class_of[p]] += plan.pinned[p];
  }
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const SlotClass& of = plan.classes[i];
    arena += (of.pinned + of.shared) * of.slot_bytes;
    ASSERT_EQ(of.pinned, pinned[i]);
    ASSERT_LE(of.pinned + of.shared, of.pieces);
    ASSERT_EQ(of.pinned == of.pieces, of.shared == 0);
    if (of.kind == PieceKind::kExpert && of.shared != 0) {
      ASSERT_GE(of.shared, std::min(c.demand.experts_per_token, of.pieces));
    }
    // Nothing that would fit another slot is left over.
    if (of.shared != 0) {
      ASSERT_LT(budget - plan.arena_bytes, of.slot_bytes);
    }
  }
  ASSERT_EQ(arena, plan.arena_bytes);
}

TEST(Residency, RandomTables) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const Case c = random_case(random);
    const auto refused = plan_residency(c.table, 0, c.demand);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kNoMemory);
    const auto all = plan_residency(c.table, uint64_t{1} << 40, c.demand);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->arena_bytes, all->full_budget);
    EXPECT_LE(all->smallest_budget, all->comfortable_budget);
    EXPECT_LE(all->comfortable_budget, all->full_budget);
    for (const SlotClass& of : all->classes) EXPECT_EQ(of.pinned, of.pieces);
    EXPECT_NE(refused.error().message.find(size_to_give(all->smallest_budget)), std::string::npos);

    EXPECT_FALSE(plan_residency(c.table, all->smallest_budget - 1, c.demand));
    uint64_t used = 0;
    for (uint64_t budget = all->smallest_budget; budget <= all->full_budget;
         budget += 1 + random() % (1 + all->full_budget / 40)) {
      const auto plan = plan_residency(c.table, budget, c.demand);
      ASSERT_TRUE(plan) << budget;
      check_plan(c, *plan, budget);
      EXPECT_GE(plan->arena_bytes, used) << "more budget, fewer bytes in use";
      used = plan->arena_bytes;
      EXPECT_EQ(plan->smallest_budget, all->smallest_budget);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Residency, ScanOrder) {
  Shape shape{.layers = 2, .experts = 2, .embeddings = 2, .heads = 0};
  const format::PieceTable table = make_table(shape);
  const auto tied = plan_residency(table, 1 << 30, {1, true});
  // emb0 emb1 | mixer2 router3 e4 e5 | mixer6 router7 e8 e9 | final10
  EXPECT_EQ(tied->scan, (std::vector<uint32_t>{2, 3, 6, 7, 10, 0, 1}));
  const auto untied = plan_residency(table, 1 << 30, {1, false});
  EXPECT_EQ(untied->scan, (std::vector<uint32_t>{2, 3, 6, 7, 10}));
}

TEST(Residency, CoresBeforeExperts) {
  const format::PieceTable table = make_table({.layers = 8, .experts = 16});
  uint64_t cores = 0;
  const Demand demand{4, false};
  for (const auto& piece : table.pieces) {
    if (piece.kind != PieceKind::kExpert && piece.kind != PieceKind::kEmbedding)
      cores += piece.bytes;
  }
  const uint64_t least_random = 4 * 3 * kKiB4 + 4 * kKiB4;
  const auto plan = plan_residency(table, cores + least_random, demand);
  ASSERT_TRUE(plan);
  for (uint32_t p : plan->scan) EXPECT_TRUE(plan->pinned[p]);
  for (const SlotClass& of : plan->classes) {
    if (of.kind == PieceKind::kExpert) {
      EXPECT_EQ(of.shared, 4u);
    }
  }
}

TEST(Residency, MixedExpertSizesShareInProportion) {
  const format::PieceTable table = make_table({.layers = 8, .experts = 32, .mixed = true});
  const auto full = plan_residency(table, 1 << 30, {4, false});
  const auto plan = plan_residency(table, full->full_budget / 2, {4, false});
  ASSERT_TRUE(plan);
  std::vector<uint32_t> slots;
  for (const SlotClass& of : plan->classes) {
    if (of.kind == PieceKind::kExpert) slots.push_back(of.shared);
  }
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_NEAR(slots[0], slots[1], 1.0);
}

TEST(Residency, PinnedPiecesSpreadOverTheScan) {
  const format::PieceTable table = make_table({.layers = 32, .embeddings = 1, .heads = 1});
  const auto full = plan_residency(table, 1 << 30, {0, false});
  const auto plan = plan_residency(table, full->full_budget - 12 * 5 * kKiB4, {0, false});
  ASSERT_TRUE(plan);
  uint32_t run = 0, longest = 0, missing = 0;
  for (uint32_t p : plan->scan) {
    if (table.pieces[p].kind != PieceKind::kFfn) {
      EXPECT_TRUE(plan->pinned[p]);
      continue;
    }
    run = plan->pinned[p] ? run + 1 : 0;
    missing += !plan->pinned[p];
    longest = std::max(longest, run);
  }
  EXPECT_EQ(missing, 17u);  // 12 and a quarter of its 20 slots to read ahead
  EXPECT_LE(longest, 2u);
}

TEST(Residency, EmptyTable) {
  const auto plan = plan_residency({}, 0, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->arena_bytes, 0u);
}

}  // namespace
}  // namespace millrace::stream
