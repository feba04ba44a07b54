// pack_view writes the layout of layout.h, and unpack_view is its inverse for every bit pattern.
#include "format_test_util.h"

namespace millrace::format {
namespace {

struct Case {
  std::string label;
  SourceType type = SourceType::kF32;
  uint8_t bits = 0;    // affine
  uint16_t group = 0;  // affine
  SourceType scale = SourceType::kF32;
  enum { kPlain, kAffine, kMxFp4Words, kMxFp4Blocks, kFp8, kNvfp4 } kind = kPlain;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const SourceType type :
       {SourceType::kF32, SourceType::kF16, SourceType::kBF16, SourceType::kQ4_0, SourceType::kQ4_1,
        SourceType::kQ5_0, SourceType::kQ5_1, SourceType::kQ8_0, SourceType::kQ2_K,
        SourceType::kQ3_K, SourceType::kQ4_K, SourceType::kQ5_K, SourceType::kQ6_K,
        SourceType::kIQ4_NL, SourceType::kIQ4_XS, SourceType::kMXFP4}) {
    Case plain;
    plain.label = info(type).name;
    plain.type = type;
    cases.push_back(plain);
  }
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      for (const SourceType scale : {SourceType::kF32, SourceType::kF16, SourceType::kBF16}) {
        Case affine;
        affine.label = fmt::format("affine{}g{}_{}", bits, group, info(scale).name);
        affine.bits = static_cast<uint8_t>(bits);
        affine.group = static_cast<uint16_t>(group);
        affine.scale = scale;
        affine.kind = Case::kAffine;
        cases.push_back(affine);
      }
    }
  }
  Case words, blocks;
  words.label = "mxfp4_words";
  words.kind = Case::kMxFp4Words;
  blocks.label = "mxfp4_blocks";
  blocks.kind = Case::kMxFp4Blocks;
  cases.push_back(words);
  cases.push_back(blocks);
  for (const SourceType scale : {SourceType::kF32, SourceType::kF16, SourceType::kBF16}) {
    Case fp8;
    fp8.label = fmt::format("fp8_{}", info(scale).name);
    fp8.scale = scale;
    fp8.kind = Case::kFp8;
    cases.push_back(fp8);
  }
  Case nvfp4;
  nvfp4.label = "nvfp4";
  nvfp4.kind = Case::kNvfp4;
  cases.push_back(nvfp4);
  return cases;
}

// A stack of `matrices` random matrices of the case's format, and the view of all rows of one.
WeightView add_case(MemoryModel& model, const Case& c, uint64_t matrices, uint64_t rows,
                    uint64_t cols, std::mt19937& random) {
  WeightView view;
  QuantParams quant;
  switch (c.kind) {
    case Case::kPlain:
      view.weight = model.add(c.type, {matrices, rows, cols}, random);
      break;
    case Case::kAffine:
      view.weight = model.add(SourceType::kU32, {matrices, rows, cols * c.bits / 32}, random);
      view.scales = model.add(c.scale, {matrices, rows, cols / c.group}, random);
      view.biases = model.add(c.scale, {matrices, rows, cols / c.group}, random);
      quant.bits = c.bits;
      quant.group = c.group;
      break;
    case Case::kMxFp4Words:
      view.weight = model.add(SourceType::kU32, {matrices, rows, cols / 8}, random);
      view.scales = model.add(SourceType::kU8, {matrices, rows, cols / 32}, random);
      quant.mxfp4 = true;
      break;
    case Case::kMxFp4Blocks:
      view.weight = model.add(SourceType::kU8, {matrices, rows, cols / 32, 16}, random);
      view.scales = model.add(SourceType::kU8, {matrices, rows, cols / 32}, random);
      quant.mxfp4 = true;
      break;
    case Case::kFp8:
      // A ragged last row and column of scales.
      quant.scale_rows = view.scale_rows = 11;
      quant.scale_cols = view.scale_cols = 96;
      view.weight = model.add(SourceType::kF8E4M3, {matrices, rows, cols}, random);
      view.scales = model.add(c.scale, {matrices, (rows + 10) / 11, (cols + 95) / 96}, random);
      break;
    case Case::kNvfp4:
      view.weight = model.add(SourceType::kU8, {matrices, rows, cols / 2}, random);
      view.scales = model.add(SourceType::kF8E4M3, {matrices, rows, cols / 16}, random);
      view.biases = model.add(SourceType::kF32, {matrices}, random);
      break;
  }
  auto layout = layout_of(model.source, view.weight, view.scales, view.biases, quant);
  EXPECT_TRUE(layout) << layout.error().message;
  if (layout) view.layout = *layout;
  return view;
}

