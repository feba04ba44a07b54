// Choice of the operations' instruction set, and the selections that have no vector form.
#include "kernels/ops.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace millrace::kernels {

const std::vector<OpsRung>& ops_ladder() {
  static const std::vector<OpsRung> ladder = {
#if defined(__x86_64__)
    {Isa::kAvx512, &avx512::ops()},
    {Isa::kAvx2, &avx2::ops()},
#elif defined(__aarch64__)
    {Isa::kNeon, &neon::ops()},
#endif
    {Isa::kScalar, &scalar_ops()},
  };
  return ladder;
}

const Ops& select_ops(const Cpu& cpu) {
  for (const OpsRung& rung : ops_ladder()) {
    if (cpu.has(rung.isa)) return *rung.ops;
  }
  return scalar_ops();
}

void top_k(const float* x, uint32_t n, uint32_t k, uint32_t* index) {
  k = std::min(k, n);
  if (k == 0) return;
  // Total order: larger first, NaN last, equal values (the two zeros too) by index.
  const auto before = [x](uint32_t a, uint32_t b) {
    const bool a_nan = x[a] != x[a], b_nan = x[b] != x[b];
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && x[a] != x[b]) return x[a] > x[b];
    return a < b;
  };
  if (k <= 32) {  // routers, argmax, top logprobs: insertion, most elements fail the first test
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; ++i) {
      if (have == k && !before(i, index[k - 1])) continue;
      uint32_t at = have < k ? have++ : k - 1;
      for (; at > 0 && before(i, index[at - 1]); --at) index[at] = index[at - 1];
      index[at] = i;
    }
    return;
  }
  std::vector<uint32_t> all(n);
  for (uint32_t i = 0; i < n; ++i) all[i] = i;
  if (k < n) std::nth_element(all.begin(), all.begin() + k, all.end(), before);
  std::sort(all.begin(), all.begin() + k, before);
  std::copy_n(all.begin(), k, index);
}

}  // namespace millrace::kernels
