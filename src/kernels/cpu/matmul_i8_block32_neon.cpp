// Int8 products of the formats with blocks of 32.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_neon.h"

namespace millrace::kernels::neon {

MatmulFn block32_i8(format::WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_0:
      return matmul_i8<kQ4_0>;
    case WeightFormat::kQ4_1:
      return matmul_i8<kQ4_1>;
    case WeightFormat::kQ5_0:
      return matmul_i8<kQ5_0>;
    case WeightFormat::kQ5_1:
      return matmul_i8<kQ5_1>;
    case WeightFormat::kQ8_0:
      return matmul_i8<kQ8_0>;
    case WeightFormat::kIQ4_NL:
      return matmul_i8<kIQ4_NL>;
    case WeightFormat::kMXFP4:
      return matmul_i8<kMXFP4>;
    default:
      return nullptr;
  }
}

}  // namespace millrace::kernels::neon
