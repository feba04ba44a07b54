// The functions behind the matmul ladder (kernels/matmul.cpp), by instruction set.
#pragma once

#include "kernels/matmul.h"
#include "kernels/ops.h"

namespace millrace::kernels {

namespace scalar {
void matmul_f32(const MatmulArgs& args);  // any format, float activations
void matmul_i8(const MatmulArgs& args);   // quantized formats, int8 activations
}  // namespace scalar

namespace avx2 {
const Ops& ops();
}  // namespace avx2

}  // namespace millrace::kernels
