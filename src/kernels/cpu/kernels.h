// The functions behind the ladders (kernels/matmul.cpp, ops.cpp), by instruction set.
#pragma once

#include "kernels/matmul.h"
#include "kernels/ops.h"

namespace millrace::kernels {

namespace scalar {
void matmul_f32(const MatmulArgs& args);  // any format, float activations
void matmul_i8(const MatmulArgs& args);   // quantized formats, int8 activations
}  // namespace scalar

// A set's functions give the kernels of one of its files by format (affine: by bits); null for what is
// not in it.

namespace avx2 {
const Ops& ops();
MatmulFn floats_f32(format::WeightFormat format);
MatmulFn quant_f32(format::WeightFormat format, uint8_t bits);
MatmulFn block32_i8(format::WeightFormat format);
MatmulFn kquants_i8(format::WeightFormat format);
MatmulFn affine_i8(uint8_t bits);
}  // namespace avx2

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
