// Every format against its own reference package, bit for bit (fixtures: make_format_fixtures.py).
#include <cmath>

#include "base/numeric.h"
#include "format_test_util.h"

namespace millrace::format {
namespace {

// Packs a whole matrix straight from a fixture and compares every dequantized row with `values`.
void expect_values(const Fixture& fixture, const ModelSource& source, const WeightView& view,
                   const float* values) {
  auto extents = view_extents(source, view);
  ASSERT_TRUE(extents) << extents.error().message;
  std::array<std::span<const std::byte>, 3> from;
  const auto all = std::as_bytes(std::span(fixture.bytes));
  for (size_t i = 0; i < 3; ++i) from[i] = all.subspan((*extents)[i].offset, (*extents)[i].bytes);
  std::vector<std::byte> packed(view_bytes(view));
  pack_view(source, view, from, packed);
  std::vector<float> row(view.layout.cols);
  for (uint32_t r = 0; r < view.layout.rows; ++r) {
    dequantize_row(view.layout, packed.data(), r, row.data());
    for (uint32_t c = 0; c < view.layout.cols; ++c) {
      float want;
      std::memcpy(&want, values + uint64_t{r} * view.layout.cols + c, 4);
      // The sign and payload of a NaN depend on operand order of the machine instruction.
      if (std::isnan(want) && std::isnan(row[c])) continue;
      // The doubled e2m1 table is of integers, so minus zero reads as zero.
      if (view.layout.format == WeightFormat::kMXFP4 && want == 0 && row[c] == 0) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(want), std::bit_cast<uint32_t>(row[c]))
          << name(view.layout.format) << " row " << r << " col " << c << ": " << row[c] << ", want "
          << want;
    }
  }
}

class GgufBlocks : public ::testing::TestWithParam<SourceType> {};

TEST_P(GgufBlocks, MatchReference) {
  const Fixture fixture("gguf_blocks.safetensors");
  const std::string type(info(GetParam()).name);
  ModelSource source = fixture.source;
  SourceTensor& blocks = source.tensors[fixture.index(type + ".blocks")];
  blocks.type = GetParam();
  blocks.shape[1] =
      blocks.shape[1] / info(blocks.type).block_bytes * info(blocks.type).block_elements;
  WeightView view;
  view.weight = fixture.index(type + ".blocks");
  auto layout = layout_of(source, view.weight, kNoTensor, kNoTensor, {});
  ASSERT_TRUE(layout) << layout.error().message;
  view.layout = *layout;
  expect_values(fixture, source, view,
                reinterpret_cast<const float*>(fixture.data(type + ".values")));
}

INSTANTIATE_TEST_SUITE_P(AllTypes, GgufBlocks,
                         ::testing::Values(SourceType::kQ4_0, SourceType::kQ4_1, SourceType::kQ5_0,
                                           SourceType::kQ5_1, SourceType::kQ8_0, SourceType::kQ2_K,
                                           SourceType::kQ3_K, SourceType::kQ4_K, SourceType::kQ5_K,
                                           SourceType::kQ6_K, SourceType::kIQ4_NL,
                                           SourceType::kIQ4_XS, SourceType::kMXFP4),
                         [](const auto& test) {
                           return std::string(format::info(test.param).name);
                         });

void expect_affine(const Fixture& fixture, const std::string& key, int bits, int group) {
  WeightView view;
  view.weight = fixture.index(key + ".weight");
  view.scales = fixture.index(key + ".scales");
  view.biases = fixture.index(key + ".biases");
  QuantParams quant;
  quant.bits = static_cast<uint8_t>(bits);
  quant.group = static_cast<uint16_t>(group);
  auto layout = layout_of(fixture.source, view.weight, view.scales, view.biases, quant);
  ASSERT_TRUE(layout) << layout.error().message;
  view.layout = *layout;
  expect_values(fixture, fixture.source, view,
                reinterpret_cast<const float*>(fixture.data(key + ".values")));
}

TEST(MlxAffine, MatchesReference) {
  const Fixture fixture("mlx_affine.safetensors");
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      const std::string key = fmt::format("b{}g{}", bits, group);
      SCOPED_TRACE(key);
      expect_affine(fixture, key, bits, group);
      if (group == 64) expect_affine(fixture, key + ".bf16", bits, group);
    }
  }
}

TEST(MlxMxFp4, MatchesReference) {
  const Fixture fixture("mlx_mxfp4.safetensors");
  WeightView view;
  view.weight = fixture.index("weight");
  view.scales = fixture.index("scales");
  auto layout = layout_of(fixture.source, view.weight, view.scales, kNoTensor, {.mxfp4 = true});
  ASSERT_TRUE(layout) << layout.error().message;
  view.layout = *layout;
  const auto* values = reinterpret_cast<const float*>(fixture.data("values"));
  expect_values(fixture, fixture.source, view, values);

  // The same bytes as gpt-oss keeps them: u8 [rows, groups, 16].
  ModelSource blocks = fixture.source;
  SourceTensor& weight = blocks.tensors[view.weight];
  weight.type = SourceType::kU8;
  weight.shape = {weight.shape[0], weight.shape[1] / 4, 16};
  expect_values(fixture, blocks, view, values);
}

TEST(MxFp4, Scale255IsNan) {
  MemoryModel model;
  std::mt19937 random(1);
  WeightView view;
  view.weight = model.add(SourceType::kMXFP4, {1, 32}, random);
  model.bytes[0] = std::byte{255};
  view.layout = *layout_of(model.source, view.weight, kNoTensor, kNoTensor, {});
  std::vector<std::byte> packed(view_bytes(view));
  pack_view(model.source, view, model.spans(*view_extents(model.source, view)), packed);
  float row[32];
  dequantize_row(view.layout, packed.data(), 0, row);
  for (const float value : row) EXPECT_TRUE(std::isnan(value));
}

TEST(FloatRows, KeepTheirBits) {
  std::mt19937 random(2);
  for (const SourceType type : {SourceType::kF32, SourceType::kF16, SourceType::kBF16}) {
    MemoryModel model;
    WeightView view;
    view.weight = model.add(type, {11, 70}, random);
    view.layout = *layout_of(model.source, view.weight, kNoTensor, kNoTensor, {});
    std::vector<std::byte> packed(view_bytes(view));
    pack_view(model.source, view, model.spans(*view_extents(model.source, view)), packed);
    std::vector<float> row(70);
    for (uint32_t r = 0; r < 11; ++r) {
      dequantize_row(view.layout, packed.data(), r, row.data());
      for (uint32_t c = 0; c < 70; ++c) {
        const std::byte* at = model.bytes.data() + (r * 70 + c) * info(type).block_bytes;
        uint32_t wide;
        uint16_t half;
        std::memcpy(&wide, at, info(type).block_bytes == 4 ? 4 : 2);
        std::memcpy(&half, at, 2);
        const float want = type == SourceType::kF32   ? std::bit_cast<float>(wide)
                           : type == SourceType::kF16 ? f16_to_f32(half)
                                                      : bf16_to_f32(half);
        ASSERT_EQ(std::bit_cast<uint32_t>(want), std::bit_cast<uint32_t>(row[c]));
      }
    }
  }
}

}  // namespace
}  // namespace millrace::format
