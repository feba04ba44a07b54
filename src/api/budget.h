// Limits that change while the engine runs: what a caller asks for, and what a shortage of memory
// takes for a while. Everything is applied between two steps.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "api/sizing.h"
#include "io/page_cache.h"
#include "stream/governor.h"
#include "stream/ledger.h"
#include "stream/pressure.h"
#include "stream/store.h"

namespace millrace {

class BudgetControl {
 public:
  // After everything that is not weights was reserved. All referenced objects must outlive it.
  // `cached`: files that are read through the page cache, which a shortage drops.
  BudgetControl(const Model::Impl& model, const EngineOptions& options, Sizing& sizing,
                stream::Ledger& ledger, stream::PieceStore& store,
                const std::vector<std::string>& cached,
                std::unique_ptr<stream::PressureMonitor> monitor);

  // From any thread.
  Status set_memory(std::optional<uint64_t> bytes);
  Status set_budget(std::optional<uint64_t> bytes);

  // Between two steps, from the thread that steps.
  void at_boundary();

  PressureReport pressure() const;
  // Fills in what it knows of the arena's changes.
  void report(MemoryReport* report) const;

 private:
  struct Limits {
    Ceiling ceiling;
    std::optional<uint64_t> budget;
  };
  void apply();
  uint64_t fixed(uint64_t ceiling) const;
  Status check(const Limits& limits) const;
  Status request(Limits limits);
  uint64_t arena_bound(const Limits& limits) const;
  void take(const Limits& limits);
  void relieve();
  Status fit(uint64_t ceiling, uint64_t bound, uint64_t most_moved);
  Status move_arena(stream::ResidencyPlan residency, uint64_t most_moved);

  const Model::Impl& model_;
  Sizing& sizing_;
  stream::Ledger& ledger_;
  stream::PieceStore& store_;
  const std::function<void(std::string_view)> log_, warn_;
  const std::string root_;
  const std::optional<uint64_t> first_memory_, first_budget_;

  // Under mutex_; what the thread that steps alone writes it reads without.
  mutable std::mutex mutex_;
  uint64_t fixed_;                                     // everything but weights
  uint64_t tables_;                                    // page tables in it
  Limits asked_;                                       // the last that was accepted
  std::atomic<bool> pending_{false};                   // asked_ is not in force yet
  bool ceiling_asked_ = false, budget_asked_ = false;  // which part of it is not
  std::string error_;
  uint64_t changes_ = 0;
  double longest_s_ = 0;
  PressureReport report_;

  Limits now_;
  std::unique_ptr<stream::PressureMonitor> monitor_;  // null: off
  stream::Governor governor_;
  std::unique_ptr<io::PageCache> cache_;  // null: reads do not go through it
  bool dropping_ = false;
};

}  // namespace millrace
