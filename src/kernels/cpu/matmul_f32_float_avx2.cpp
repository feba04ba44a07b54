// Products of float weights.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_f32_avx2.h"

namespace millrace::kernels::avx2 {

void f32_f32(const MatmulArgs& args) { matmul_float<WeightFormat::kF32>(args); }
void f16_f32(const MatmulArgs& args) { matmul_float<WeightFormat::kF16>(args); }
void bf16_f32(const MatmulArgs& args) { matmul_float<WeightFormat::kBF16>(args); }

}  // namespace millrace::kernels::avx2
