// The dispatch ladder of the matrix products.
#include "kernels/matmul.h"

#include <fmt/format.h>

#include <cassert>
#include <cctype>

#include "kernels/cpu/kernels.h"
#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

using format::WeightFormat;

bool is_float(const format::WeightLayout& layout) { return !format::takes_int8(layout); }

// What a ladder is built over.
struct Kind {
  WeightFormat format;
  uint8_t bits;  // affine
};

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (int i = 0; i < format::kWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    if (format != WeightFormat::kAffine) kinds.push_back({format, 0});
  }
  for (const uint8_t bits : {2, 3, 4, 5, 6, 8}) kinds.push_back({WeightFormat::kAffine, bits});
  return kinds;
}

// "q4_k_i8_avx2"
std::string kernel_name(const Kind& kind, Activations activations, Isa isa) {
  std::string weights(format::name(kind.format));
  for (char& c : weights) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return fmt::format("{}{}_{}_{}", weights, kind.bits != 0 ? fmt::format("{}", kind.bits) : "",
                     activations == Activations::kInt8 ? "i8" : "f32", name(isa));
}

class Ladder {
 public:
  // One rung for every kind that `find` has a function for.
  template <class Find>
  void add(Isa isa, Activations activations, Find find) {
    for (const Kind& kind : kinds_) {
      if (const MatmulFn run = find(kind)) {
        list_.push_back(
            {kernel_name(kind, activations, isa), isa, activations, kind.format, kind.bits, run});
      }
    }
  }
  void add_scalar(Activations activations, const char* name, MatmulFn run) {
    list_.push_back({name, Isa::kScalar, activations, std::nullopt, 0, run});
  }
  std::vector<MatmulKernel> take() { return std::move(list_); }

 private:
  std::vector<Kind> kinds_ = all_kinds();
  std::vector<MatmulKernel> list_;
};

// The int8 kernels of a set that keeps them in three files.
using ByFormat = MatmulFn (*)(WeightFormat);
using ByBits = MatmulFn (*)(uint8_t);
[[maybe_unused]] auto int8_of(ByFormat block32, ByFormat kquants, ByBits affine) {
  return [=](const Kind& kind) {
    if (kind.format == WeightFormat::kAffine) return affine(kind.bits);
    const MatmulFn run = block32(kind.format);
    return run != nullptr ? run : kquants(kind.format);
  };
}
[[maybe_unused]] auto of_format(ByFormat find) {
  return [=](const Kind& kind) { return find(kind.format); };
}

std::vector<MatmulKernel> build_ladder() {
  Ladder ladder;
#if defined(__x86_64__)
  ladder.add(Isa::kAvx512Vnni, Activations::kInt8,
             int8_of(avx512_vnni::block32_i8, avx512_vnni::kquants_i8, avx512_vnni::affine_i8));
  ladder.add(Isa::kAvx512, Activations::kF32, of_format(avx512::floats_f32));
  ladder.add(Isa::kAvx2, Activations::kInt8,
             int8_of(avx2::block32_i8, avx2::kquants_i8, avx2::affine_i8));
  ladder.add(Isa::kAvx2, Activations::kF32, of_format(avx2::floats_f32));
  ladder.add(Isa::kAvx2, Activations::kF32,
             [](const Kind& kind) { return avx2::quant_f32(kind.format, kind.bits); });
#elif defined(__aarch64__)
  ladder.add(Isa::kNeonI8mm, Activations::kInt8,
             int8_of(neon_i8mm::block32_i8, neon_i8mm::kquants_i8, neon_i8mm::affine_i8));
  ladder.add(Isa::kNeonDotprod, Activations::kInt8,
             int8_of(neon_dotprod::block32_i8, neon_dotprod::kquants_i8, neon_dotprod::affine_i8));
  ladder.add(Isa::kNeon, Activations::kInt8,
             int8_of(neon::block32_i8, neon::kquants_i8, neon::affine_i8));
  ladder.add(Isa::kNeon, Activations::kF32, of_format(neon::floats_f32));
  ladder.add(Isa::kNeon, Activations::kF32,
             [](const Kind& kind) { return neon::quant_f32(kind.format, kind.bits); });
#endif
  ladder.add_scalar(Activations::kInt8, "i8_scalar", scalar::matmul_i8);
  ladder.add_scalar(Activations::kF32, "f32_scalar", scalar::matmul_f32);
  return ladder.take();
}

}  // namespace

bool MatmulKernel::fits(const format::WeightLayout& layout, Activations wanted) const {
  if (is_float(layout)) wanted = Activations::kF32;
  if (activations != wanted) return false;
  return !format || (*format == layout.format && (bits == 0 || bits == layout.bits));
}

const std::vector<MatmulKernel>& matmul_kernels() {
  static const std::vector<MatmulKernel> kernels = build_ladder();
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

std::string rungs_not_taken(const format::WeightLayout& layout, Activations activations,
                            const Cpu& cpu, const Cpu& machine) {
  std::string missing, unused;
  for (const MatmulKernel& kernel : matmul_kernels()) {
    if (!kernel.fits(layout, activations)) continue;
    if (cpu.has(kernel.isa)) break;
    std::string& list = machine.has(kernel.isa) ? unused : missing;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", name(kernel.isa));
  }
  if (!missing.empty()) missing += ": not on this processor";
  if (!unused.empty()) unused += ": not to be used";
  return missing + (missing.empty() || unused.empty() ? "" : "; ") + unused;
}

void quantize_row(const float* x, uint32_t cols, int8_t* q, float* scale, int16_t* sum) {
  scalar_ops().quantize_row(x, cols, q, scale, sum);
}

}  // namespace millrace::kernels
