// The dispatch ladder of the matrix products.
#include "kernels/matmul.h"

#include <cassert>

#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

bool is_float(const format::WeightLayout& layout) { return format::code_bits(layout) == 0; }

bool any_i8(const format::WeightLayout& layout, Activations activations, const Cpu&) {
  return activations == Activations::kInt8 && !is_float(layout);
}
bool any_f32(const format::WeightLayout& layout, Activations activations, const Cpu&) {
  return activations == Activations::kF32 || is_float(layout);
}

#if defined(__x86_64__)
using format::WeightFormat;

template <WeightFormat F, uint8_t kBits, Activations A>
bool on_avx2(const format::WeightLayout& layout, Activations activations, const Cpu& cpu) {
  const bool fits = layout.format == F && (kBits == 0 || layout.bits == kBits);
  return cpu.avx2 && fits && (activations == A || is_float(layout));
}

// kBits: of the affine formats, else 0.
template <WeightFormat F, uint8_t kBits>
void add_avx2(std::vector<MatmulKernel>& list, std::string_view i8_name, MatmulFn i8,
              std::string_view f32_name, MatmulFn f32) {
  list.push_back({i8_name, on_avx2<F, kBits, Activations::kInt8>, i8});
  list.push_back({f32_name, on_avx2<F, kBits, Activations::kF32>, f32});
}

template <WeightFormat F>
void add_avx2_float(std::vector<MatmulKernel>& list, std::string_view name, MatmulFn run) {
  list.push_back({name, on_avx2<F, 0, Activations::kF32>, run});
}

void add_avx2_kernels(std::vector<MatmulKernel>& list) {
  add_avx2_float<WeightFormat::kF32>(list, "f32_avx2", avx2::f32_f32);
  add_avx2_float<WeightFormat::kF16>(list, "f16_avx2", avx2::f16_f32);
  add_avx2_float<WeightFormat::kBF16>(list, "bf16_avx2", avx2::bf16_f32);
  add_avx2<WeightFormat::kQ4_0, 0>(list, "q4_0_i8_avx2", avx2::q4_0_i8, "q4_0_f32_avx2",
                                   avx2::q4_0_f32);
  add_avx2<WeightFormat::kQ4_1, 0>(list, "q4_1_i8_avx2", avx2::q4_1_i8, "q4_1_f32_avx2",
                                   avx2::q4_1_f32);
  add_avx2<WeightFormat::kQ5_0, 0>(list, "q5_0_i8_avx2", avx2::q5_0_i8, "q5_0_f32_avx2",
                                   avx2::q5_0_f32);
  add_avx2<WeightFormat::kQ5_1, 0>(list, "q5_1_i8_avx2", avx2::q5_1_i8, "q5_1_f32_avx2",
                                   avx2::q5_1_f32);
  add_avx2<WeightFormat::kQ8_0, 0>(list, "q8_0_i8_avx2", avx2::q8_0_i8, "q8_0_f32_avx2",
                                   avx2::q8_0_f32);
  add_avx2<WeightFormat::kIQ4_NL, 0>(list, "iq4_nl_i8_avx2", avx2::iq4_nl_i8, "iq4_nl_f32_avx2",
                                     avx2::iq4_nl_f32);
  add_avx2<WeightFormat::kMXFP4, 0>(list, "mxfp4_i8_avx2", avx2::mxfp4_i8, "mxfp4_f32_avx2",
                                    avx2::mxfp4_f32);
  add_avx2<WeightFormat::kQ2_K, 0>(list, "q2_k_i8_avx2", avx2::q2_k_i8, "q2_k_f32_avx2",
                                   avx2::q2_k_f32);
  add_avx2<WeightFormat::kQ3_K, 0>(list, "q3_k_i8_avx2", avx2::q3_k_i8, "q3_k_f32_avx2",
                                   avx2::q3_k_f32);
  add_avx2<WeightFormat::kQ4_K, 0>(list, "q4_k_i8_avx2", avx2::q4_k_i8, "q4_k_f32_avx2",
                                   avx2::q4_k_f32);
  add_avx2<WeightFormat::kQ5_K, 0>(list, "q5_k_i8_avx2", avx2::q5_k_i8, "q5_k_f32_avx2",
                                   avx2::q5_k_f32);
  add_avx2<WeightFormat::kQ6_K, 0>(list, "q6_k_i8_avx2", avx2::q6_k_i8, "q6_k_f32_avx2",
                                   avx2::q6_k_f32);
  add_avx2<WeightFormat::kIQ4_XS, 0>(list, "iq4_xs_i8_avx2", avx2::iq4_xs_i8, "iq4_xs_f32_avx2",
                                     avx2::iq4_xs_f32);
  add_avx2<WeightFormat::kAffine, 2>(list, "affine2_i8_avx2", avx2::affine2_i8, "affine2_f32_avx2",
                                     avx2::affine2_f32);
  add_avx2<WeightFormat::kAffine, 3>(list, "affine3_i8_avx2", avx2::affine3_i8, "affine3_f32_avx2",
                                     avx2::affine3_f32);
  add_avx2<WeightFormat::kAffine, 4>(list, "affine4_i8_avx2", avx2::affine4_i8, "affine4_f32_avx2",
                                     avx2::affine4_f32);
  add_avx2<WeightFormat::kAffine, 5>(list, "affine5_i8_avx2", avx2::affine5_i8, "affine5_f32_avx2",
                                     avx2::affine5_f32);
  add_avx2<WeightFormat::kAffine, 6>(list, "affine6_i8_avx2", avx2::affine6_i8, "affine6_f32_avx2",
                                     avx2::affine6_f32);
  add_avx2<WeightFormat::kAffine, 8>(list, "affine8_i8_avx2", avx2::affine8_i8, "affine8_f32_avx2",
                                     avx2::affine8_f32);
}
#endif

}  // namespace

const std::vector<MatmulKernel>& matmul_kernels() {
  static const std::vector<MatmulKernel> kernels = [] {
    std::vector<MatmulKernel> list;
#if defined(__x86_64__)
    add_avx2_kernels(list);
#endif
    list.push_back({"i8_scalar", any_i8, scalar::matmul_i8});
    list.push_back({"f32_scalar", any_f32, scalar::matmul_f32});
    return list;
  }();
  return kernels;
}

const MatmulKernel& select_matmul(const format::WeightLayout& layout, Activations activations,
                                  const Cpu& cpu) {
  const std::vector<MatmulKernel>& kernels = matmul_kernels();
  for (const MatmulKernel& kernel : kernels) {
    if (kernel.supports(layout, activations, cpu)) return kernel;
  }
  assert(false && "the scalar kernels support everything");
  return kernels.back();
}

void quantize_row(const float* x, uint32_t cols, int8_t* q, float* scale, int16_t* sum) {
  scalar_ops().quantize_row(x, cols, q, scale, sum);
}

}  // namespace millrace::kernels
