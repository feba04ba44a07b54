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
  model::KvShape kv;
  model::ForwardOptions forward;
  uint64_t io_scratch = 0;  // bytes of the readers' bounce buffers
  unsigned io_threads = 4;
  std::string ceiling_source;  // "physical memory", "cgroup ...", "--memory"
};

// Never fails because of memory: then plan.fits is false and plan.why says what is missing.
Expected<Sizing> size_model(const Model::Impl& model, const EngineOptions& options);

}  // namespace millrace
