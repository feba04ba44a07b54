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

}  // namespace

BudgetControl::BudgetControl(const Model::Impl& model, const EngineOptions& options, Sizing& sizing,
                             stream::Ledger& ledger, stream::PieceStore& store,
                             const std::vector<std::string>& cached,
                             std::unique_ptr<stream::PressureMonitor> monitor)
    : model_(model),
      sizing_(sizing),
      ledger_(ledger),
      store_(store),
      log_(options.log),
      warn_(options.warn),
      root_(options.system_root),
      first_memory_(options.memory),
      first_budget_(options.budget),
      fixed_(ledger.held() - store.plan().arena_bytes),
      tables_(page_tables(sizing.plan.ceiling)),
      monitor_(std::move(monitor)) {
  asked_ = now_ = {{sizing.plan.ceiling, sizing.ceiling_source, ""}, options.budget};
  if (!cached.empty()) cache_ = std::make_unique<io::PageCache>(cached);
  report_.watching = monitor_ ? monitor_->watching() : "nothing: turned off";
  if (monitor_ && !monitor_->active()) monitor_.reset();
  take(now_);
}

Status BudgetControl::set_memory(std::optional<uint64_t> bytes) {
  MILLRACE_ASSIGN(Ceiling ceiling, derive_ceiling(bytes ? bytes : first_memory_, root_));
  std::lock_guard lock(mutex_);
  MILLRACE_TRY(request({std::move(ceiling), asked_.budget}));
  ceiling_asked_ = true;
  return {};
}

Status BudgetControl::set_budget(std::optional<uint64_t> bytes) {
  std::lock_guard lock(mutex_);
  MILLRACE_TRY(request({asked_.ceiling, bytes ? bytes : first_budget_}));
  budget_asked_ = true;
  return {};
}

Status BudgetControl::request(Limits limits) {
  MILLRACE_TRY(check(limits));
  asked_ = std::move(limits);
  pending_.store(true, std::memory_order_release);
  return {};
}

// Bytes that are not weights' under that ceiling. A larger one than any so far takes more page
// tables, which stay.
uint64_t BudgetControl::fixed(uint64_t ceiling) const {
  return fixed_ - tables_ + std::max(tables_, page_tables(ceiling));
}

Status BudgetControl::check(const Limits& limits) const {
  const uint64_t least = sizing_.plan.smallest_budget;
  if (limits.budget && *limits.budget < least) {
    return fail(Code::kNoMemory,
                "a budget of {} is too small for the working set of one layer; the smallest that "
                "works is {}",
                size_text(*limits.budget), size_to_give(least));
  }
  const uint64_t fixed = this->fixed(limits.ceiling.bytes);
  if (limits.ceiling.bytes < fixed + least) {
    return fail(Code::kNoMemory,
                "a ceiling of {} ({}) is too small: {} are held by the process, KV and buffers, "
                "which keep their size while the model is open, and the weights need at least {}. "
                "The smallest that works is {}",
                size_text(limits.ceiling.bytes), limits.ceiling.source, size_text(fixed),
                size_text(least), size_to_give(fixed + least));
  }
  return {};
}

uint64_t BudgetControl::arena_bound(const Limits& limits) const {
  return std::min(limits.budget.value_or(UINT64_MAX),
                  limits.ceiling.bytes - fixed(limits.ceiling.bytes));
}

void BudgetControl::at_boundary() {
  if (pending_.load(std::memory_order_acquire)) apply();
  if (monitor_) relieve();
}

// What was asked for, as a whole.
void BudgetControl::apply() {
  Limits limits;
  std::string warning;
  {
    std::lock_guard lock(mutex_);
    limits = asked_;
    if (ceiling_asked_) warning = limits.ceiling.warning;
    ceiling_asked_ = budget_asked_ = false;
    pending_.store(false, std::memory_order_relaxed);
  }
  take(limits);
  Status done =
      fit(limits.ceiling.bytes, std::min(arena_bound(limits), governor_.allowed()), kMostMoved);
  const uint64_t fixed = this->fixed(limits.ceiling.bytes);
  // The arena has left room for this.
  if (done) done = ledger_.reserve(stream::Use::kProcess, fixed - fixed_);
  std::string failed;
  {
    std::lock_guard lock(mutex_);
    error_ = failed = done ? "" : done.error().message;
    if (done) {
      tables_ += fixed - fixed_;
      fixed_ = fixed;
      now_ = std::move(limits);
      sizing_.ceiling_source = now_.ceiling.source;
    } else {
      // What was asked for in the meantime is another matter; the rest is not asked for any more.
      if (!ceiling_asked_) asked_.ceiling = now_.ceiling;
      if (!budget_asked_) asked_.budget = now_.budget;
      take(now_);
    }
  }
  // Without the lock: whoever is told may ask for other limits.
  if (done && !warning.empty() && warn_) warn_(warning);
  if (!failed.empty() && log_) log_("the limits stay as they were: " + failed);
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
    if (!done) governor_.resize_failed(store_.plan().arena_bytes);
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
  Status done = move_arena(std::move(residency), most_moved);
  if (Status set = ledger_.set_ceiling(done ? ceiling : before); done && !set) done = set;
  if (done) {
    std::lock_guard lock(mutex_);
    ++changes_;
    longest_s_ = std::max(longest_s_, seconds_now() - begin);
  }
  Plan& plan = sizing_.plan;
  plan.ceiling = ledger_.ceiling();
  plan.budget = store_.plan().arena_bytes;
  describe_residency(model_, store_.plan(), true, &plan);
  return done;
}

// A plan that the system has no memory for may leave the arena smaller than it was. That is as good
// when it was to become smaller; else what was comes back, if it may.
Status BudgetControl::move_arena(stream::ResidencyPlan residency, uint64_t most_moved) {
  const stream::ResidencyPlan old = store_.plan();
  const uint64_t wanted = residency.arena_bytes;
  if (wanted == old.arena_bytes && residency.pinned == old.pinned) return {};
  Status resized = store_.resize(std::move(residency), most_moved);
  const uint64_t left = store_.plan().arena_bytes;
  if (resized || left == old.arena_bytes) return resized;
  if (left <= wanted && wanted < old.arena_bytes) {
    if (log_)
      log_(fmt::format("weights have {} MiB, {} less than they may: {}", left / kMiB,
                       (wanted - left) / kMiB, resized.error().message));
    return {};
  }
  (void)store_.resize(old, most_moved);
  return resized;
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
