// Int8 products of the affine formats.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_avx512.h"

namespace millrace::kernels::avx512_vnni {

MatmulFn affine_i8(uint8_t bits) {
  switch (bits) {
    case 2:
      return matmul_i8_vnni<affine(2)>;
    case 3:
      return matmul_i8_vnni<affine(3)>;
    case 4:
      return matmul_i8_vnni<affine(4)>;
    case 5:
      return matmul_i8_vnni<affine(5)>;
    case 6:
      return matmul_i8_vnni<affine(6)>;
    case 8:
      return matmul_i8_vnni<affine(8)>;
    default:
      return nullptr;
  }
}

}  // namespace millrace::kernels::avx512_vnni
