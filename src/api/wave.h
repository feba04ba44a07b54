// How many prompt rows pass through the model at once.
//
// Each pass reads every streamed weight that its rows need once, so fewer, larger passes read less; their
// activations take memory in which weights could stay.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "api/model_impl.h"
#include "base/status.h"
#include "stream/residency.h"

namespace millrace {

// Weight bytes that a pass over `rows` rows touches and reads from the disk, if routing were uniform.
struct Traffic {
  double touched = 0, read = 0;
};
Traffic pass_traffic(const Model::Impl& model, const stream::ResidencyPlan& residency,
                     uint32_t rows);

struct WaveLimits {
  uint32_t smallest = 1, context = 1;
  uint64_t most_activations = 0;
  std::function<uint64_t(uint32_t chunk)> activations;  // bytes
  // What could lie in memory beside them; an error when nothing runs.
  std::function<Expected<stream::ResidencyPlan>(uint32_t chunk)> residency;
};
struct Wave {
  uint32_t rows = 0;
  std::string why;
};
Wave choose_wave(const Model::Impl& model, const WaveLimits& limits);

}  // namespace millrace
