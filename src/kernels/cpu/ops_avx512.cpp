// The operations in AVX-512: attention in 16 lanes, the rest in the eight of AVX2, which are as fast
// (docs/experiments/kernels-avx512.md).
#include "kernels/cpu/vec_avx2.h"
//
#include "kernels/cpu/ops_math.h"
//
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/ops_impl.h"
//
#include "kernels/cpu/attention_avx512.h"

namespace millrace::kernels::avx512 {

const Ops& ops() {
  static constexpr Ops kOps = [] {
    Ops ops = make_ops("avx512");
    ops.attention = attention_wide;
    ops.attention_group = attention_group_wide;
    return ops;
  }();
  return kOps;
}

}  // namespace millrace::kernels::avx512
