// Int8 products of the affine formats.
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_i8_avx2.h"

namespace millrace::kernels::avx2 {
void affine2_i8(const MatmulArgs& args) { matmul_i8<affine(2)>(args); }
void affine3_i8(const MatmulArgs& args) { matmul_i8<affine(3)>(args); }
void affine4_i8(const MatmulArgs& args) { matmul_i8<affine(4)>(args); }
void affine5_i8(const MatmulArgs& args) { matmul_i8<affine(5)>(args); }
void affine6_i8(const MatmulArgs& args) { matmul_i8<affine(6)>(args); }
void affine8_i8(const MatmulArgs& args) { matmul_i8<affine(8)>(args); }

}  // namespace millrace::kernels::avx2
