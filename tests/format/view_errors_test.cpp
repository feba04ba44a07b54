// Views that do not fit their tensors: wrong shape, wrong type, out of bounds. Each error names the
// tensor.
#include "format_test_util.h"

namespace millrace::format {
namespace {

#define EXPECT_MENTIONS(text, what) EXPECT_NE((text).find(what), std::string::npos) << (text)

struct Model : MemoryModel {
  uint32_t add(std::string name, SourceType type, std::vector<uint64_t> shape) {
    std::mt19937 random(1);
    const uint32_t index = MemoryModel::add(type, std::move(shape), random);
    source.tensors[index].name = std::move(name);
    return index;
  }
  std::string layout_error(uint32_t weight, uint32_t scales = kNoTensor,
                           uint32_t biases = kNoTensor, QuantParams quant = {}) const {
    auto layout = layout_of(source, weight, scales, biases, quant);
    return layout ? "" : layout.error().message;
  }
  std::string error(const WeightView& view) const {
    auto extents = view_extents(source, view);
    return extents ? "" : extents.error().message;
  }
};

QuantParams affine(uint8_t bits, uint16_t group) {
  QuantParams quant;
  quant.bits = bits;
  quant.group = group;
  return quant;
}

TEST(ViewErrors, LayoutOf) {
  Model m;
  const uint32_t codes = m.add("w", SourceType::kU32, {4, 16});
  const uint32_t scales = m.add("s", SourceType::kBF16, {4, 2});
  const uint32_t biases = m.add("b", SourceType::kBF16, {4, 2});
  EXPECT_EQ(m.layout_error(codes, scales, biases, affine(4, 64)), "");
  EXPECT_MENTIONS(m.layout_error(codes), "'w': type u32 cannot be a weight");
  EXPECT_MENTIONS(m.layout_error(codes, scales, kNoTensor, affine(4, 64)), "'w'");
  EXPECT_MENTIONS(m.layout_error(codes, scales, biases), "not known");
  EXPECT_MENTIONS(m.layout_error(codes, scales, biases, affine(7, 64)), "affine weights of 7 bits");
  EXPECT_MENTIONS(m.layout_error(codes, scales, biases, affine(4, 48)), "in groups of 48");
  EXPECT_MENTIONS(m.layout_error(codes, scales, biases, affine(8, 64)), "'s'");
  EXPECT_MENTIONS(m.layout_error(codes, scales, biases, affine(3, 64)), "'w'");
  EXPECT_MENTIONS(m.layout_error(codes, codes, biases, affine(4, 64)), "must be f32, f16 or bf16");
  const uint32_t other = m.add("f", SourceType::kF16, {4, 2});
  EXPECT_MENTIONS(m.layout_error(codes, scales, other, affine(4, 64)), "'f'");
  const uint32_t few = m.add("few", SourceType::kBF16, {3, 2});
  EXPECT_MENTIONS(m.layout_error(codes, few, biases, affine(4, 64)), "'few'");
  EXPECT_MENTIONS(m.layout_error(codes, scales, few, affine(4, 64)), "'few'");
  const uint32_t plain = m.add("p", SourceType::kBF16, {4, 64});
  EXPECT_MENTIONS(m.layout_error(plain, scales, biases, affine(4, 64)), "affine codes must be u32");
  EXPECT_MENTIONS(m.layout_error(plain, kNoTensor, biases), "biases without scales");
  EXPECT_MENTIONS(m.layout_error(plain, scales, kNoTensor, {.mxfp4 = true}), "mxfp4 codes must be");
  EXPECT_MENTIONS(m.layout_error(codes, scales, kNoTensor, {.mxfp4 = true}),
                  "mxfp4 scales must be u8");
  EXPECT_MENTIONS(m.layout_error(codes, scales, biases, {.mxfp4 = true}), "have no biases");
  // 8-bit floats and nvfp4.
  const uint32_t ints8 = m.add("i8", SourceType::kI8, {3, 2});
  const uint32_t fp8 = m.add("f8", SourceType::kF8E4M3, {40, 64});
  const uint32_t squares = m.add("sq", SourceType::kF32, {3, 2});
  const QuantParams sixteen = {.scale_rows = 16, .scale_cols = 32};
  EXPECT_EQ(m.layout_error(fp8, squares, kNoTensor, sixteen), "");
  EXPECT_MENTIONS(m.layout_error(fp8, squares), "'sq'");
  EXPECT_MENTIONS(m.layout_error(fp8, ints8, kNoTensor, sixteen), "'i8'");
  EXPECT_MENTIONS(m.layout_error(fp8, squares, kNoTensor, {.scale_rows = 16, .scale_cols = 20}),
                  "multiple of 32");
  EXPECT_MENTIONS(m.layout_error(fp8), "'f8'");
  const uint32_t nibbles = m.add("n4", SourceType::kU8, {4, 32});
  const uint32_t sixteenths = m.add("n4s", SourceType::kF8E4M3, {4, 4});
  const uint32_t whole = m.add("n4w", SourceType::kF32, {});
  EXPECT_EQ(m.layout_error(nibbles, sixteenths, whole), "");
  EXPECT_MENTIONS(m.layout_error(nibbles, sixteenths), "n4.weight_scale_2");
  EXPECT_MENTIONS(m.layout_error(nibbles, sixteenths, squares), "'sq'");
  EXPECT_MENTIONS(m.layout_error(nibbles, m.add("few8", SourceType::kF8E4M3, {4, 3}), whole),
                  "'few8'");
  const uint32_t e = m.add("e", SourceType::kU8, {4, 5});
  EXPECT_MENTIONS(m.layout_error(codes, e, kNoTensor, {.mxfp4 = true}), "'e'");
  const uint32_t odd = m.add("odd", SourceType::kU32, {4, 15});
  EXPECT_MENTIONS(m.layout_error(odd, e, kNoTensor, {.mxfp4 = true}), "'odd'");
  const uint32_t ints = m.add("ids", SourceType::kI64, {4});
  EXPECT_MENTIONS(m.layout_error(ints), "'ids': type i64 cannot be a weight");
  const uint32_t empty = m.add("none", SourceType::kF32, {0, 4});
  EXPECT_MENTIONS(m.layout_error(empty), "'none'");
  EXPECT_NE(m.layout_error(999), "");
}

TEST(ViewErrors, Extents) {
  Model m;
  const uint32_t w = m.add("w", SourceType::kBF16, {2, 10, 64});
  WeightView good;
  good.weight = w;
  good.layout = *layout_of(m.source, w, kNoTensor, kNoTensor, {});
  ASSERT_EQ(m.error(good), "");
  const auto error = [&](auto change) {
    WeightView view = good;
    change(view);
    return m.error(view);
  };
  EXPECT_MENTIONS(error([](auto& v) { v.index = 2; }), "'w'");
  EXPECT_MENTIONS(error([](auto& v) { v.index = UINT64_MAX; }), "reads matrix");
  EXPECT_MENTIONS(error([](auto& v) { v.row_begin = 1; }), "reads row 10 of 10");
  EXPECT_MENTIONS(error([](auto& v) { v.row_begin = UINT32_MAX; }), "reads row");
  EXPECT_MENTIONS(error([](auto& v) { v.row_step = 2; }), "reads row 18 of 10");
  EXPECT_MENTIONS(error([](auto& v) { v.row_step = 0; }), "row step of 0");
  EXPECT_MENTIONS(error([](auto& v) { v.layout.rows = 11; }), "reads row 10 of 10");
  EXPECT_MENTIONS(error([](auto& v) { v.layout.rows = 0; }), "empty");
  EXPECT_MENTIONS(error([](auto& v) { v.layout.cols = 32; }), "expects 32 columns");
  EXPECT_MENTIONS(error([](auto& v) { v.layout.format = WeightFormat::kF16; }), "view expects f16");
  EXPECT_MENTIONS(error([](auto& v) { v.layout.format = WeightFormat::kQ4_0; }),
                  "view expects q4_0");
  EXPECT_MENTIONS(error([](auto& v) { v.transposed = true; }), "expects 64 columns");
  EXPECT_MENTIONS(error([](auto& v) { v.vector = true; }), "a vector has one row");
  EXPECT_NE(error([](auto& v) { v.weight = 7; }), "");
  EXPECT_NE(error([](auto& v) { v.scales = 0; }), "");

  const uint32_t q = m.add("q", SourceType::kQ4_0, {10, 64});
  WeightView quantized;
  quantized.weight = q;
  quantized.layout = *layout_of(m.source, q, kNoTensor, kNoTensor, {});
  quantized.transposed = true;
  EXPECT_MENTIONS(m.error(quantized), "'q'");
  quantized.transposed = false;
  quantized.vector = true;
  EXPECT_MENTIONS(m.error(quantized), "a vector must be");

  WeightView vector;
  vector.vector = true;
  vector.weight = w;
  vector.layout.format = WeightFormat::kBF16;
  vector.layout.rows = 1;
  vector.layout.cols = 64;
  vector.index = 19;
  EXPECT_EQ(m.error(vector), "");
  vector.index = 20;
  EXPECT_MENTIONS(m.error(vector), "reads matrix 20 of 20");
  vector.index = 0;
  vector.layout.cols = 65;
  EXPECT_MENTIONS(m.error(vector), "reads element 64 of 64");
  vector.layout.cols = 64;
  vector.layout.format = WeightFormat::kF32;
  EXPECT_MENTIONS(m.error(vector), "view expects f32");
}

TEST(ViewErrors, CheckLayout) {
  const auto error = [](WeightFormat format, uint32_t rows, uint32_t cols) {
    WeightLayout layout;
    layout.format = format;
    layout.rows = rows;
    layout.cols = cols;
    auto status = check_layout(layout);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(error(WeightFormat::kF32, 3, 7), "");
  EXPECT_MENTIONS(error(WeightFormat::kQ8_0, 3, 33), "not a multiple of 32");
  EXPECT_MENTIONS(error(WeightFormat::kQ6_K, 3, 128), "not a multiple of 256");
  EXPECT_MENTIONS(error(WeightFormat::kF32, UINT32_MAX, UINT32_MAX), "too large");
  EXPECT_MENTIONS(error(static_cast<WeightFormat>(99), 1, 1), "99");
}

}  // namespace
}  // namespace millrace::format
