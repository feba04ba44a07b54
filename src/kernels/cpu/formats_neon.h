// How a block of a quantized format unpacks in NEON: a tile of 8 outputs is two vectors of four, and
// a chunk (4 inner positions of 8 outputs) two vectors of 16 bytes.
//
// Codes become signed bytes, what sdot and smmla want. Values that need more than 7 bits lose 128,
// given back through the activation sums.
//
// Included by *_neon*.cpp files only; everything is local to the including file.
#pragma once

#include <arm_neon.h>

#include "kernels/cpu/format_traits.h"

namespace millrace::kernels {
namespace {

// The integer dot is the dot of the signed codes minus this times the sum of the activations.
template <Traits T>
constexpr int signed_offset() {
  return T.code == Code::kTableUnsigned ? 0 : T.offset;
}

// (v >> right) & mask on bytes; a negative `right` shifts left.
template <int kRight>
inline uint8x16_t bits_of(uint8x16_t v, int mask) {
  if constexpr (kRight > 0) v = vshrq_n_u8(v, kRight);
  if constexpr (kRight < 0) v = vshlq_n_u8(v, -kRight);
  return vandq_u8(v, vdupq_n_u8(static_cast<uint8_t>(mask)));
}

// Vector 2 c + h holds chunk c of outputs 4 h..4 h + 3.
struct Codes32 {
  int8x16_t v[16];
};

// Two bits of every chunk, landing at bit kTo, or-ed to w.
template <int kTo>
inline void add_plane2(const uint8_t* p, uint8x16_t (&w)[16]) {
  unroll<4>([&](auto v) MILLRACE_INLINE {  // chunk v / 2, half v % 2
    const uint8x16_t x = vld1q_u8(p + 16 * v);
    unroll<4>([&](auto i) MILLRACE_INLINE {
      w[v + 4 * i] = vorrq_u8(w[v + 4 * i], bits_of<2 * i - kTo>(x, 3 << kTo));
    });
  });
}

// One bit of every chunk, landing at bit kTo, or-ed to w.
template <int kTo>
inline void add_plane1(const uint8_t* p, uint8x16_t (&w)[16]) {
  unroll<2>([&](auto h) MILLRACE_INLINE {
    const uint8x16_t x = vld1q_u8(p + 16 * h);
    unroll<8>([&](auto c) MILLRACE_INLINE {
      w[2 * c + h] = vorrq_u8(w[2 * c + h], bits_of<c - kTo>(x, 1 << kTo));
    });
  });
}

template <Traits T>
inline uint8x16_t code_table() {
  if constexpr (T.code == Code::kTableSigned) {
    return vreinterpretq_u8_s8(vld1q_s8(format::kIQ4Values));
  } else if constexpr (T.code == Code::kTableUnsigned) {
    return vreinterpretq_u8_s8(vld1q_s8(format::kE2M1Doubled));
  }
  return vdupq_n_u8(0);
}

// The signed codes of a group.
template <Traits T>
inline Codes32 unpack(const uint8_t* planes, uint8x16_t table) {
  uint8x16_t w[16];
  if constexpr (T.bits == 8) {
    for (int i = 0; i < 16; ++i) w[i] = vld1q_u8(planes + 16 * i);
  } else if constexpr (T.bits >= 4) {
    for (int i = 0; i < 8; ++i) {
      const uint8x16_t x = vld1q_u8(planes + 16 * i);
      w[i] = bits_of<0>(x, 15);
      w[i + 8] = vshrq_n_u8(x, 4);
    }
  } else {
    for (int i = 0; i < 16; ++i) w[i] = vdupq_n_u8(0);
    add_plane2<0>(planes, w);
  }
  if constexpr (T.bits == 3 || T.bits == 5) {
    add_plane1<T.bits - 1>(planes + 32 * (T.bits - 1), w);
  }
  if constexpr (T.bits == 6) add_plane2<4>(planes + 128, w);
  if constexpr (T.code == Code::kFlipped) {
    for (int i = 0; i < 16; ++i) w[i] = veorq_u8(w[i], vdupq_n_u8(128));
  }
  if constexpr (T.code == Code::kTableSigned || T.code == Code::kTableUnsigned) {
    for (int i = 0; i < 16; ++i) w[i] = vqtbl1q_u8(table, w[i]);
  }
  Codes32 codes;
  for (int i = 0; i < 16; ++i) codes.v[i] = vreinterpretq_s8_u8(w[i]);
  return codes;
}

// Eight floats, one for each output of a tile.
struct Eight {
  float32x4_t v[2];
};

inline Eight half8(const uint8_t* p) {
  const uint16x8_t bits16 = vreinterpretq_u16_u8(vld1q_u8(p));
  return {{vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(bits16))),
           vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(bits16)))}};
}
inline Eight bfloat8(const uint8_t* p) {
  const uint16x8_t bits16 = vreinterpretq_u16_u8(vld1q_u8(p));
  return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits16), 16)),
           vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits16), 16))}};
}
inline Eight float8(const uint8_t* p) {
  return {{vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))}};
}
inline Eight scales8(const uint8_t* p, ScaleType type) {
  if (type == ScaleType::kF32) return float8(p);
  return type == ScaleType::kF16 ? half8(p) : bfloat8(p);
}

// Eight bytes as integers.
struct EightInts {
  int32x4_t v[2];
};
inline EightInts ints8(const uint8_t* p, bool is_signed) {
  const uint8x8_t bytes = vld1_u8(p);
  if (is_signed) {
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(bytes));
    return {{vmovl_s16(vget_low_s16(wide)), vmovl_s16(vget_high_s16(wide))}};
  }
  const uint16x8_t wide = vmovl_u8(bytes);
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(wide)))}};
}

