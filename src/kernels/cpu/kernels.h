// The functions behind the ladders (kernels/matmul.cpp, ops.cpp), by instruction set.
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
void fp8_e4m3_f32(const MatmulArgs& args);
void nvfp4_f32(const MatmulArgs& args);
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

// In the sets below a function gives its file's kernels by format (affine: by bits); null for what
// is not in it.

namespace avx512 {
const Ops& ops();
MatmulFn floats_f32(format::WeightFormat format);
}  // namespace avx512

namespace avx512_vnni {
MatmulFn block32_i8(format::WeightFormat format);
MatmulFn kquants_i8(format::WeightFormat format);
MatmulFn affine_i8(uint8_t bits);
}  // namespace avx512_vnni

namespace neon {
const Ops& ops();
MatmulFn floats_f32(format::WeightFormat format);
MatmulFn quant_f32(format::WeightFormat format, uint8_t bits);
MatmulFn block32_i8(format::WeightFormat format);
MatmulFn kquants_i8(format::WeightFormat format);
MatmulFn affine_i8(uint8_t bits);
}  // namespace neon

namespace neon_dotprod {
MatmulFn block32_i8(format::WeightFormat format);
MatmulFn kquants_i8(format::WeightFormat format);
MatmulFn affine_i8(uint8_t bits);
}  // namespace neon_dotprod

namespace neon_i8mm {
MatmulFn block32_i8(format::WeightFormat format);
MatmulFn kquants_i8(format::WeightFormat format);
MatmulFn affine_i8(uint8_t bits);
}  // namespace neon_i8mm

}  // namespace millrace::kernels
