// C1 under slow reads: every kind of prefetch, with reads that take random times, gives the same logits to the
// bit as weights that are all in memory.
#include <algorithm>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "api/sizing.h"
#include "base/status.h"
#include "model/forward.h"
#include "stream/reader_in_place.h"
#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

class SlowReader : public stream::PieceReader {
 public:
  SlowReader(std::unique_ptr<stream::PieceReader> inner, uint32_t most_us)
      : inner_(std::move(inner)), most_us_(most_us) {}
  uint64_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  std::string mode() const override { return inner_->mode(); }
  uint64_t largest_read(uint32_t piece) const override { return inner_->largest_read(piece); }
  void watch(stream::ReadWatch* watch) override { inner_->watch(watch); }
  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> scratch) override {
    if (most_us_ > 0) {
      // Half of the slot's bytes are wrong while the read is under way.
      std::fill_n(slot.data(), slot.size() / 2, std::byte{0x5a});
      std::this_thread::sleep_for(std::chrono::microseconds(delay()));
    }
    return inner_->read(piece, slot, scratch);
  }

 private:
  uint32_t delay() {
    std::lock_guard lock(mutex_);
    return static_cast<uint32_t>(random_() % most_us_);
  }
  std::unique_ptr<stream::PieceReader> inner_;
  uint32_t most_us_;
  std::mutex mutex_;
  std::mt19937 random_{11};
};

struct Run {
  std::vector<float> logits;  // of the prompt's last row and every row behind it
  stream::StoreStats stats;
};

Expected<Run> run(const std::string& prefetch, uint64_t more, uint32_t most_us) {
  MILLRACE_ASSIGN(const auto model, Model::open(repo("models/tiny-moe-4bit")));
  auto& m = model->impl();
  EngineOptions options;
  options.context = 128;
  options.threads = 2;
  MILLRACE_ASSIGN(const auto plan, make_plan(*model, options));
  options.budget = plan.smallest_budget + more;
  MILLRACE_ASSIGN(auto sizing, size_model(m, options));
  MILLRACE_ASSIGN(auto inner, stream::make_in_place_reader(m.source(), m.table, {}));
  SlowReader reader(std::move(inner), most_us);
  stream::Ledger ledger(uint64_t{4} << 30);
  stream::StoreOptions store_options;
  store_options.io_threads = 2;
  store_options.prefetch = prefetch;
  MILLRACE_ASSIGN(auto store, stream::PieceStore::create(m.table, sizing.residency, reader, ledger,
                                                         store_options));
  MILLRACE_ASSIGN(auto pool, model::KvPool::create(sizing.kv, ledger));
  Threads threads(2);
  MILLRACE_ASSIGN(auto forward,
                  model::Forward::create(m.spec, m.table, *store, pool->shape(), threads,
                                         Cpu::detect(), ledger, sizing.forward));
  model::KvSequence sequence(*pool);
  Run out;
  std::vector<model::Row> rows;
  for (uint32_t p = 0; p < 12; ++p)
    rows.push_back({&sequence, p, static_cast<int32_t>(5 + p * 31), p == 11});
  for (uint32_t step = 0; step < 40; ++step) {
    const uint32_t end = rows.back().position + 1;
    MILLRACE_TRY(sequence.reserve(end));
    MILLRACE_ASSIGN(const auto logits, forward->run(rows));
    sequence.commit(end);
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    rows.assign(1, {&sequence, end, static_cast<int32_t>(best), true});
  }
  out.stats = store->stats();
  return out;
}

TEST(SlowReads, PrefetchNeverChangesABit) {
  const auto whole = run("off", uint64_t{1} << 30, 0);
  ASSERT_TRUE(whole) << whole.error().message;
  for (const char* prefetch : {"off", "temporal", "router"}) {
    const auto slow = run(prefetch, 1 << 20, 300);
    ASSERT_TRUE(slow) << slow.error().message;
    EXPECT_GT(slow->stats.expert_misses, 100u);
    if (std::string_view(prefetch) != "off") {
      EXPECT_GT(slow->stats.prefetch.issued, 0u) << prefetch;
    }
    EXPECT_TRUE(slow->logits == whole->logits) << prefetch;
  }
}

}  // namespace
}  // namespace millrace::test
