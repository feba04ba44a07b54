// Int8 products of the formats with blocks of 256.
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_neon.h"

namespace millrace::kernels::neon {

MatmulFn kquants_i8(format::WeightFormat format) { return kquants_of<Int8>(format); }

}  // namespace millrace::kernels::neon