// Packs, unpacks over a background pattern, and expects the source bytes where the view covers them
// and the pattern elsewhere. `covered` says which bytes of extent 0.. belong to the view.
template <class Covered>
void expect_round_trip(const MemoryModel& model, const WeightView& view, Covered covered) {
  auto extents = view_extents(model.source, view);
  ASSERT_TRUE(extents) << extents.error().message;
  const auto from = model.spans(*extents);
  std::vector<std::byte> packed(view_bytes(view), std::byte{0xcd});
  pack_view(model.source, view, from, packed);
  std::array<std::vector<std::byte>, 3> back;
  std::array<std::span<std::byte>, 3> to;
  for (size_t i = 0; i < 3; ++i) {
    back[i].assign(from[i].size(), std::byte{0xa5});
    to[i] = back[i];
  }
  unpack_view(model.source, view, packed, to);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t at = 0; at < back[i].size(); ++at) {
      const std::byte want = !only_read(view, i) && covered(i, at) ? from[i][at] : std::byte{0xa5};
      ASSERT_EQ(back[i][at], want) << "extent " << i << " byte " << at;
    }
  }
}

class AllFormats : public ::testing::TestWithParam<Case> {};

TEST_P(AllFormats, UnpackingIsTheInverse) {
  std::mt19937 random(3);
  for (const uint64_t rows : {1, 7, 8, 9, 24}) {
    MemoryModel model;
    WeightView view = add_case(model, GetParam(), 3, rows, 512, random);
    for (view.index = 0; view.index < 3; ++view.index) {
      expect_round_trip(model, view, [](size_t, size_t) { return true; });
    }
  }
}

TEST_P(AllFormats, RowRangesAndSteps) {
  std::mt19937 random(4);
  MemoryModel model;
  WeightView view = add_case(model, GetParam(), 2, 22, 256, random);
  view.index = 1;
  view.row_begin = 1;
  view.row_step = 2;
  view.layout.rows = 10;
  auto extents = view_extents(model.source, view);
  ASSERT_TRUE(extents) << extents.error().message;
  std::array<uint64_t, 3> row_bytes;
  for (size_t i = 0; i < 3; ++i) row_bytes[i] = (*extents)[i].bytes / 19;
  expect_round_trip(model, view, [&](size_t i, size_t at) { return at / row_bytes[i] % 2 == 0; });
  // Every row is what the same row of the whole matrix is.
  WeightView whole = view;
  whole.row_begin = 0;
  whole.row_step = 1;
  whole.layout.rows = 22;
  std::vector<std::byte> packed(view_bytes(view)), all(view_bytes(whole));
  pack_view(model.source, view, model.spans(*extents), packed);
  pack_view(model.source, whole, model.spans(*view_extents(model.source, whole)), all);
  std::vector<float> got(256), want(256);
  for (uint32_t r = 0; r < 10; ++r) {
    dequantize_row(view.layout, packed.data(), r, got.data());
    dequantize_row(whole.layout, all.data(), 1 + 2 * r, want.data());
    ASSERT_EQ(std::memcmp(got.data(), want.data(), 1024), 0) << "row " << r;
  }
}

TEST_P(AllFormats, PaddingRowsAreZero) {
  std::mt19937 random(5);
  MemoryModel model;
  const WeightView view = add_case(model, GetParam(), 1, 11, 256, random);
  std::vector<std::byte> packed(view_bytes(view), std::byte{0xcd});
  pack_view(model.source, view, model.spans(*view_extents(model.source, view)), packed);
  std::vector<float> values(256);
  WeightLayout whole_tiles = view.layout;
  whole_tiles.rows = 16;
  for (uint32_t row = 11; row < 16; ++row) {
    dequantize_row(whole_tiles, packed.data(), row, values.data());
    // Codes of 0 are not always values of 0, but scales are.
    ASSERT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return v == 0; })) << row;
  }
  if (only_read(view, 1) || only_read(view, 2)) return;  // rows of zeros would have a scale
  // A matrix of the same rows and zeros packs to the same bytes.
  MemoryModel padded;
  WeightView full = add_case(padded, GetParam(), 1, 16, 256, random);
  for (const auto& [to, from] :
       {std::pair(full.weight, view.weight), std::pair(full.scales, view.scales),
        std::pair(full.biases, view.biases)}) {
    if (to == kNoTensor) continue;
    const SourceTensor& target = padded.source.tensors[to];
    const SourceTensor& origin = model.source.tensors[from];
    std::fill_n(padded.bytes.begin() + static_cast<ptrdiff_t>(target.offset), target.bytes,
                std::byte{0});
    std::copy_n(model.bytes.begin() + static_cast<ptrdiff_t>(origin.offset), origin.bytes,
                padded.bytes.begin() + static_cast<ptrdiff_t>(target.offset));
  }
  std::vector<std::byte> want(view_bytes(full));
  pack_view(padded.source, full, padded.spans(*view_extents(padded.source, full)), want);
  EXPECT_EQ(packed, want);
}

