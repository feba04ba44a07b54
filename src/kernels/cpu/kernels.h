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
// <weights>_<activations>
void f32_f32(const MatmulArgs& args);
void f16_f32(const MatmulArgs& args);
void bf16_f32(const MatmulArgs& args);
void q4_0_i8(const MatmulArgs& args);
void q4_0_f32(const MatmulArgs& args);
void q4_1_i8(const MatmulArgs& args);
void q4_1_f32(const MatmulArgs& args);
void q5_0_i8(const MatmulArgs& args);
void q5_0_f32(const MatmulArgs& args);
void q5_1_i8(const MatmulArgs& args);
void q5_1_f32(const MatmulArgs& args);
void q8_0_i8(const MatmulArgs& args);
void q8_0_f32(const MatmulArgs& args);
void iq4_nl_i8(const MatmulArgs& args);
void iq4_nl_f32(const MatmulArgs& args);
void mxfp4_i8(const MatmulArgs& args);
void mxfp4_f32(const MatmulArgs& args);
void q2_k_i8(const MatmulArgs& args);
void q2_k_f32(const MatmulArgs& args);
void q3_k_i8(const MatmulArgs& args);
void q3_k_f32(const MatmulArgs& args);
void q4_k_i8(const MatmulArgs& args);
void q4_k_f32(const MatmulArgs& args);
void q5_k_i8(const MatmulArgs& args);
void q5_k_f32(const MatmulArgs& args);
void q6_k_i8(const MatmulArgs& args);
void q6_k_f32(const MatmulArgs& args);
void iq4_xs_i8(const MatmulArgs& args);
void iq4_xs_f32(const MatmulArgs& args);
void affine2_i8(const MatmulArgs& args);
void affine2_f32(const MatmulArgs& args);
void affine3_i8(const MatmulArgs& args);
void affine3_f32(const MatmulArgs& args);
void affine4_i8(const MatmulArgs& args);
void affine4_f32(const MatmulArgs& args);
void affine5_i8(const MatmulArgs& args);
void affine5_f32(const MatmulArgs& args);
void affine6_i8(const MatmulArgs& args);
void affine6_f32(const MatmulArgs& args);
void affine8_i8(const MatmulArgs& args);
void affine8_f32(const MatmulArgs& args);
}  // namespace avx2

}  // namespace millrace::kernels
