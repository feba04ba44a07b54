// Times forward passes of a given shape: what a decode row, a verify pass or a prompt costs on this
// machine.
#pragma once

#include <vector>

#include "millrace/millrace.h"
#include "model/forward.h"
#include "model/kv.h"

namespace millrace::decode {

struct TimerLimits {
  uint32_t context = 0, max_rows = 1, max_logit_rows = 1, prefill_chunk = 1, vocab = 0;
};

// See Engine::time_steps.
Expected<std::vector<double>> time_steps(model::Forward& forward, model::KvPool& pool,
                                         const TimerLimits& limits, const StepShape& shape,
                                         uint32_t repeats, uint64_t seed);

}  // namespace millrace::decode
