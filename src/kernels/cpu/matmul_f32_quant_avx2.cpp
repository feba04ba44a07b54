// Products of quantized weights with float activations: for reference checks, speed is secondary; and of
// float codes, which take no others.
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_f32_avx2.h"

namespace millrace::kernels::avx2 {
namespace {

struct Quantized {
  template <Traits T>
  static constexpr MatmulFn of = matmul_quant_f32<T>;
};

}  // namespace

MatmulFn quant_f32(format::WeightFormat format, uint8_t bits) {
  return quant_of<Quantized>(format, bits);
}

}  // namespace millrace::kernels::avx2
