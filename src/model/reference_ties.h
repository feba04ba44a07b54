// How the reference ranks equal index scores (sparse attention), for checks against its values.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::model {

// The positions that torch.topk (PyTorch 2.11, CPU) returns for the scores of one row, which stand
// in a row of `length` positions whose later ones are masked with -inf. Equal scores come in
// whatever order its selection leaves them, and that order depends on `length` too. Source of the
// algorithm: a selection of (value, index) pairs by std::nth_element, or std::partial_sort where
// 64 k <= length, with a comparison that sees the value alone. index: [k], k <= length.
void reference_top_k(std::span<const float> scores, uint32_t length, uint32_t k, uint32_t* index);

}  // namespace millrace::model
