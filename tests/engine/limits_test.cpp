// Limits that are asked for while others are applied and fail, over a store that does as it is told.
#include "api/budget.h"
#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Only plan() and resize() are of use.
class ObedientStore : public stream::PieceStore {
 public:
  ObedientStore(stream::ResidencyPlan plan, stream::Ledger& ledger)
      : plan_(std::move(plan)), ledger_(ledger) {
    EXPECT_TRUE(ledger_.reserve(stream::Use::kWeights, plan_.arena_bytes));
  }
  std::function<void()> meanwhile = [] {};  // while it changes its size
  bool fails = false;

  Status resize(stream::ResidencyPlan plan, uint64_t) override {
    meanwhile();
    if (fails) return fail(Code::kNoMemory, "no pages are left");
    ledger_.release(stream::Use::kWeights, plan_.arena_bytes);
    plan_ = std::move(plan);
    return ledger_.reserve(stream::Use::kWeights, plan_.arena_bytes);
  }
  const stream::ResidencyPlan& plan() const override { return plan_; }

  Status load_pinned(const std::function<void(uint64_t, uint64_t)>&) override { return {}; }
  Expected<const std::byte*> acquire(uint32_t) override { return nullptr; }
  void release(uint32_t) override {}
  void will_acquire(std::span<const uint32_t>) override {}
  void begin_fired(std::span<const uint32_t>, const stream::FiredRows&) override {}
  Expected<bool> next_fired(Fired*) override { return false; }
  bool fired_ready() override { return false; }
  stream::PrefetchKind prefetch() const override { return {}; }
  std::string prefetch_choice() const override { return ""; }
  void step_done(uint32_t, double) override {}
  void suggest(std::span<const uint32_t>) override {}
  const std::byte* peek(uint32_t) const override { return nullptr; }
  stream::StoreStats stats() const override { return {}; }
  const std::string& pages() const override { return nothing_; }
  std::string reading() const override { return ""; }
  const stream::ReadChoice& read_choice() const override { return choice_; }

 private:
  stream::ResidencyPlan plan_;
  stream::Ledger& ledger_;
  const std::string nothing_;
  const stream::ReadChoice choice_;
};

class Limits : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(temp_ / "proc");
    std::ofstream(temp_ / "proc/meminfo") << "MemTotal: 16000000 kB\nMemAvailable: 16000000 kB\n";
    options_.model = repo("models/tiny-moe-4bit");
    options_.context = 128;
    options_.memory = 1024 * kMiB;
    options_.system_root = temp_ / "";
    options_.log = [this](std::string_view line) { told_ = line; };
    auto model = Model::open(options_.model);
    ASSERT_TRUE(model) << model.error().message;
    model_ = *model;
    auto sizing = size_model(model_->impl(), options_);
    ASSERT_TRUE(sizing) << sizing.error().message;
    sizing_ = std::move(*sizing);
    ASSERT_TRUE(ledger_.reserve(stream::Use::kProcess, sizing_.plan.process_bytes));
    store_ = std::make_unique<ObedientStore>(sizing_.residency, ledger_);
    control_ = std::make_unique<BudgetControl>(model_->impl(), options_, sizing_, ledger_, *store_,
                                               std::vector<std::string>{}, nullptr);
    least_ = sizing_.plan.smallest_budget;
    tight_ = sizing_.plan.process_bytes + least_ + kMiB;
  }

  TempFolder temp_;
  EngineOptions options_;
  std::string told_;
  std::shared_ptr<Model> model_;
  Sizing sizing_;
  stream::Ledger ledger_{1024 * kMiB};
  std::unique_ptr<ObedientStore> store_;
  std::unique_ptr<BudgetControl> control_;
  uint64_t least_ = 0, tight_ = 0;
};

// A ceiling cannot be applied while a budget is asked for: the budget comes, the ceiling does not.
TEST_F(Limits, ABudgetAskedForWhileACeilingFails) {
  ASSERT_TRUE(control_->set_memory(tight_));
  store_->fails = true;
  store_->meanwhile = [&] { EXPECT_TRUE(control_->set_budget(least_)); };
  control_->at_boundary();
  EXPECT_NE(told_.find("no pages are left"), std::string::npos) << told_;
  EXPECT_EQ(ledger_.ceiling(), 1024 * kMiB);
  store_->fails = false;
  store_->meanwhile = [] {};
  control_->at_boundary();
  EXPECT_EQ(ledger_.ceiling(), 1024 * kMiB);
  EXPECT_EQ(store_->plan().arena_bytes, least_);
  MemoryReport report;
  control_->report(&report);
  EXPECT_EQ(report.error, "");
}

// And the other way about.
TEST_F(Limits, ACeilingAskedForWhileABudgetFails) {
  ASSERT_TRUE(control_->set_budget(least_));
  store_->fails = true;
  store_->meanwhile = [&] { EXPECT_TRUE(control_->set_memory(512 * kMiB)); };
  control_->at_boundary();
  store_->fails = false;
  store_->meanwhile = [] {};
  const uint64_t arena = store_->plan().arena_bytes;
  control_->at_boundary();
  EXPECT_EQ(ledger_.ceiling(), 512 * kMiB);
  EXPECT_EQ(store_->plan().arena_bytes, arena);
}

// A change that fails is not tried again by itself, and the next one starts from what holds.
TEST_F(Limits, WhatFailedIsForgotten) {
  ASSERT_TRUE(control_->set_memory(tight_));
  store_->fails = true;
  control_->at_boundary();
  store_->fails = false;
  control_->at_boundary();
  EXPECT_EQ(ledger_.ceiling(), 1024 * kMiB);
  ASSERT_TRUE(control_->set_budget(least_));
  control_->at_boundary();
  EXPECT_EQ(ledger_.ceiling(), 1024 * kMiB);
  EXPECT_EQ(store_->plan().arena_bytes, least_);
}

}  // namespace
}  // namespace millrace::test
