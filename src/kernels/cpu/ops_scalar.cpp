// The operations in portable C++: they define the bits.
#include "kernels/cpu/vec_scalar.h"
//
#include "kernels/cpu/ops_math.h"
//
#include "kernels/cpu/ops_impl.h"

namespace millrace::kernels {

const Ops& scalar_ops() {
  static constexpr Ops kOps = make_ops("scalar");
  return kOps;
}

}  // namespace millrace::kernels
