// What is said of repeated measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace millrace::cli {

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// The median of what was measured side by side.
inline double paired_ratio(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    if (theirs[i] > 0) ratios.push_back(ours[i] / theirs[i]);
  return median(std::move(ratios));
}

}  // namespace millrace::cli
