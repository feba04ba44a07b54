// What lies where in a KV block. Kernels for every instruction set include this, so that all here
// has internal linkage (see cpu/vec_avx2.h).
#pragma once

#include <cstdint>

namespace millrace::kernels {

// KV blocks hold 64 positions of one kv head. Keys are stored transposed so that lanes own
// positions when they are read, and channels when values are:
//   f16, f32   K [key_dim][64]                  V [64][value_dim]
//   q8         K [key_dim][64] int8             V [64][value_dim] int8
//   q4         K [key_dim / 2][64] bytes        V [64][value_dim / 16][8] bytes
//              of channels 2i (low four bits)   of channels 16 u + i (low) and 16 u + 8 + i (high)
//              and 2i + 1 (high)
// with two's complement codes in q8 and q4, and behind them, for K as for V, the f16 scales of 32
// channels each: [channels / 32][64]. A position shares no byte with another, so that it can be
// written while its neighbours are.
static constexpr uint32_t kKvBlock = 64;
static constexpr uint32_t kKvGroup = 32;  // channels that share a scale
enum class KvType : uint8_t { kF16, kF32, kQ8, kQ4 };

// Most channels of a head in q8 and q4: they are turned (cpu/kv_store.h) in buffers of this size.
static constexpr uint32_t kMostTurned = 1024;

static inline constexpr bool is_scaled(KvType type) {
  return type == KvType::kQ8 || type == KvType::kQ4;
}

// Bytes of the values of one position, without scales.
static inline constexpr uint64_t kv_value_row_bytes(KvType type, uint32_t dim) {
  switch (type) {
    case KvType::kF16:
      return uint64_t{dim} * 2;
    case KvType::kF32:
      return uint64_t{dim} * 4;
    case KvType::kQ8:
      return dim;
    case KvType::kQ4:
      return (uint64_t{dim} + 15) / 16 * 8;
  }
  return 0;
}

// Bytes before the scales.
static inline constexpr uint64_t kv_key_code_bytes(KvType type, uint32_t dim) {
  switch (type) {
    case KvType::kF16:
      return uint64_t{dim} * 2 * kKvBlock;
    case KvType::kF32:
      return uint64_t{dim} * 4 * kKvBlock;
    case KvType::kQ8:
      return uint64_t{dim} * kKvBlock;
    case KvType::kQ4:
      return (uint64_t{dim} + 1) / 2 * kKvBlock;
  }
  return 0;
}
static inline constexpr uint64_t kv_value_code_bytes(KvType type, uint32_t dim) {
  return kv_value_row_bytes(type, dim) * kKvBlock;
}

static inline constexpr uint64_t kv_scale_bytes(KvType type, uint32_t dim) {
  return is_scaled(type) ? (uint64_t{dim} + kKvGroup - 1) / kKvGroup * kKvBlock * 2 : 0;
}

static inline constexpr uint64_t kv_key_bytes(KvType type, uint32_t dim) {
  return kv_key_code_bytes(type, dim) + kv_scale_bytes(type, dim);
}
static inline constexpr uint64_t kv_value_bytes(KvType type, uint32_t dim) {
  return kv_value_code_bytes(type, dim) + kv_scale_bytes(type, dim);
}

static inline constexpr const char* kv_name(KvType type) {
  switch (type) {
    case KvType::kF16:
      return "f16";
    case KvType::kF32:
      return "f32";
    case KvType::kQ8:
      return "q8";
    case KvType::kQ4:
      return "q4";
  }
  return "";
}

}  // namespace millrace::kernels
