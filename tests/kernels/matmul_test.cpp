// Every (format, activations, instruction set) gives the bits of the scalar kernel at every number
// of rows and every edge of the shape, and the scalar kernel is near the exact product.
#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "bench/cases.h"
#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

using bench::RandomRows;
using bench::RandomWeight;
using bench::Scales;
using bench::with_shape;
using format::WeightLayout;

constexpr float kUntouched = 12345.0f;

// Under an emulator: every format on every kernel, but fewer shapes and numbers of rows.
bool fewer_shapes() { return std::getenv("MILLRACE_FEWER_SHAPES") != nullptr; }

std::vector<float> product(const MatmulKernel& kernel, const Weight& weight, const Rows& rows) {
  const uint32_t n = weight.layout.rows;
  const uint64_t stride = n + 3;  // room to see writes past the end
  std::vector<float> out(rows.count * stride, kUntouched);
  MatmulArgs args;
  args.weight = weight;
  args.rows = rows;
  args.out = out.data();
  args.out_stride = stride;
  args.tile_end = (n + 7) / 8;
  kernel.run(args);
  return out;
}

// The same bits; NaNs only have to be NaNs.
bool same(const float* a, const float* b, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    if (std::memcmp(a + i, b + i, 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

std::vector<uint32_t> cols_of(const WeightLayout& layout) {
  const uint32_t block = format::block_cols(layout);
  if (block == 1) return {1, 7, 32, 67, 256};
  if (fewer_shapes()) return {block == 256 ? 512 : 3 * block};
  std::vector<uint32_t> all;
  for (uint32_t cols : {32u, 64u, 256u, 288u, 768u}) {
    if (cols % block == 0) all.push_back(cols);
  }
  return all;
}

std::vector<Activations> activations_of(const WeightLayout& layout) {
  if (!format::takes_int8(layout)) return {Activations::kF32};
  return {Activations::kInt8, Activations::kF32};
}

class EveryFormat : public testing::TestWithParam<bench::Case> {};

// For each kernel of the ladder that runs here.
template <class F>
void for_kernels(const WeightLayout& layout, F&& f) {
  const Cpu cpu = Cpu::detect();
  for (const Activations activations : activations_of(layout)) {
    const MatmulKernel& scalar = select_matmul(layout, activations, Cpu::scalar());
    for (const MatmulKernel& kernel : matmul_kernels()) {
      if (!kernel.supports(layout, activations, cpu)) continue;
      f(scalar, kernel);
    }
  }
}

void expect_scalar_bits(const WeightLayout& layout, Scales scales, bool saturated, uint64_t seed) {
  constexpr uint32_t kMost = 33;
  const RandomWeight weight(layout, scales, seed);
  RandomRows rows(kMost, layout.cols, seed + 1);
  if (saturated && format::takes_int8(layout)) rows.saturate();
  for_kernels(layout, [&](const MatmulKernel& scalar, const MatmulKernel& kernel) {
    const std::vector<float> expected = product(scalar, weight.weight(), rows.rows());
    const uint64_t stride = layout.rows + 3;
    for (uint32_t count = 1; count <= kMost; ++count) {
      if (fewer_shapes() && count > 5 && count != 16 && count < kMost) continue;
      const uint32_t begin = (kMost - count) / 2;
      const std::vector<float> got = product(kernel, weight.weight(), rows.rows(begin, count));
      ASSERT_TRUE(same(got.data(), expected.data() + begin * stride, count * stride))
          << kernel.name << " rows " << layout.rows << " cols " << layout.cols << " count "
          << count;
    }
  });
}

TEST_P(EveryFormat, BitsOfScalarAtInnerEdges) {
  for (const uint32_t cols : cols_of(GetParam().layout)) {
    expect_scalar_bits(with_shape(GetParam().layout, 19, cols), Scales::kOrdinary, false, cols);
  }
}

TEST_P(EveryFormat, BitsOfScalarAtOutputEdges) {
  const uint32_t cols = std::max(format::block_cols(GetParam().layout), 32u);
  for (uint32_t rows = 1; rows <= 17; ++rows) {
    if (fewer_shapes() && rows != 3 && rows != 9) continue;
    expect_scalar_bits(with_shape(GetParam().layout, rows, cols), Scales::kOrdinary, false, rows);
  }
  if (fewer_shapes()) return;
  expect_scalar_bits(with_shape(GetParam().layout, 69, cols), Scales::kOrdinary, false, 3);
}

TEST_P(EveryFormat, BitsOfScalarAtExtremes) {
  const uint32_t cols = std::max(format::block_cols(GetParam().layout), 128u);
  for (uint64_t seed = 0; seed < (fewer_shapes() ? 2 : 4); ++seed) {
    expect_scalar_bits(with_shape(GetParam().layout, 24, 2 * cols), Scales::kExtreme, seed % 2 == 0,
                       seed);
    expect_scalar_bits(with_shape(GetParam().layout, 24, cols), Scales::kOrdinary, true, seed);
  }
}

TEST_P(EveryFormat, TileRangesCompose) {
  const WeightLayout layout =
      with_shape(GetParam().layout, 75, std::max(format::block_cols(GetParam().layout), 32u));
  const RandomWeight weight(layout, Scales::kOrdinary, 5);
  const RandomRows rows(5, layout.cols, 6);
  for_kernels(layout, [&](const MatmulKernel&, const MatmulKernel& kernel) {
    const std::vector<float> expected = product(kernel, weight.weight(), rows.rows());
    const uint64_t stride = layout.rows + 3;
    std::vector<float> out(rows.rows().count * stride, kUntouched);
    const uint32_t cuts[] = {0, 1, 4, 9, 10};
    for (int i = 0; i < 4; ++i) {
      kernel.run({weight.weight(), rows.rows(), out.data(), stride, cuts[i], cuts[i + 1]});
    }
    EXPECT_TRUE(same(out.data(), expected.data(), out.size())) << kernel.name;
  });
}

// The exact product of dequantized weights and activations, and the tolerance: half an ulp of each
// partial sum (about terms * 2^-24 * sum of magnitudes), plus half a code of activation rounding.
TEST_P(EveryFormat, ScalarIsNearTheExactProduct) {
  const WeightLayout layout =
      with_shape(GetParam().layout, 16, std::max(format::block_cols(GetParam().layout), 32u) * 3);
  const RandomWeight weight(layout, Scales::kOrdinary, 7);
  const RandomRows random(4, layout.cols, 8);
  const Rows rows = random.rows();
  std::vector<float> w(layout.cols);
  for (const Activations activations : activations_of(layout)) {
    const MatmulKernel& kernel = select_matmul(layout, activations, Cpu::scalar());
    const std::vector<float> out = product(kernel, weight.weight(), rows);
    for (uint32_t n = 0; n < layout.rows; ++n) {
      format::dequantize_row(layout, weight.data(), n, w.data());
      for (uint32_t r = 0; r < rows.count; ++r) {
        double exact = 0.0, sizes = 0.0, rounding = 0.0;
        for (uint32_t k = 0; k < layout.cols; ++k) {
          const double x = rows.f32[r * rows.stride + k];
          exact += w[k] * x;
          sizes += std::fabs(w[k] * x);
          if (activations == Activations::kInt8) {
            rounding += std::fabs(w[k]) * 0.5001 * rows.scale[(r * layout.cols + k) / 32];
          }
        }
        // Affine and k-quant terms cancel (scale * dot against bias * sum): allow for their sizes.
        const double tolerance = rounding + sizes * layout.cols * 0x1p-22 + 1e-4 * rounding;
        EXPECT_NEAR(out[r * (layout.rows + 3) + n], exact, tolerance) << kernel.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Matmul, EveryFormat,
                         testing::ValuesIn(bench::all_cases(fewer_shapes() ? bench::Scope::kEachOnce
                                                                           : bench::Scope::kAll)),
                         [](const auto& tested) { return tested.param.name; });

TEST(Matmul, LadderNeverEndsEmpty) {
  const Cpu cpu = Cpu::detect();
  for (const bench::Case& c : bench::all_cases()) {
    for (const Activations a : {Activations::kInt8, Activations::kF32}) {
      EXPECT_NE(select_matmul(c.layout, a, Cpu::scalar()).run, nullptr);
      EXPECT_TRUE(select_matmul(c.layout, a, Cpu::scalar()).name.ends_with("_scalar"));
      EXPECT_EQ(rungs_not_taken(c.layout, a, cpu, cpu).find("not to be used"), std::string::npos);
      // Every SIMD processor has a kernel of its own for every format.
      const bool simd = cpu.avx2 || cpu.neon;
      EXPECT_EQ(select_matmul(c.layout, a, cpu).isa != Isa::kScalar, simd);
      if (!cpu.avx2) continue;
      auto avx2 = cpu.limited_to("avx2");
      ASSERT_TRUE(avx2);
      EXPECT_TRUE(select_matmul(c.layout, a, *avx2).name.ends_with("_avx2"));
      EXPECT_NE(rungs_not_taken(c.layout, a, Cpu::scalar(), cpu).find("avx2: not to be used"),
                std::string::npos);
      EXPECT_NE(rungs_not_taken(c.layout, a, Cpu::scalar(), Cpu::scalar()).find("avx2: not on"),
                std::string::npos);
    }
  }
}

void expect_quantized(const Ops& ops) {
  std::vector<float> x(32 * 7, 0.0f);
  for (int i = 0; i < 32; ++i) {
    x[static_cast<size_t>(32 + i)] = static_cast<float>(i - 16);  // amax 16 at the first
    x[static_cast<size_t>(64 + i)] = 0x1p-130f;                   // too small to scale: zeros
    x[static_cast<size_t>(96 + i)] = 1.0f;
    x[static_cast<size_t>(128 + i)] = 3.4e38f;
    x[static_cast<size_t>(160 + i)] = 0x1p-118f;
  }
  x[100] = std::numeric_limits<float>::quiet_NaN();
  x[200] = -std::numeric_limits<float>::infinity();
  std::vector<int8_t> q(x.size(), 55);
  std::vector<float> scale(7, 55.0f);
  std::vector<int16_t> sum(14, 55);
  ops.quantize_row(x.data(), static_cast<uint32_t>(x.size()), q.data(), scale.data(), sum.data());
  EXPECT_EQ(scale[0], 0.0f);
  EXPECT_EQ(q[0], 0);
  EXPECT_EQ(scale[1], 16.0f / 127.0f);
  EXPECT_EQ(q[32], -127);
  EXPECT_EQ(q[32 + 31], 119);  // 15 * 127 / 16 = 119.06
  EXPECT_EQ(q[32 + 20], 32);   // 31.75
  EXPECT_EQ(scale[2], 0.0f);
  EXPECT_TRUE(std::isnan(scale[3]));
  EXPECT_EQ(q[97], 0);
  EXPECT_EQ(q[130], 127);
  EXPECT_EQ(scale[4], 3.4e38f / 127.0f);
  EXPECT_EQ(q[161], 127);
  EXPECT_TRUE(std::isnan(scale[6]));
  for (size_t g = 0; g < 14; ++g) {
    int total = 0;
    for (size_t i = 0; i < 16; ++i) total += q[16 * g + i];
    EXPECT_EQ(sum[g], total);
  }
}

TEST(Quantize, CodesScalesAndSums) {
  for (const OpsRung& rung : ops_ladder()) {
    if (Cpu::detect().has(rung.isa)) expect_quantized(*rung.ops);
  }
}

}  // namespace
}  // namespace millrace::kernels
