// The operations in NEON.
#include "kernels/cpu/vec_neon.h"
//
#include "kernels/cpu/ops_math.h"
//
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/ops_impl.h"

namespace millrace::kernels::neon {

const Ops& ops() {
  static constexpr Ops kOps = make_ops("neon");
  return kOps;
}

}  // namespace millrace::kernels::neon
