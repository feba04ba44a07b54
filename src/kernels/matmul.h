// Matrix products: the kernel contract.
//
// out[r, n] = sum_k W[n, k] * x[r, k]. A result depends only on row r and the weights: never on the
// number of rows, the tiles of the call, the thread or the instruction set. The scalar kernel defines
// the bits; the fixed sequence for one output is, with fma meaning one rounding:
//
//   float weights, or any format with f32 activations:
//     acc = 0; for k ascending: acc = fma(w_k, x_k, acc)            w_k = the value dequantize_row gives
//   (fp8_e4m3 and nvfp4 count as float weights: their codes are floats)
//   quantized weights with int8 activations; a group g is 32 inner positions with activation scale
//   dx[g], codes xq and sum[g] = sum of xq (int32); idot = exact integer dot of weight codes and xq:
//     q4_0 q5_0 q8_0 iq4_nl   acc = fma(d * dx, float(idot), acc)        codes after their offset/table
//     mxfp4                   acc = fma(e * dx, float(idot), acc)        doubled table, e = 2^(e8m0 - 128)
//     q4_1 q5_1               acc = fma(d * dx, float(idot), acc); acc = fma(m * dx, float(sum), acc)
//     q4_K q5_K               acc = fma(d * dx, float(sc * idot), acc); acc = fma(-(dmin * dx), float(m * sum), acc)
//     q6_K q3_K               acc = fma(d * dx, float(sc0 * idot0 + sc1 * idot1), acc)
//     q2_K                    as q6_K, then acc = fma(-(dmin * dx), float(m0 * sum0 + m1 * sum1), acc), sums of 16
//     iq4_xs                  acc = fma(d * dx, float((sc - 32) * idot), acc)
//     affine                  acc = fma(s * dx, float(idot), acc); acc = fma(b * dx, float(sum), acc)
//   groups in ascending order; acc starts at 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "format/layout.h"

namespace millrace::kernels {

struct Weight {
  format::WeightLayout layout;
  const std::byte* data = nullptr;  // packed tiles (see format/layout.h); any alignment
};

// Rows of activations. `f32` is always there; the int8 part is filled by quantize_rows.
struct Rows {
  uint32_t count = 0;
  uint32_t cols = 0;
  const float* f32 = nullptr;    // [count, stride]
  uint64_t stride = 0;           // elements between rows of f32
  const int8_t* q = nullptr;     // [count, cols rounded up to 32], codes -127..127
  const float* scale = nullptr;  // [count, cols/32]
  const int16_t* sum =
      nullptr;  // [count, cols/16]: sum of codes of each 16 (a group's sum is the two added)
};

// scale = amax / 127; code = round-to-nearest-even(x * (127 / amax)); all 0 when amax < 2^-118.
// A group that holds a NaN or an infinity gets scale NaN and codes 0, so that its outputs are NaN.
// q, scale, sum as in Rows. cols must be a multiple of 32.
void quantize_row(const float* x, uint32_t cols, int8_t* q, float* scale, int16_t* sum);

enum class Activations : uint8_t { kInt8, kF32 };

struct MatmulArgs {
  Weight weight;
  Rows rows;
  float* out = nullptr;  // [count, out_stride]
  uint64_t out_stride = 0;
  uint32_t tile_begin = 0;  // tiles of 8 outputs to compute
  uint32_t tile_end = 0;    // exclusive; the last tile writes only rows that exist
};

using MatmulFn = void (*)(const MatmulArgs&);

// A rung of the dispatch ladder. Rungs are tried in order, the first that supports the weight is
// taken.
struct MatmulKernel {
  std::string name;  // "affine4_i8_avx2"
  Isa isa = Isa::kScalar;
  Activations activations = Activations::kF32;
  std::optional<format::WeightFormat> format;  // none: any (the scalar kernels)
  uint8_t bits = 0;                            // of the affine formats
  MatmulFn run = nullptr;

  // Whether it is for such a weight, on whatever processor. Float formats always use f32.
  bool fits(const format::WeightLayout& layout, Activations wanted) const;
  bool supports(const format::WeightLayout& layout, Activations wanted, const Cpu& cpu) const {
    return cpu.has(isa) && fits(layout, wanted);
  }
};
const std::vector<MatmulKernel>& matmul_kernels();

// Chosen once per weight at load. Never null: the scalar kernels support everything.
// Float formats ignore `activations` (they always use f32).
const MatmulKernel& select_matmul(const format::WeightLayout& layout, Activations activations,
                                  const Cpu& cpu);

// The rungs above the one that `cpu` gets, and why they were not taken: they need what `machine`
// has not, or what `cpu` was told not to use (a limited copy of `machine`).
std::string rungs_not_taken(const format::WeightLayout& layout, Activations activations,
                            const Cpu& cpu, const Cpu& machine);

}  // namespace millrace::kernels
