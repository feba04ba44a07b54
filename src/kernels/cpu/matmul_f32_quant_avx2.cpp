// Products of quantized weights with float activations: for reference checks, speed is secondary.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_f32_avx2.h"

namespace millrace::kernels::avx2 {

void q4_0_f32(const MatmulArgs& args) { matmul_quant_f32<kQ4_0>(args); }
void q4_1_f32(const MatmulArgs& args) { matmul_quant_f32<kQ4_1>(args); }
void q5_0_f32(const MatmulArgs& args) { matmul_quant_f32<kQ5_0>(args); }
void q5_1_f32(const MatmulArgs& args) { matmul_quant_f32<kQ5_1>(args); }
void q8_0_f32(const MatmulArgs& args) { matmul_quant_f32<kQ8_0>(args); }
void iq4_nl_f32(const MatmulArgs& args) { matmul_quant_f32<kIQ4_NL>(args); }
void mxfp4_f32(const MatmulArgs& args) { matmul_quant_f32<kMXFP4>(args); }
void fp8_e4m3_f32(const MatmulArgs& args) { matmul_quant_f32<kFP8_E4M3>(args); }
void nvfp4_f32(const MatmulArgs& args) { matmul_quant_f32<kNVFP4>(args); }
void q2_k_f32(const MatmulArgs& args) { matmul_quant_f32<kQ2_K>(args); }
void q3_k_f32(const MatmulArgs& args) { matmul_quant_f32<kQ3_K>(args); }
void q4_k_f32(const MatmulArgs& args) { matmul_quant_f32<kQ4_K>(args); }
void q5_k_f32(const MatmulArgs& args) { matmul_quant_f32<kQ5_K>(args); }
void q6_k_f32(const MatmulArgs& args) { matmul_quant_f32<kQ6_K>(args); }
void iq4_xs_f32(const MatmulArgs& args) { matmul_quant_f32<kIQ4_XS>(args); }
void affine2_f32(const MatmulArgs& args) { matmul_quant_f32<affine(2)>(args); }
void affine3_f32(const MatmulArgs& args) { matmul_quant_f32<affine(3)>(args); }
void affine4_f32(const MatmulArgs& args) { matmul_quant_f32<affine(4)>(args); }
void affine5_f32(const MatmulArgs& args) { matmul_quant_f32<affine(5)>(args); }
void affine6_f32(const MatmulArgs& args) { matmul_quant_f32<affine(6)>(args); }
void affine8_f32(const MatmulArgs& args) { matmul_quant_f32<affine(8)>(args); }

}  // namespace millrace::kernels::avx2
