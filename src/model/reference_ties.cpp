#include "model/reference_ties.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace millrace::model {

void reference_top_k(std::span<const float> scores, uint32_t length, uint32_t k, uint32_t* index) {
  std::vector<std::pair<float, int64_t>> row(length);
  for (uint32_t i = 0; i < length; ++i)
    row[i] = {i < scores.size() ? scores[i] : -std::numeric_limits<float>::infinity(), i};
  const auto larger = [](const auto& a, const auto& b) { return a.first > b.first; };
  const auto cut = row.begin() + k;
  if (uint64_t{k} * 64 <= length) {
    std::partial_sort(row.begin(), cut, row.end(), larger);
  } else {
    std::nth_element(row.begin(), cut - 1, row.end(), larger);
  }
  for (uint32_t i = 0; i < k; ++i) index[i] = static_cast<uint32_t>(row[i].second);
}

}  // namespace millrace::model
