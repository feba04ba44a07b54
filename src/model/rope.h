// Rotary frequencies from a config: default, linear, llama3, yarn, longrope.
#pragma once

#include "model/config.h"
#include "model/spec.h"

namespace millrace::model {

// `parameters`: one rope_parameters / rope_scaling object (may be null). `theta`: used when the
// object has no rope_theta. Source of the formulas: the YaRN, LongRoPE and Llama 3.1 publications,
// in the arithmetic of transformers.
Expected<RopeSpec> make_rope(const nlohmann::json& parameters, double theta, uint32_t dims,
                             uint32_t max_context, bool interleaved);

}  // namespace millrace::model
