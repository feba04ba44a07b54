// The operations in AVX2.
#include "kernels/cpu/vec_avx2.h"
//
#include "kernels/cpu/ops_math.h"
//
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/ops_impl.h"

namespace millrace::kernels::avx2 {

const Ops& ops() {
  static constexpr Ops kOps = make_ops("avx2");
  return kOps;
}

}  // namespace millrace::kernels::avx2
