// Products with float activations: of float weights, and of quantized ones (for reference checks).
#include "kernels/cpu/matmul_f32_neon.h"

#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/kernels.h"

namespace millrace::kernels::neon {
namespace {

struct Floats {
  template <WeightFormat F>
  static constexpr MatmulFn of = matmul_float<F>;
};

struct Quantized {
  template <Traits T>
  static constexpr MatmulFn of = matmul_quant_f32<T>;
};

}  // namespace

MatmulFn floats_f32(format::WeightFormat format) { return floats_of<Floats>(format); }

MatmulFn quant_f32(format::WeightFormat format, uint8_t bits) {
  return quant_of<Quantized>(format, bits);
}

}  // namespace millrace::kernels::neon
