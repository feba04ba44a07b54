// How a model lies under a ceiling: every size decided before anything is allocated.
#pragma once

#include "api/model_impl.h"
#include "model/forward.h"
#include "model/kv.h"
#include "stream/residency.h"

namespace millrace {

struct Sizing {
  Plan plan;                        // for people
  stream::ResidencyPlan residency;  // valid when plan.fits
  stream::Demand demand;
  model::KvShape kv;
  model::ForwardOptions forward;
  uint32_t shared_chunk = 0;   // prompt rows in a step in which other requests make tokens
  uint64_t io_scratch = 0;     // bytes of the readers' bounce buffers
  unsigned io_buffers = 4;     // reads in flight, where each takes a bounce buffer
  std::string ceiling_source;  // "physical memory", "cgroup ...", "--memory"
};

struct Ceiling {
  uint64_t bytes = 0;
  std::string source;
  std::string warning;  // more was asked for; empty: it was not
};
// --memory, but no more than the machine and every cgroup above us have; without it what they leave
// now. `root`: as in EngineOptions::system_root.
Expected<Ceiling> derive_ceiling(const std::optional<uint64_t>& memory, const std::string& root);

// Bytes of page tables beyond those that every process is given.
uint64_t page_tables(uint64_t ceiling);

// Writes a residency into the plan: what of each kind is in memory, what a token reads.
void describe_residency(const Model::Impl& model, const stream::ResidencyPlan& residency, bool fits,
                        Plan* plan);

// Never fails because of memory: then plan.fits is false and plan.why says what is missing.
Expected<Sizing> size_model(const Model::Impl& model, const EngineOptions& options);

}  // namespace millrace
