// Reading KV blocks (kernels/kv_layout.h) in eight lanes: elements of every type as floats. Compiled
// once per instruction set (see ops_impl.h).
#pragma once

#include "kernels/kv_layout.h"

namespace millrace::kernels {
namespace {

// Codes as they lie in memory: one of eight bits, two of four.
struct Q8 {
  int8_t code;
};
struct Q4 {
  int8_t codes;
};

template <class T>
constexpr KvType kTypeOf = KvType::kF32;
template <>
constexpr KvType kTypeOf<uint16_t> = KvType::kF16;
template <>
constexpr KvType kTypeOf<Q8> = KvType::kQ8;
template <>
constexpr KvType kTypeOf<Q4> = KvType::kQ4;
template <class T>
constexpr bool kScaled = is_scaled(kTypeOf<T>);

// Channels that a row of keys, 64 elements, holds.
template <class T>
constexpr uint32_t kChannels = kTypeOf<T> == KvType::kQ4 ? 2 : 1;

template <class T>
inline const uint16_t* key_scales(const T* block, uint32_t dim) {
  return reinterpret_cast<const uint16_t*>(reinterpret_cast<const char*>(block) +
                                           kv_key_code_bytes(kTypeOf<T>, dim));
}
template <class T>
inline const uint16_t* value_scales(const T* block, uint32_t dim) {
  return reinterpret_cast<const uint16_t*>(reinterpret_cast<const char*>(block) +
                                           kv_value_code_bytes(kTypeOf<T>, dim));
}

// Eight elements of a row of keys, and the channels that are in them.
inline F8 load_elements(const float* p) { return load(p); }
inline F8 load_elements(const uint16_t* p) { return load_f16(p); }
inline I8 load_elements(const Q8* p) { return load_i8(&p->code); }
inline I8 load_elements(const Q4* p) { return load_i8(&p->codes); }

template <uint32_t kChannel>
inline F8 channel(const float*, F8 elements) {
  return elements;
}
template <uint32_t kChannel>
inline F8 channel(const uint16_t*, F8 elements) {
  return elements;
}
template <uint32_t kChannel>
inline F8 channel(const Q8*, I8 elements) {
  return to_float(elements);
}
template <uint32_t kChannel>
inline F8 channel(const Q4*, I8 elements) {
  return to_float(
      shift_right < kChannel == 0 ? 28 : 4 > (kChannel == 0 ? shift_left<28>(elements) : elements));
}

// Values: where the row of a position begins, and kVectors * 8 channels of it from `dim` on, which
// for q4 are a multiple of 16 and begin at one.
template <class T>
inline const T* value_row(const T* block, uint32_t dims, uint32_t position) {
  return block + position * (kv_value_row_bytes(kTypeOf<T>, dims) / sizeof(T));
}
template <int kVectors, class T>
inline void load_values(const T* row, uint32_t dim, F8 (&values)[kVectors]) {
  for (int j = 0; j < kVectors; ++j)
    values[j] = channel<0>(row, load_elements(row + dim + 8 * static_cast<uint32_t>(j)));
}
template <int kVectors>
inline void load_values(const Q4* row, uint32_t dim, F8 (&values)[kVectors]) {
  static_assert(kVectors % 2 == 0);
  for (int j = 0; j < kVectors; j += 2) {
    const I8 elements = load_elements(row + dim / 2 + 4 * static_cast<uint32_t>(j));
    values[j] = channel<0>(row, elements);
    values[j + 1] = channel<1>(row, elements);
  }
}

// One channel of a row.
inline float load_value(const float* row, uint32_t dim) { return row[dim]; }
inline float load_value(const uint16_t* row, uint32_t dim) {
  const uint16_t part[8] = {row[dim]};
  float wide[8];
  store(wide, load_f16(part));
  return wide[0];
}
inline float load_value(const Q8* row, uint32_t dim) { return static_cast<float>(row[dim].code); }
inline float load_value(const Q4* row, uint32_t dim) {
  const int32_t codes = row[dim / 16 * 8 + dim % 8].codes;
  return static_cast<float>(dim % 16 < 8 ? ((codes & 15) ^ 8) - 8 : codes >> 4);
}

}  // namespace
}  // namespace millrace::kernels