INSTANTIATE_TEST_SUITE_P(Formats, AllFormats, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param.label; });

TEST(Transposed, FloatsRoundTripAndMatch) {
  std::mt19937 random(6);
  for (const SourceType type : {SourceType::kF32, SourceType::kF16, SourceType::kBF16}) {
    const uint64_t cols = 37, rows = 22;
    MemoryModel model;
    WeightView view;
    view.weight = model.add(type, {2, cols, rows}, random);
    view.layout = *layout_of(model.source, view.weight, kNoTensor, kNoTensor, {});
    view.layout.cols = cols;
    view.layout.rows = 10;
    view.transposed = true;
    view.index = 1;
    view.row_begin = 1;
    view.row_step = 2;
    const uint64_t width = info(type).block_bytes;
    expect_round_trip(model, view, [&](size_t, size_t at) {
      const uint64_t row = at / width % rows;
      return row % 2 == 0 && row / 2 < 10;
    });
    std::vector<std::byte> packed(view_bytes(view));
    pack_view(model.source, view, model.spans(*view_extents(model.source, view)), packed);
    for (uint64_t r = 0; r < 10; ++r) {
      for (uint64_t k = 0; k < cols; ++k) {
        const std::byte* want = model.bytes.data() + ((cols + k) * rows + 1 + 2 * r) * width;
        const std::byte* got =
            packed.data() + r / 8 * tile_bytes(view.layout) + (k * 8 + r % 8) * width;
        ASSERT_EQ(std::memcmp(got, want, width), 0);
      }
    }
  }
}

TEST(Transposed, ScalarIsOneByOne) {  // found by fuzz_view
  std::mt19937 random(10);
  MemoryModel model;
  WeightView view;
  view.weight = model.add(SourceType::kF32, {}, random);
  view.layout = *layout_of(model.source, view.weight, kNoTensor, kNoTensor, {});
  view.transposed = true;
  expect_round_trip(model, view, [](size_t, size_t) { return true; });
}

TEST(Vectors, AreCopiedWithIndexAndStep) {
  std::mt19937 random(7);
  for (const SourceType type : {SourceType::kF32, SourceType::kF16, SourceType::kBF16}) {
    MemoryModel model;
    WeightView view;
    view.vector = true;
    view.weight = model.add(type, {3, 20}, random);
    view.layout = *layout_of(model.source, view.weight, kNoTensor, kNoTensor, {});
    view.layout.rows = 1;
    view.layout.cols = 20;
    view.index = 2;
    const uint64_t width = info(type).block_bytes;
    ASSERT_EQ(view_bytes(view), 20 * width);
    expect_round_trip(model, view, [](size_t, size_t) { return true; });
    view.layout.cols = 9;
    view.row_begin = 1;
    view.row_step = 2;
    expect_round_trip(model, view, [&](size_t, size_t at) { return at / width % 2 == 0; });
    std::vector<std::byte> packed(view_bytes(view));
    pack_view(model.source, view, model.spans(*view_extents(model.source, view)), packed);
    for (size_t i = 0; i < 9; ++i) {
      const std::byte* want = model.bytes.data() + (40 + 1 + 2 * i) * width;
      EXPECT_EQ(std::memcmp(packed.data() + i * width, want, width), 0);
    }
  }
}

