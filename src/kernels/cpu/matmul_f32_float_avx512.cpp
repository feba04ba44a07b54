// Products of float weights.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_f32_avx512.h"

namespace millrace::kernels::avx512 {

MatmulFn floats_f32(format::WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return matmul_float_wide<WeightFormat::kF32>;
    case WeightFormat::kF16:
      return matmul_float_wide<WeightFormat::kF16>;
    case WeightFormat::kBF16:
      return matmul_float_wide<WeightFormat::kBF16>;
    default:
      return nullptr;
  }
}

}  // namespace millrace::kernels::avx512
