// Products with float activations: of float weights, and of quantized ones (for reference checks).
#include "kernels/cpu/matmul_f32_neon.h"

#include "kernels/cpu/kernels.h"

namespace millrace::kernels::neon {

MatmulFn floats_f32(format::WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return matmul_float<WeightFormat::kF32>;
    case WeightFormat::kF16:
      return matmul_float<WeightFormat::kF16>;
    case WeightFormat::kBF16:
      return matmul_float<WeightFormat::kBF16>;
    default:
      return nullptr;
  }
}

namespace {

MatmulFn affine_f32(uint8_t bits) {
  switch (bits) {
    case 2:
      return matmul_quant_f32<affine(2)>;
    case 3:
      return matmul_quant_f32<affine(3)>;
    case 4:
      return matmul_quant_f32<affine(4)>;
    case 5:
      return matmul_quant_f32<affine(5)>;
    case 6:
      return matmul_quant_f32<affine(6)>;
    case 8:
      return matmul_quant_f32<affine(8)>;
    default:
      return nullptr;
  }
}

}  // namespace

MatmulFn quant_f32(format::WeightFormat format, uint8_t bits) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return nullptr;
    case WeightFormat::kQ4_0:
      return matmul_quant_f32<kQ4_0>;
    case WeightFormat::kQ4_1:
      return matmul_quant_f32<kQ4_1>;
    case WeightFormat::kQ5_0:
      return matmul_quant_f32<kQ5_0>;
    case WeightFormat::kQ5_1:
      return matmul_quant_f32<kQ5_1>;
    case WeightFormat::kQ8_0:
      return matmul_quant_f32<kQ8_0>;
    case WeightFormat::kQ2_K:
      return matmul_quant_f32<kQ2_K>;
    case WeightFormat::kQ3_K:
      return matmul_quant_f32<kQ3_K>;
    case WeightFormat::kQ4_K:
      return matmul_quant_f32<kQ4_K>;
    case WeightFormat::kQ5_K:
      return matmul_quant_f32<kQ5_K>;
    case WeightFormat::kQ6_K:
      return matmul_quant_f32<kQ6_K>;
    case WeightFormat::kIQ4_NL:
      return matmul_quant_f32<kIQ4_NL>;
    case WeightFormat::kIQ4_XS:
      return matmul_quant_f32<kIQ4_XS>;
    case WeightFormat::kMXFP4:
      return matmul_quant_f32<kMXFP4>;
    case WeightFormat::kFP8_E4M3:
      return matmul_quant_f32<kFP8_E4M3>;
    case WeightFormat::kNVFP4:
      return matmul_quant_f32<kNVFP4>;
    case WeightFormat::kAffine:
      return affine_f32(bits);
  }
  return nullptr;
}

}  // namespace millrace::kernels::neon
