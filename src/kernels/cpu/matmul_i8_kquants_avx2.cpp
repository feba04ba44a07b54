// Int8 products of the formats with blocks of 256.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_avx2.h"

namespace millrace::kernels::avx2 {
void q2_k_i8(const MatmulArgs& args) { matmul_i8<kQ2_K>(args); }
void q3_k_i8(const MatmulArgs& args) { matmul_i8<kQ3_K>(args); }
void q4_k_i8(const MatmulArgs& args) { matmul_i8<kQ4_K>(args); }
void q5_k_i8(const MatmulArgs& args) { matmul_i8<kQ5_K>(args); }
void q6_k_i8(const MatmulArgs& args) { matmul_i8<kQ6_K>(args); }
void iq4_xs_i8(const MatmulArgs& args) { matmul_i8<kIQ4_XS>(args); }

}  // namespace millrace::kernels::avx2
