// Which tensors, of which shapes, a layer of a spec needs.
#pragma once

#include <vector>

#include "format/piece.h"
#include "model/spec.h"

namespace millrace::model {

struct Want {
  format::Role role;
  uint32_t rows = 0, cols = 0;  // rows == 0: a vector of cols elements
  bool optional = false;
  uint32_t inner = 0;  // a vector whose source has two axes: [cols / inner, inner]
  int head = -1;       // which of a stack of heads
};

std::vector<Want> mixer_wants(const ModelSpec& spec, const LayerSpec& layer);
std::vector<Want> ffn_wants(const ModelSpec& spec,
                            const LayerSpec& layer);  // dense, or router and shared expert
std::vector<Want> expert_wants(const ModelSpec& spec, const FfnSpec& ffn);  // one routed expert

}  // namespace millrace::model
