// Sizes, names and checks of packed layouts.
#include "format/layout.h"

#include <array>

#include "base/numeric.h"
#include "format/block_codecs.h"

namespace millrace::format {
namespace {

struct FormatInfo {
  std::string_view name;
  uint32_t block_cols;
  uint32_t bits;
  RecordShape record;
};

// In the order of WeightFormat. Affine depends on the layout.
constexpr std::array<FormatInfo, kWeightFormats> kFormats = {{
    {"f32", 1, 0, {4, 1, 0, 0, 0}},
    {"f16", 1, 0, {2, 1, 0, 0, 0}},
    {"bf16", 1, 0, {2, 1, 0, 0, 0}},
    {"q4_0", 32, 4, Q4_0Codec::kShape},
    {"q4_1", 32, 4, Q4_1Codec::kShape},
    {"q5_0", 32, 5, Q5_0Codec::kShape},
    {"q5_1", 32, 5, Q5_1Codec::kShape},
    {"q8_0", 32, 8, Q8_0Codec::kShape},
    {"q2_K", 256, 2, Q2KCodec::kShape},
    {"q3_K", 256, 3, Q3KCodec::kShape},
    {"q4_K", 256, 4, Q4KCodec::kShape},
    {"q5_K", 256, 5, Q5KCodec::kShape},
    {"q6_K", 256, 6, Q6KCodec::kShape},
    {"iq4_nl", 32, 4, Q4_0Codec::kShape},
    {"iq4_xs", 256, 4, IQ4XSCodec::kShape},
    {"mxfp4", 32, 4, MxFp4Codec::kShape},
    {"affine", 0, 0, {}},
    {"fp8_e4m3", 32, 8, kFp8Shape},
    {"nvfp4", 32, 4, kNvfp4Shape},
}};

// Sizes of tile blocks as written in layout.h.
static_assert(8 * Q4_0Codec::kShape.bytes() == 16 + 128);
static_assert(8 * Q4_1Codec::kShape.bytes() == 32 + 128);
static_assert(8 * Q5_0Codec::kShape.bytes() == 16 + 160);
static_assert(8 * Q5_1Codec::kShape.bytes() == 32 + 160);
static_assert(8 * Q8_0Codec::kShape.bytes() == 16 + 256);
static_assert(8 * MxFp4Codec::kShape.bytes() == 8 + 128);
static_assert(8 * kFp8Shape.bytes() == 32 + 256);
static_assert(8 * kNvfp4Shape.bytes() == 32 + 16 + 128);
static_assert(8 * Q2KCodec::kShape.bytes() == 32 + 8 * (16 + 64));
static_assert(8 * Q3KCodec::kShape.bytes() == 16 + 8 * (16 + 96));
static_assert(8 * Q4KCodec::kShape.bytes() == 32 + 8 * (16 + 128));
static_assert(8 * Q5KCodec::kShape.bytes() == 32 + 8 * (16 + 160));
static_assert(8 * Q6KCodec::kShape.bytes() == 16 + 8 * (16 + 192));
static_assert(8 * IQ4XSCodec::kShape.bytes() == 16 + 8 * (8 + 128));
static_assert(Q6KCodec::kShape.bytes() <= kMaxRecord && 2 * 4 + 128 <= kMaxRecord);

const FormatInfo& format_info(WeightFormat format) { return kFormats[static_cast<size_t>(format)]; }

}  // namespace

const int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
const int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

std::string_view name(WeightFormat format) { return format_info(format).name; }

Expected<WeightFormat> weight_format_from_name(std::string_view name) {
  for (size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i].name == name) return static_cast<WeightFormat>(i);
  }
  return fail(Code::kInvalid, "unknown weight format '{}'", name);
}

RecordShape record_shape(const WeightLayout& layout) {
  if (layout.format != WeightFormat::kAffine) return format_info(layout.format).record;
  const uint32_t width = layout.scale_type == ScaleType::kF32 ? 4 : 2;
  return {width, 2, layout.group / kGroup, 0, layout.bits};
}

uint32_t block_cols(const WeightLayout& layout) {
  return layout.format == WeightFormat::kAffine ? layout.group
                                                : format_info(layout.format).block_cols;
}

uint64_t block_bytes(const WeightLayout& layout) {
  return uint64_t{kTileRows} * record_shape(layout).bytes();
}

uint64_t tile_bytes(const WeightLayout& layout) {
  return layout.cols / block_cols(layout) * block_bytes(layout);
}

uint64_t packed_bytes(const WeightLayout& layout) {
  return (uint64_t{layout.rows} + kTileRows - 1) / kTileRows * tile_bytes(layout);
}

uint32_t code_bits(const WeightLayout& layout) {
  return layout.format == WeightFormat::kAffine ? layout.bits : format_info(layout.format).bits;
}

bool takes_int8(const WeightLayout& layout) {
  return code_bits(layout) != 0 && layout.format != WeightFormat::kFP8_E4M3 &&
         layout.format != WeightFormat::kNVFP4;
}

Status check_layout(const WeightLayout& layout) {
  if (static_cast<int>(layout.format) >= kWeightFormats) {
    return fail(Code::kInvalid, "weight format {} is not known", static_cast<int>(layout.format));
  }
  if (layout.format == WeightFormat::kAffine) {
    const uint32_t bits = layout.bits, group = layout.group;
    if ((bits < 2 || bits > 6) && bits != 8) {
      return fail(Code::kUnsupported, "affine weights of {} bits (2, 3, 4, 5, 6 and 8 are)", bits);
    }
    if (group != 32 && group != 64 && group != 128) {
      return fail(Code::kUnsupported, "affine weights in groups of {} (32, 64 and 128 are)", group);
    }
    if (static_cast<int>(layout.scale_type) > static_cast<int>(ScaleType::kBF16)) {
      return fail(Code::kInvalid, "scale type {} is not known",
                  static_cast<int>(layout.scale_type));
    }
  }
  if (layout.rows == 0 || layout.cols == 0) {
    return fail(Code::kInvalid, "{} matrix of {} x {} is empty", name(layout.format), layout.rows,
                layout.cols);
  }
  if (layout.cols % block_cols(layout) != 0) {
    return fail(Code::kInvalid, "{} matrix of {} x {}: columns are not a multiple of {}",
                name(layout.format), layout.rows, layout.cols, block_cols(layout));
  }
  const uint64_t tiles = (uint64_t{layout.rows} + kTileRows - 1) / kTileRows;
  if (tile_bytes(layout) > (uint64_t{1} << 56) / tiles) {
    return fail(Code::kInvalid, "{} matrix of {} x {} is too large", name(layout.format),
                layout.rows, layout.cols);
  }
  return {};
}

}  // namespace millrace::format
