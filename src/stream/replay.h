// Runs a policy over a recorded trace, as the store would have: hits, misses, and what the best
// possible choice (Belady's) would have reached.
#pragma once

#include <optional>

#include "stream/policy.h"
#include "stream/trace.h"

namespace millrace::stream {

struct ReplayResult {
  uint64_t uses = 0, hits = 0;  // an expert that fires for several rows of a pass is used once
  double hit_rate() const {
    return uses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(uses);
  }
};

struct ReplayOptions {
  uint32_t slots = 0;       // experts that can be resident, of all layers together
  uint32_t skip_steps = 0;  // passes over the model that warm up and are not counted
};

// Without a policy: Belady's. At least `used` slots.
Expected<ReplayResult> replay(const Trace& trace, std::optional<PolicyKind> policy,
                              const ReplayOptions& options);

}  // namespace millrace::stream
