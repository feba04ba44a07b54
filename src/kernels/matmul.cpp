// The dispatch ladder of the matrix products.
#include "kernels/matmul.h"

#include <cassert>

#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

bool is_float(const format::WeightLayout& layout) { return format::code_bits(layout) == 0; }

bool any_i8(const format::WeightLayout& layout, Activations activations, const Cpu&) {
  return activations == Activations::kInt8 && !is_float(layout);
}
bool any_f32(const format::WeightLayout& layout, Activations activations, const Cpu&) {
  return activations == Activations::kF32 || is_float(layout);
}

}  // namespace

const std::vector<MatmulKernel>& matmul_kernels() {
  static const std::vector<MatmulKernel> kernels = [] {
    std::vector<MatmulKernel> list;
    list.push_back({"i8_scalar", any_i8, scalar::matmul_i8});
    list.push_back({"f32_scalar", any_f32, scalar::matmul_f32});
    return list;
  }();
  return kernels;
}

const MatmulKernel& select_matmul(const format::WeightLayout& layout, Activations activations,
                                  const Cpu& cpu) {
  const std::vector<MatmulKernel>& kernels = matmul_kernels();
  for (const MatmulKernel& kernel : kernels) {
    if (kernel.supports(layout, activations, cpu)) return kernel;
  }
  assert(false && "the scalar kernels support everything");
  return kernels.back();
}

void quantize_row(const float* x, uint32_t cols, int8_t* q, float* scale, int16_t* sum) {
  scalar_ops().quantize_row(x, cols, q, scale, sum);
}

}  // namespace millrace::kernels
