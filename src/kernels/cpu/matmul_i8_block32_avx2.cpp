// Int8 products of the formats with blocks of 32.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_avx2.h"

namespace millrace::kernels::avx2 {
void q4_0_i8(const MatmulArgs& args) { matmul_i8<kQ4_0>(args); }
void q4_1_i8(const MatmulArgs& args) { matmul_i8<kQ4_1>(args); }
void q5_0_i8(const MatmulArgs& args) { matmul_i8<kQ5_0>(args); }
void q5_1_i8(const MatmulArgs& args) { matmul_i8<kQ5_1>(args); }
void q8_0_i8(const MatmulArgs& args) { matmul_i8<kQ8_0>(args); }
void iq4_nl_i8(const MatmulArgs& args) { matmul_i8<kIQ4_NL>(args); }
void mxfp4_i8(const MatmulArgs& args) { matmul_i8<kMXFP4>(args); }

}  // namespace millrace::kernels::avx2
