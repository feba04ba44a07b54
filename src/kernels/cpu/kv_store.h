// Writing KV blocks (kernels/kv_layout.h). What a position becomes depends on its own key and value
// alone. Compiled once per instruction set (see ops_impl.h).
//
// For q8 and q4, keys, values and queries are turned by a Hadamard matrix, which spreads what single
// channels of keys have too much of (measured in docs/experiments/kv-types.md). The matrix is left
// without its factor 1 / sqrt(n): the other side of each product is divided by n, which is exact.
// Codes are round(x / scale), with the scale rounded to f16 first:
//   q8  scale = largest magnitude / 127
//   q4  scale = x / -8 for the x of largest magnitude (the positive one of two), codes -8 to 7
#pragma once

#include "kernels/cpu/kv_codes.h"

namespace millrace::kernels {
namespace {

template <int kStride>
inline F8 butterfly(F8 a) {  // a[i] + a[i + s] in lane i, a[i] - a[i + s] in lane i + s
  const I8 second = iset1(kStride) & lane_numbers();
  const F8 turned = if_less(iset1(0), second, negate(a), a);
  return lanes_xor<kStride>(a) + turned;
}

// n is a power of two.
inline void hadamard(float* x, uint32_t n) {
  if (n >= 8) {
    for (uint32_t i = 0; i < n; i += 8)
      store(x + i, butterfly<4>(butterfly<2>(butterfly<1>(load(x + i)))));
  }
  for (uint32_t s = n >= 8 ? 8 : 1; s < n; s *= 2) {
    for (uint32_t i = 0; i < n; i += 2 * s) {
      if (s >= 8) {
        for (uint32_t j = i; j < i + s; j += 8) {
          const F8 a = load(x + j), b = load(x + j + s);
          store(x + j, a + b);
          store(x + j + s, a - b);
        }
      } else {
        for (uint32_t j = i; j < i + s; ++j) {
          const float a = x[j], b = x[j + s];
          x[j] = a + b;
          x[j + s] = a - b;
        }
      }
    }
  }
}

// Channels that are turned together.
inline uint32_t turned_together(uint32_t dim) {
  uint32_t n = 1;
  while (n < 128 && dim % (2 * n) == 0) n *= 2;
  return n;
}
inline void turn(float* x, uint32_t dim) {
  const uint32_t n = turned_together(dim);
  for (uint32_t i = 0; i < dim; i += n) hadamard(x + i, n);
}
// With the factor 1 / n: the inverse of turn(), and what a query needs.
inline void turn_back(float* x, uint32_t dim) {
  turn(x, dim);
  const float factor = 1.0f / static_cast<float>(turned_together(dim));
  for (uint32_t i = 0; i < dim; ++i) x[i] *= factor;
}

// Codes of the n <= 32 floats at x, 0 behind them; returns the scale, NaN when they are not all
// finite.
template <class T>
inline uint16_t quantize_group(const float* x, uint32_t n, int32_t (&codes)[kKvGroup]) {
  constexpr int32_t kInfinity = 0x7f800000;
  constexpr uint16_t kNaN = 0x7e00;
  float wide[kKvGroup] = {};
  for (uint32_t i = 0; i < n; ++i) wide[i] = x[i];
  const F8 v[4] = {load(wide), load(wide + 8), load(wide + 16), load(wide + 24)};
  for (int32_t& code : codes) code = 0;
  const F8 high = max(max(v[0], v[1]), max(v[2], v[3]));
  const F8 zero = set1(0.0f);
  const F8 low = max(max(zero - v[0], zero - v[1]), max(zero - v[2], zero - v[3]));
  const I8 magnitude =
      imax(imax(bits(abs(v[0])), bits(abs(v[1]))), imax(bits(abs(v[2])), bits(abs(v[3]))));
  if (imax_lane(magnitude) >= kInfinity) return kNaN;
  const float most = max_lane(high), least = max_lane(low);
  float scale = most >= least ? most : least;
  scale = kTypeOf<T> == KvType::kQ8 ? scale / 127.0f : scale / (most >= least ? -8.0f : 8.0f);
  uint16_t narrow[8];
  store_f16(narrow, set1(scale));
  float rounded[8];
  store(rounded, load_f16(narrow));
  if (rounded[0] == 0.0f) return 0;
  constexpr int32_t kLeast = kTypeOf<T> == KvType::kQ8 ? -127 : -8;
  constexpr int32_t kMost = kTypeOf<T> == KvType::kQ8 ? 127 : 7;
  const F8 inverse = set1(1.0f / rounded[0]);
  for (int i = 0; i < 4; ++i) {
    I8 code = bits(v[i] * inverse + set1(kRound)) - bits(set1(kRound));
    code = imax(imin(code, iset1(kMost)), iset1(kLeast));
    float lanes[8];
    store(lanes, from_bits(code));
    __builtin_memcpy(codes + 8 * i, lanes, sizeof lanes);
  }
  return narrow[0];
}

inline void put_key_codes(Q8* k, uint32_t channel, uint32_t n, const int32_t* codes) {
  for (uint32_t i = 0; i < n; ++i)
    k[uint64_t{channel + i} * kKvBlock].code = static_cast<int8_t>(codes[i]);
}
inline void put_key_codes(Q4* k, uint32_t channel, uint32_t n, const int32_t* codes) {
  for (uint32_t i = 0; i < n; i += 2)
    k[uint64_t{channel + i} / 2 * kKvBlock].codes =
        static_cast<int8_t>((codes[i] & 15) | (codes[i + 1] & 15) << 4);
}
inline void put_value_codes(Q8* row, uint32_t channel, uint32_t n, const int32_t* codes) {
  for (uint32_t i = 0; i < n; ++i) row[channel + i].code = static_cast<int8_t>(codes[i]);
}
inline void put_value_codes(Q4* row, uint32_t channel, uint32_t n, const int32_t* codes) {
  for (uint32_t u = 0; u < n; u += 16)
    for (uint32_t i = 0; i < 8; ++i)
      row[(channel + u) / 2 + i].codes =
          static_cast<int8_t>((codes[u + i] & 15) | (codes[u + 8 + i] & 15) << 4);
}

template <class T>
inline void store_codes(const float* k, uint32_t key_dim, const float* v, uint32_t value_dim,
                        uint32_t slot, void* k_block, void* v_block) {
  constexpr KvType kType = kTypeOf<T>;
  T* keys = static_cast<T*>(k_block) + slot;
  auto* scales =
      reinterpret_cast<uint16_t*>(static_cast<char*>(k_block) + kv_key_code_bytes(kType, key_dim)) +
      slot;
  int32_t codes[kKvGroup];
  for (uint32_t d = 0; d < key_dim; d += kKvGroup, scales += kKvBlock) {
    const uint32_t n = key_dim - d < kKvGroup ? key_dim - d : kKvGroup;
    *scales = quantize_group<T>(k + d, n, codes);
    put_key_codes(keys, d, n, codes);
  }
  T* row = static_cast<T*>(v_block) + slot * kv_value_row_bytes(kType, value_dim);
  scales = reinterpret_cast<uint16_t*>(static_cast<char*>(v_block) +
                                       kv_value_code_bytes(kType, value_dim)) +
           slot;
  for (uint32_t d = 0; d < value_dim; d += kKvGroup, scales += kKvBlock) {
    const uint32_t n = value_dim - d < kKvGroup ? value_dim - d : kKvGroup;
    *scales = quantize_group<T>(v + d, n, codes);
    put_value_codes(row, d, n, codes);
  }
}

inline void to_f16(const float* x, uint32_t n, uint16_t* y, uint32_t stride) {
  for (uint32_t i = 0; i < n; i += 8) {
    const uint32_t part = n - i < 8 ? n - i : 8;
    float wide[8] = {};
    for (uint32_t j = 0; j < part; ++j) wide[j] = x[i + j];
    uint16_t narrow[8];
    store_f16(narrow, load(wide));
    for (uint32_t j = 0; j < part; ++j) y[(i + j) * stride] = narrow[j];
  }
}

void store_kv(KvType type, const float* k, uint32_t key_dim, const float* v, uint32_t value_dim,
              uint32_t slot, void* k_block, void* v_block) {
  switch (type) {
    case KvType::kF16:
      to_f16(k, key_dim, static_cast<uint16_t*>(k_block) + slot, kKvBlock);
      to_f16(v, value_dim, static_cast<uint16_t*>(v_block) + uint64_t{slot} * value_dim, 1);
      return;
    case KvType::kF32: {
      float* keys = static_cast<float*>(k_block) + slot;
      float* values = static_cast<float*>(v_block) + uint64_t{slot} * value_dim;
      for (uint32_t i = 0; i < key_dim; ++i) keys[uint64_t{i} * kKvBlock] = k[i];
      for (uint32_t i = 0; i < value_dim; ++i) values[i] = v[i];
      return;
    }
    case KvType::kQ8:
    case KvType::kQ4: {
      float keys[kMostTurned], values[kMostTurned];
      for (uint32_t i = 0; i < key_dim; ++i) keys[i] = k[i];
      for (uint32_t i = 0; i < value_dim; ++i) values[i] = v[i];
      turn(keys, key_dim);
      turn(values, value_dim);
      if (type == KvType::kQ8)
        return store_codes<Q8>(keys, key_dim, values, value_dim, slot, k_block, v_block);
      return store_codes<Q4>(keys, key_dim, values, value_dim, slot, k_block, v_block);
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
