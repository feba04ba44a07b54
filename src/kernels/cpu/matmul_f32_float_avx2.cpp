// Products of float weights.
#include "kernels/cpu/kernel_tables.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_f32_avx2.h"

namespace millrace::kernels::avx2 {
namespace {

struct Floats {
  template <WeightFormat F>
  static constexpr MatmulFn of = matmul_float<F>;
};

}  // namespace

MatmulFn floats_f32(format::WeightFormat format) { return floats_of<Floats>(format); }

}  // namespace millrace::kernels::avx2
