// Reading packed blocks one value at a time (format/layout.h): what the scalar kernels are made of.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/numeric.h"
#include "format/layout.h"

namespace millrace::kernels::scalar {

inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}
inline float load_f32(const uint8_t* p) {
  float v;
  std::memcpy(&v, p, 4);
  return v;
}
inline float load_f16(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

// Element `i` of an array of float scales.
inline float load_scale(const uint8_t* p, uint32_t i, format::ScaleType type) {
  switch (type) {
    case format::ScaleType::kF32:
      return load_f32(p + 4 * i);
    case format::ScaleType::kF16:
      return f16_to_f32(load_u16(p + 2 * i));
    case format::ScaleType::kBF16:
      return bf16_to_f32(load_u16(p + 2 * i));
  }
  return 0.0f;
}
inline uint32_t scale_bytes(format::ScaleType type) {
  return type == format::ScaleType::kF32 ? 4 : 2;
}

// The unsigned code of row `row` at inner position `k` (0..31) of a group's planes.
inline uint32_t code_at(const uint8_t* planes, uint32_t bits, uint32_t row, uint32_t k) {
  const uint32_t chunk = k / 4;
  const uint32_t lane = 4 * row + k % 4;
  const auto plane4 = [&](const uint8_t* p) -> uint32_t {
    return (p[32 * (chunk % 4) + lane] >> (4 * (chunk / 4))) & 15u;
  };
  const auto plane2 = [&](const uint8_t* p) -> uint32_t {
    return (p[32 * (chunk % 2) + lane] >> (2 * (chunk / 2))) & 3u;
  };
  const auto plane1 = [&](const uint8_t* p) -> uint32_t { return (p[lane] >> chunk) & 1u; };
  switch (bits) {
    case 2:
      return plane2(planes);
    case 3:
      return plane2(planes) | plane1(planes + 64) << 2;
    case 4:
      return plane4(planes);
    case 5:
      return plane4(planes) | plane1(planes + 128) << 4;
    case 6:
      return plane4(planes) | plane2(planes + 128) << 4;
    default:
      return planes[32 * chunk + lane];
  }
}

}  // namespace millrace::kernels::scalar