// The bits of code `position` of row `row` in a group's planes, spelled out from layout.h.
uint32_t code_of(const std::byte* planes, uint32_t bits, uint32_t row, uint32_t position) {
  const uint32_t chunk = position / 4, byte = 4 * row + position % 4;
  const auto at = [&](uint32_t vector) {
    return std::to_integer<uint32_t>(planes[32 * vector + byte]);
  };
  uint32_t code = 0, shift = 0;
  if (bits == 8) return at(chunk);
  if (bits >= 4) {
    code = chunk < 4 ? at(chunk) & 15 : at(chunk - 4) >> 4;
    planes += 128;
    shift = 4;
  }
  if (bits == 2 || bits == 3 || bits == 6) {
    code |= ((at(chunk % 2) >> (2 * (chunk / 2))) & 3) << shift;
    planes += 64;
    shift += 2;
  }
  if (bits == 3 || bits == 5) code |= ((at(0) >> chunk) & 1) << shift;
  return code;
}

TEST(Layout, PlanesLieAsDocumented) {
  std::mt19937 random(8);
  for (const uint32_t bits : {2u, 3u, 4u, 5u, 6u, 8u}) {
    Case c;
    c.kind = Case::kAffine;
    c.bits = static_cast<uint8_t>(bits);
    c.group = 64;
    c.scale = SourceType::kBF16;
    MemoryModel model;
    const WeightView view = add_case(model, c, 1, 8, 128, random);
    std::vector<std::byte> packed(view_bytes(view));
    pack_view(model.source, view, model.spans(*view_extents(model.source, view)), packed);
    ASSERT_EQ(block_bytes(view.layout), 32 + 2 * 32 * bits);
    for (uint32_t r = 0; r < 8; ++r) {
      for (uint32_t k = 0; k < 128; ++k) {
        uint32_t want = 0;
        for (uint32_t b = 0; b < bits; ++b) {
          const uint64_t bit = uint64_t{k} * bits + b;
          const std::byte byte = model.bytes[r * 128 * bits / 8 + bit / 8];
          want |= ((std::to_integer<uint32_t>(byte) >> (bit % 8)) & 1) << b;
        }
        const std::byte* block = packed.data() + k / 64 * block_bytes(view.layout);
        const std::byte* planes = block + 32 + k % 64 / 32 * 32 * bits;
        ASSERT_EQ(code_of(planes, bits, r, k % 32), want)
            << bits << " bits, row " << r << ", " << k;
      }
      for (uint32_t side = 0; side < 2; ++side) {
        const std::byte* scale = model.bytes.data() + model.source.tensors[1 + side].offset + 4 * r;
        EXPECT_EQ(std::memcmp(packed.data() + 16 * side + 2 * r, scale, 2), 0);
        EXPECT_EQ(
            std::memcmp(packed.data() + block_bytes(view.layout) + 16 * side + 2 * r, scale + 2, 2),
            0);
      }
    }
  }
}

TEST(Layout, KQuantScalesLieAsDocumented) {
  // q6_K: d x8, then for each group 8 scales of its first 16 and 8 of its second.
  std::mt19937 random(9);
  MemoryModel model;
  Case c;
  c.type = SourceType::kQ6_K;
  const WeightView view = add_case(model, c, 1, 8, 256, random);
  std::vector<std::byte> packed(view_bytes(view));
  pack_view(model.source, view, model.spans(*view_extents(model.source, view)), packed);
  for (uint32_t r = 0; r < 8; ++r) {
    const std::byte* block = model.bytes.data() + 210 * r;
    EXPECT_EQ(std::memcmp(packed.data() + 2 * r, block + 208, 2), 0);
    for (uint32_t g = 0; g < 8; ++g) {
      const std::byte* group = packed.data() + 16 + g * (16 + 192);
      EXPECT_EQ(group[r], block[192 + 2 * g]);
      EXPECT_EQ(group[8 + r], block[192 + 2 * g + 1]);
      for (uint32_t i = 0; i < 32; ++i) {
        const uint32_t half = g / 4, k = g % 4;
        const uint32_t low =
            std::to_integer<uint32_t>(block[64 * half + 32 * (k % 2) + i]) >> (4 * (k / 2));
        const uint32_t high = std::to_integer<uint32_t>(block[128 + 32 * half + i]) >> (2 * k);
        ASSERT_EQ(code_of(group + 16, 6, r, i), (low & 15) | (high & 3) << 4);
      }
    }
  }
}

TEST(Layout, NamesRoundTrip) {
  for (int i = 0; i < kWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    auto parsed = weight_format_from_name(name(format));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, format);
  }
  auto unknown = weight_format_from_name("q9_9");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("q9_9"), std::string::npos);
}

}  // namespace
}  // namespace millrace::format