// 2^(e - 128), NaN for 255.
inline Eight e8m0_half8(const uint8_t* p) {
  const EightInts e = ints8(p, false);
  Eight out;
  for (int h = 0; h < 2; ++h) {
    const uint32x4_t mantissa = vdupq_n_u32(0x00400000);
    uint32x4_t bits32 = vreinterpretq_u32_s32(vshlq_n_s32(e.v[h], 23));
    const uint32x4_t special =
        vorrq_u32(vceqq_s32(e.v[h], vdupq_n_s32(0)), vceqq_s32(e.v[h], vdupq_n_s32(255)));
    bits32 = vorrq_u32(bits32, vandq_u32(special, mantissa));
    out.v[h] = vmulq_f32(vreinterpretq_f32_u32(bits32), vdupq_n_f32(0.5f));
  }
  return out;
}

// e4m3 values (base/numeric.h), each in the top byte of its lane.
inline float32x4_t e4m3_of_top(int32x4_t v) {
  const uint32x4_t all = vdupq_n_u32(0x7f000000);
  const uint32x4_t x = vreinterpretq_u32_s32(v);
  const uint32x4_t magnitude = vandq_u32(x, all);
  const uint32x4_t sign = vandq_u32(x, vdupq_n_u32(0x80000000u));
  const float32x4_t small = vreinterpretq_f32_u32(vorrq_u32(vshrq_n_u32(magnitude, 4), sign));
  return vbslq_f32(vceqq_u32(magnitude, all), vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000)),
                   vmulq_f32(small, vdupq_n_f32(0x1p120f)));
}

struct BlockScales {
  Eight d, m;
};

// How a weight of the call lies in memory.
struct Shape {
  uint32_t blocks;  // of a tile
  uint32_t block_groups;
  uint32_t scale_bytes;  // affine: of one row of 8 scales
  ScaleType scale_type;
  uint64_t tile_bytes;
  uint64_t groups;  // of a row of activations
};

inline Shape shape_of(const format::WeightLayout& layout) {
  Shape shape;
  const uint32_t block_cols = format::block_cols(layout);
  shape.blocks = layout.cols / block_cols;
  shape.block_groups = block_cols / format::kGroup;
  shape.scale_bytes = layout.scale_type == ScaleType::kF32 ? 32 : 16;
  shape.scale_type = layout.scale_type;
  shape.tile_bytes = format::tile_bytes(layout);
  shape.groups = layout.cols / format::kGroup;
  return shape;
}

template <Traits T>
inline uint32_t block_header(const Shape& shape) {
  if constexpr (T.scale == Scale::kE8M0) return 8;
  if constexpr (T.scale == Scale::kF32 || T.scale == Scale::kHalfF32) return 32;
  if constexpr (T.scale == Scale::kAffine) return 2 * shape.scale_bytes;
  return T.bias ? 32 : 16;
}

template <Traits T>
inline BlockScales block_scales(const Shape& shape, const uint8_t* p) {
  BlockScales scales{};
  if constexpr (T.scale == Scale::kE8M0) {
    scales.d = e8m0_half8(p);
  } else if constexpr (T.scale == Scale::kF32 || T.scale == Scale::kHalfF32) {
    scales.d = float8(p);
    if constexpr (T.scale == Scale::kHalfF32) {
      for (float32x4_t& d : scales.d.v) d = vmulq_n_f32(d, 0.5f);
    }
  } else if constexpr (T.scale == Scale::kAffine) {
    scales.d = scales8(p, shape.scale_type);
    scales.m = scales8(p + shape.scale_bytes, shape.scale_type);
  } else {
    scales.d = half8(p);
    if constexpr (T.bias) scales.m = half8(p + 16);
  }
  return scales;
}

// The integer scales of a group: of the dots of the first and second 16 positions (`second` only
// with halves), and of the sums.
struct GroupInts {
  EightInts first, second, first_bias, second_bias;
};

template <Traits T>
inline GroupInts group_ints(const uint8_t* p) {
  GroupInts ints{};
  if constexpr (T.ints == Ints::kNone) return ints;
  ints.first = ints8(p, T.ints == Ints::kHalves);
  if constexpr (T.halves()) ints.second = ints8(p + 8, T.ints == Ints::kHalves);
  if constexpr (T.ints == Ints::kScaleMin) ints.first_bias = ints8(p + 8, false);
  for (int h = 0; h < 2; ++h) {
    if constexpr (T.ints == Ints::kNibbles) {
      const int32x4_t nibble = vdupq_n_s32(15);
      ints.first_bias.v[h] = vshrq_n_s32(ints.first.v[h], 4);
      ints.second_bias.v[h] = vshrq_n_s32(ints.second.v[h], 4);
      ints.first.v[h] = vandq_s32(ints.first.v[h], nibble);
      ints.second.v[h] = vandq_s32(ints.second.v[h], nibble);
    }
    if constexpr (T.ints == Ints::kScaleMinus32 || T.ints == Ints::kHalvesMinus32) {
      const int32x4_t minus = vdupq_n_s32(32);
      ints.first.v[h] = vsubq_s32(ints.first.v[h], minus);
      if constexpr (T.halves()) ints.second.v[h] = vsubq_s32(ints.second.v[h], minus);
    }
  }
  return ints;
}

// Outputs that exist.
inline void store_rows(float* out, const Eight& value, uint32_t count) {
  if (count >= 8) {
    vst1q_f32(out, value.v[0]);
    vst1q_f32(out + 4, value.v[1]);
    return;
  }
  float all[8];
  vst1q_f32(all, value.v[0]);
  vst1q_f32(all + 4, value.v[1]);
  for (uint32_t i = 0; i < count; ++i) out[i] = all[i];
}

}  // namespace
}  // namespace millrace::kernels
