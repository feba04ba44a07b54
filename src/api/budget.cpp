#include "api/budget.h"

#include <algorithm>
#include <chrono>

#include "base/size_text.h"
#include "base/status.h"

namespace millrace {
namespace {

constexpr uint64_t kMiB = 1 << 20;
// Weights that are copied to close gaps when the arena shrinks: 512 MiB take about a tenth of a
// second. The rest of what lies behind the new end is read again when it is needed.
constexpr uint64_t kMostMoved = 512 * kMiB;
// Of the page cache, dropped between two steps: some 20 ms.
constexpr uint64_t kCacheStep = 512 * kMiB;

double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::vector<std::string> weight_files(const Model::Impl& model) {
  std::vector<std::string> paths;
  if (model.packed) {
    paths.assign(model.packed->files.begin(), model.packed->files.end());
  } else {
    for (const auto& file : model.source().files) paths.push_back(file.path);
  }
  return paths;
}

}  // namespace

BudgetControl::BudgetControl(const Model::Impl& model, const EngineOptions& options, Sizing& sizing,
                             stream::Ledger& ledger, stream::PieceStore& store, bool buffered,
                             std::unique_ptr<stream::PressureMonitor> monitor)
    : model_(model),
      sizing_(sizing),
      ledger_(ledger),
      store_(store),
      log_(options.log),
      first_memory_(options.memory),
      first_budget_(options.budget),
      fixed_(ledger.held() - store.plan().arena_bytes),
      monitor_(std::move(monitor)) {
  asked_ = now_ = {{sizing.plan.ceiling, sizing.ceiling_source}, options.budget};
  if (buffered) cache_ = std::make_unique<io::PageCache>(weight_files(model));
  report_.watching = monitor_ ? monitor_->watching() : "nothing: turned off";
  if (monitor_ && !monitor_->active()) monitor_.reset();
  take(now_);
}

Status BudgetControl::set_memory(std::optional<uint64_t> bytes) {
  MILLRACE_ASSIGN(Ceiling ceiling, derive_ceiling(bytes ? bytes : first_memory_));
  std::lock_guard lock(mutex_);
  return request({std::move(ceiling), asked_.budget});
}

Status BudgetControl::set_budget(std::optional<uint64_t> bytes) {
  std::lock_guard lock(mutex_);
  return request({asked_.ceiling, bytes ? bytes : first_budget_});
}

Status BudgetControl::request(Limits limits) {
  MILLRACE_TRY(check(limits));
  asked_ = std::move(limits);
  pending_.store(true, std::memory_order_release);
  return {};
}

Status BudgetControl::check(const Limits& limits) const {
  const uint64_t least = sizing_.plan.smallest_budget;
  if (limits.budget && *limits.budget < least) {
    return fail(Code::kNoMemory,
                "a budget of {} is too small for the working set of one layer; the smallest that "
                "works is {}",
                size_text(*limits.budget), size_to_give(least));
  }
  if (limits.ceiling.bytes < fixed_ + least) {
    return fail(Code::kNoMemory,
                "a ceiling of {} ({}) is too small: {} are held by the process, KV and buffers, "
                "which keep their size while the model is open, and the weights need at least {}. "
                "The smallest that works is {}",
                size_text(limits.ceiling.bytes), limits.ceiling.source, size_text(fixed_),
                size_text(least), size_to_give(fixed_ + least));
  }
  return {};
}

uint64_t BudgetControl::arena_bound(const Limits& limits) const {
  return std::min(limits.budget.value_or(UINT64_MAX), limits.ceiling.bytes - fixed_);
}

void BudgetControl::at_boundary() {
  if (pending_.load(std::memory_order_acquire)) {
    Limits limits;
    {
      std::lock_guard lock(mutex_);
      limits = asked_;
      pending_.store(false, std::memory_order_relaxed);
    }
    take(limits);
    Status done =
        fit(limits.ceiling.bytes, std::min(arena_bound(limits), governor_.allowed()), kMostMoved);
    std::string failed;
    {
      std::lock_guard lock(mutex_);
      error_ = failed = done ? "" : done.error().message;
      if (done) {
        now_ = std::move(limits);
        sizing_.ceiling_source = now_.ceiling.source;
      } else {
        // What was asked for in the meantime is another matter.
        if (!pending_.load(std::memory_order_relaxed)) asked_ = now_;
        take(now_);
      }
    }
    // Without the lock: whoever is told may ask for other limits.
    if (!failed.empty() && log_) log_("the limits stay as they were: " + failed);
  }
  if (monitor_) relieve();
}

// The range in which a shortage may move the arena: half of it always stays, or what is comfortable
// where that is less.
void BudgetControl::take(const Limits& limits) {
  const Plan& plan = sizing_.plan;
  const uint64_t wanted = std::min(arena_bound(limits), store_.plan().full_budget);
  governor_.set_range(
      wanted, std::max(plan.smallest_budget, std::min(plan.comfortable_budget, wanted / 2)));
}

void BudgetControl::relieve() {
  const stream::Pressure level = monitor_->poll(seconds_now());
  const auto action = governor_.step(level, seconds_now());
  if (cache_ && action.drop_cache) {
    cache_->start();
    dropping_ = true;
  }
  uint64_t shed = 0;
  if (action.resize) {
    const uint64_t before = store_.plan().arena_bytes;
    const uint64_t moved = level == stream::Pressure::kCritical ? 0 : kMostMoved;
    const Status done = fit(now_.ceiling.bytes, governor_.allowed(), moved);
    if (!done) governor_.resize_failed(before);
    const uint64_t after = store_.plan().arena_bytes;
    shed = before > after ? before - after : 0;
    if (log_)
      log_(fmt::format("memory pressure: weights {} -> {} MiB{}", before / kMiB, after / kMiB,
                       done ? "" : ": " + done.error().message));
  }
  uint64_t dropped = 0;
  if (dropping_) {
    dropped = cache_->drop_some(kCacheStep);
    dropping_ = dropped != 0;
  }
  if (!action.resize && !action.drop_cache && dropped == 0) return;
  std::lock_guard lock(mutex_);
  report_.warnings = governor_.warnings();
  report_.criticals = governor_.criticals();
  report_.given_up = governor_.given_up();
  report_.bytes_shed += shed;
  report_.cache_dropped += dropped;
}

// Brings ceiling and arena to these sizes, in the order in which the ledger never passes either.
Status BudgetControl::fit(uint64_t ceiling, uint64_t bound, uint64_t most_moved) {
  const double begin = seconds_now();
  MILLRACE_ASSIGN(auto residency, stream::plan_residency(model_.table, bound, sizing_.demand));
  const uint64_t before = ledger_.ceiling();
  if (ceiling > before) MILLRACE_TRY(ledger_.set_ceiling(ceiling));
  if (residency.arena_bytes != store_.plan().arena_bytes ||
      residency.pinned != store_.plan().pinned) {
    if (Status resized = store_.resize(std::move(residency), most_moved); !resized) {
      (void)ledger_.set_ceiling(before);  // as much was held under it a moment ago
      return resized;
    }
  }
  MILLRACE_TRY(ledger_.set_ceiling(ceiling));
  {
    std::lock_guard lock(mutex_);
    ++changes_;
    longest_s_ = std::max(longest_s_, seconds_now() - begin);
  }
  Plan& plan = sizing_.plan;
  plan.ceiling = ceiling;
  plan.budget = store_.plan().arena_bytes;
  describe_residency(model_, store_.plan(), true, &plan);
  return {};
}

PressureReport BudgetControl::pressure() const {
  std::lock_guard lock(mutex_);
  return report_;
}

void BudgetControl::report(MemoryReport* report) const {
  std::lock_guard lock(mutex_);
  report->error = error_;
  report->changes = changes_;
  report->longest_change_s = longest_s_;
}

}  // namespace millrace
