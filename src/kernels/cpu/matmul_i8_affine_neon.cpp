// Int8 products of the affine formats.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_neon.h"

namespace millrace::kernels::neon {

MatmulFn affine_i8(uint8_t bits) {
  switch (bits) {
    case 2:
      return matmul_i8<affine(2)>;
    case 3:
      return matmul_i8<affine(3)>;
    case 4:
      return matmul_i8<affine(4)>;
    case 5:
      return matmul_i8<affine(5)>;
    case 6:
      return matmul_i8<affine(6)>;
    case 8:
      return matmul_i8<affine(8)>;
    default:
      return nullptr;
  }
}

}  // namespace millrace::kernels::neon
