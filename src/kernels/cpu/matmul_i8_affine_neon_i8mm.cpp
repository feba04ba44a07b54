// Int8 products of the affine formats.
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_neon.h"

namespace millrace::kernels::neon_i8mm {

MatmulFn affine_i8(uint8_t bits) { return affine_of<Int8>(bits); }

}  // namespace millrace::kernels::neon_i8mm
