// Int8 products of the formats with blocks of 256.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_neon.h"

namespace millrace::kernels::neon_dotprod {

MatmulFn kquants_i8(format::WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ2_K:
      return matmul_i8<kQ2_K>;
    case WeightFormat::kQ3_K:
      return matmul_i8<kQ3_K>;
    case WeightFormat::kQ4_K:
      return matmul_i8<kQ4_K>;
    case WeightFormat::kQ5_K:
      return matmul_i8<kQ5_K>;
    case WeightFormat::kQ6_K:
      return matmul_i8<kQ6_K>;
    case WeightFormat::kIQ4_XS:
      return matmul_i8<kIQ4_XS>;
    default:
      return nullptr;
  }
}

}  // namespace millrace::kernels::neon_dotprod
