// Packed rows back to f32, with the operations and roundings of each format's reference: the gguf
// package for GGUF blocks, mx.dequantize with f32 scales for affine.
#include <bit>

#include "base/numeric.h"
#include "format/block_codecs.h"

namespace millrace::format {
namespace {

// The 32 codes of a group as bytes.
void unpack_codes(uint32_t bits, const uint8_t* words, uint8_t* codes) {
  Codes c = {};
  switch (bits) {
    case 2:
      c = load_codes<2>(words);
      break;
    case 3:
      c = load_codes<3>(words);
      break;
    case 4:
      c = load_codes<4>(words);
      break;
    case 5:
      c = load_codes<5>(words);
      break;
    case 6:
      c = load_codes<6>(words);
      break;
    default:
      c = load_codes<8>(words);
      break;
  }
  std::memcpy(codes, c.half, kGroup);
}

float head_value(const WeightLayout& layout, const uint8_t* at) {
  if (layout.format == WeightFormat::kF32 || layout.format == WeightFormat::kFP8_E4M3 ||
      layout.format == WeightFormat::kNVFP4) {
    return std::bit_cast<float>(load32(at));
  }
  if (layout.format == WeightFormat::kBF16) return bf16_to_f32(load16(at));
  if (layout.format == WeightFormat::kAffine) {
    if (layout.scale_type == ScaleType::kF32) return std::bit_cast<float>(load32(at));
    if (layout.scale_type == ScaleType::kBF16) return bf16_to_f32(load16(at));
  }
  return f16_to_f32(load16(at));
}

template <class Value>
void each(const uint8_t* codes, float* out, Value value) {
  for (uint32_t i = 0; i < kGroup; ++i) out[i] = value(codes[i]);
}

// `scale` of the first and of the second 16 positions.
template <class Value>
void each_half(const uint8_t* codes, float first, float second, float* out, Value value) {
  for (uint32_t i = 0; i < kGroup; ++i) out[i] = value(i < 16 ? first : second, codes[i]);
}

// One group. `head`: d and dmin or m, or scale and bias; `scales`: the group's scale bytes.
void group_values(WeightFormat format, const float* head, const uint8_t* scales,
                  const uint8_t* codes, float* out) {
  const float d = head[0], m = head[1];
  switch (format) {
    case WeightFormat::kQ4_0:
      return each(codes, out, [=](int c) { return d * static_cast<float>(c - 8); });
    case WeightFormat::kQ5_0:
      return each(codes, out, [=](int c) { return d * static_cast<float>(c - 16); });
    case WeightFormat::kQ8_0:
      return each(codes, out,
                  [=](uint8_t c) { return d * static_cast<float>(static_cast<int8_t>(c)); });
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kAffine:
      return each(codes, out, [=](int c) { return d * static_cast<float>(c) + m; });
    case WeightFormat::kIQ4_NL:
      return each(codes, out, [=](int c) { return d * static_cast<float>(kIQ4Values[c]); });
    case WeightFormat::kMXFP4: {
      // Half of the scale, for a doubled table. 255 is NaN as in the OCP definition; the references
      // disagree with it and with each other there (gguf: 2^127, mlx: infinity), and no writer
      // emits it.
      const float e = e8m0_to_f32(scales[0]) * 0.5f;
      return each(codes, out, [=](int c) { return e * static_cast<float>(kE2M1Doubled[c]); });
    }
    case WeightFormat::kIQ4_XS: {
      const float ds = d * static_cast<float>(scales[0] - 32);
      return each(codes, out, [=](int c) { return ds * static_cast<float>(kIQ4Values[c]); });
    }
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K: {
      const float ds = d * static_cast<float>(scales[0]), ms = m * static_cast<float>(scales[1]);
      return each(codes, out, [=](int c) { return ds * static_cast<float>(c) - ms; });
    }
    case WeightFormat::kQ6_K:
      return each_half(codes, d * static_cast<float>(static_cast<int8_t>(scales[0])),
                       d * static_cast<float>(static_cast<int8_t>(scales[1])), out,
                       [](float ds, int c) { return ds * static_cast<float>(c - 32); });
    case WeightFormat::kQ3_K:
      return each_half(codes, d * static_cast<float>(scales[0] - 32),
                       d * static_cast<float>(scales[1] - 32), out,
                       [](float ds, int c) { return ds * static_cast<float>(c - 4); });
    case WeightFormat::kQ2_K:
      for (uint32_t i = 0; i < kGroup; ++i) {
        const int s = scales[i / 16];
        const float ds = d * static_cast<float>(s & 15), ms = m * static_cast<float>(s >> 4);
        out[i] = ds * static_cast<float>(codes[i]) - ms;
      }
      return;
    case WeightFormat::kFP8_E4M3:
      return each(codes, out, [=](uint8_t c) { return e4m3_to_f32(c) * d; });
    case WeightFormat::kNVFP4: {
      // Half of the scale, for a doubled table.
      const float half = d * 0.5f;
      return each_half(codes, half * e4m3_to_f32(scales[0]), half * e4m3_to_f32(scales[1]), out,
                       [](float ds, int c) { return ds * static_cast<float>(kE2M1Doubled[c]); });
    }
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return;  // have no groups
  }
}

}  // namespace

void dequantize_row(const WeightLayout& layout, const std::byte* packed, uint32_t row, float* out) {
  const RecordShape shape = record_shape(layout);
  const uint32_t cols = block_cols(layout), bits = code_bits(layout);
  const uint64_t bytes = block_bytes(layout);
  const auto* block =
      reinterpret_cast<const uint8_t*>(packed) + row / kTileRows * tile_bytes(layout);
  const uint32_t lane = row % kTileRows;
  alignas(8) uint8_t record[kMaxRecord];
  uint8_t codes[kGroup];
  for (uint32_t at = 0; at < layout.cols; at += cols, block += bytes) {
    separate_row(shape, block, lane, record);
    float head[2] = {0, 0};
    for (uint32_t i = 0; i < shape.heads; ++i)
      head[i] = head_value(layout, record + shape.head_width * i);
    if (shape.groups == 0) out[at] = head[0];
    const uint8_t* group = record + shape.head_bytes();
    for (uint32_t g = 0; g < shape.groups; ++g, group += shape.group_bytes()) {
      unpack_codes(bits, group + shape.scales, codes);
      group_values(layout.format, head, group, codes, out + at + kGroup * g);
    }
  }
}

}  // namespace millrace::format
