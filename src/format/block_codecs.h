// GGUF blocks <-> row records, one struct a format. Each pair of functions is a bijection on the
// bits of a block.
//
//   encode(block, record)   block: kBlockBytes of the file; record: see row_record.h
//   decode(record, block)   its inverse
#pragma once

#include "format/row_record.h"

namespace millrace::format {

// d (and m), then 16 bytes whose low nibbles are positions 0..15: exactly plane4.
template <uint32_t kHeads>
struct Nibble32Codec {
  static constexpr RecordShape kShape = {2, kHeads, 1, 0, 4};
  static constexpr uint32_t kBlockBytes = 2 * kHeads + 16;
  static constexpr uint32_t kCols = 32;
  static void encode(const uint8_t* block, uint8_t* record) {
    std::memcpy(record, block, kBlockBytes);
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    std::memcpy(block, record, kBlockBytes);
  }
};
using Q4_0Codec = Nibble32Codec<1>;  // also iq4_nl
using Q4_1Codec = Nibble32Codec<2>;

struct MxFp4Codec {
  static constexpr RecordShape kShape = {2, 0, 1, 1, 4};
  static constexpr uint32_t kBlockBytes = 17;
  static constexpr uint32_t kCols = 32;
  static void encode(const uint8_t* block, uint8_t* record) {
    std::memcpy(record, block, kBlockBytes);
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    std::memcpy(block, record, kBlockBytes);
  }
};

// Formats with scales in tensors of their own.
inline constexpr RecordShape kFp8Shape = {4, 1, 1, 0, 8};
inline constexpr RecordShape kNvfp4Shape = {4, 1, 1, 2, 4};

struct Q8_0Codec {
  static constexpr RecordShape kShape = {2, 1, 1, 0, 8};
  static constexpr uint32_t kBlockBytes = 34;
  static constexpr uint32_t kCols = 32;
  static void encode(const uint8_t* block, uint8_t* record) {
    std::memcpy(record, block, kBlockBytes);
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    std::memcpy(block, record, kBlockBytes);
  }
};

// The fifth bits of q5_0 and q5_1: bit i of the source is position i; of the plane, bit c of byte j
// is position 4c + j.
inline uint32_t bit_plane(uint32_t bits) {
  uint32_t plane = 0;
  for (int j = 0; j < 4; ++j) {
    uint32_t t = (bits >> j) & 0x11111111u;
    t = (t | t >> 3) & 0x03030303u;
    t = (t | t >> 6) & 0x000f000fu;
    plane |= ((t | t >> 12) & 0xffu) << (8 * j);
  }
  return plane;
}
inline uint32_t plane_bits(uint32_t plane) {
  uint32_t bits = 0;
  for (int j = 0; j < 4; ++j) {
    uint32_t t = (plane >> (8 * j)) & 0xffu;
    t = (t | t << 12) & 0x000f000fu;
    t = (t | t << 6) & 0x03030303u;
    bits |= ((t | t << 3) & 0x11111111u) << j;
  }
  return bits;
}

// d (and m) | fifth bits u32 | 16 bytes of nibbles.
template <uint32_t kHeads>
struct Q5Codec {
  static constexpr RecordShape kShape = {2, kHeads, 1, 0, 5};
  static constexpr uint32_t kBlockBytes = 2 * kHeads + 20;
  static constexpr uint32_t kCols = 32;
  static constexpr uint32_t kHead = 2 * kHeads;
  static void encode(const uint8_t* block, uint8_t* record) {
    std::memcpy(record, block, kHead);
    std::memcpy(record + kHead, block + kHead + 4, 16);
    store32(record + kHead + 16, bit_plane(load32(block + kHead)));
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    std::memcpy(block, record, kHead);
    std::memcpy(block + kHead + 4, record + kHead, 16);
    store32(block + kHead, plane_bits(load32(record + kHead + 16)));
  }
};
using Q5_0Codec = Q5Codec<1>;
using Q5_1Codec = Q5Codec<2>;

// 32 source bytes that hold one field of `mask` at `shift` for each position of a group.
inline Codes load_field(const uint8_t* from, int shift, uint64_t mask) {
  return {{(load_pair(from) >> shift) & mask, (load_pair(from + 16) >> shift) & mask}};
}
inline void add_field(Codes& codes, const uint8_t* from, int shift, uint64_t mask, int up) {
  codes.half[0] |= ((load_pair(from) >> shift) & mask) << up;
  codes.half[1] |= ((load_pair(from + 16) >> shift) & mask) << up;
}
// Puts bits `down`.. of the codes back at `shift` of 32 target bytes that were zero there.
inline void put_field(uint8_t* to, const Codes& codes, int down, uint64_t mask, int shift) {
  store_pair(to, load_pair(to) | ((codes.half[0] >> down) & mask) << shift);
  store_pair(to + 16, load_pair(to + 16) | ((codes.half[1] >> down) & mask) << shift);
}

// q4_K and q5_K keep 8 scales and 8 mins of 6 bits in 12 bytes.
struct ScalesMins {
  uint8_t scale[8];
  uint8_t min[8];
};
inline ScalesMins unpack_scales_mins(const uint8_t* from) {
  const uint32_t a = load32(from), b = load32(from + 4), c = load32(from + 8);
  constexpr uint32_t k2 = 0x03030303u, k4 = 0x0f0f0f0fu, k6 = 0x3f3f3f3fu;
  ScalesMins out;
  store32(out.scale, a & k6);
  store32(out.scale + 4, (c & k4) | ((a >> 6) & k2) << 4);
  store32(out.min, b & k6);
  store32(out.min + 4, ((c >> 4) & k4) | ((b >> 6) & k2) << 4);
  return out;
}
inline void pack_scales_mins(const ScalesMins& in, uint8_t* to) {
  constexpr uint32_t k2 = 0x03030303u, k4 = 0x0f0f0f0fu, k6 = 0x3f3f3f3fu;
  const uint32_t s0 = load32(in.scale), s1 = load32(in.scale + 4);
  const uint32_t m0 = load32(in.min), m1 = load32(in.min + 4);
  store32(to, (s0 & k6) | ((s1 >> 4) & k2) << 6);
  store32(to + 4, (m0 & k6) | ((m1 >> 4) & k2) << 6);
  store32(to + 8, (s1 & k4) | (m1 & k4) << 4);
}

// d dmin scales[12] (q5_K: fifth bits[32], bit g = group g) nibbles[128], 64 positions per 32
// bytes.
template <int kBits>
struct K45Codec {
  static constexpr RecordShape kShape = {2, 2, 8, 2, kBits};
  static constexpr uint32_t kBlockBytes = 16 + (kBits == 5 ? 32 : 0) + 128;
  static constexpr uint32_t kCols = 256;
  static constexpr uint32_t kHigh = 16;
  static constexpr uint32_t kLow = kBits == 5 ? 48 : 16;
  static void encode(const uint8_t* block, uint8_t* record) {
    store32(record, load32(block));
    const ScalesMins sm = unpack_scales_mins(block + 4);
    uint8_t* to = record + 4;
    for (int g = 0; g < 8; ++g, to += kShape.group_bytes()) {
      to[0] = sm.scale[g];
      to[1] = sm.min[g];
      Codes codes = load_field(block + kLow + 32 * (g / 2), 4 * (g % 2), kBytes4);
      if constexpr (kBits == 5) add_field(codes, block + kHigh, g, kBytes1, 4);
      store_codes<kBits>(codes, to + 2);
    }
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    std::memset(block, 0, kBlockBytes);
    store32(block, load32(record));
    ScalesMins sm;
    const uint8_t* from = record + 4;
    for (int g = 0; g < 8; ++g, from += kShape.group_bytes()) {
      sm.scale[g] = from[0];
      sm.min[g] = from[1];
      const Codes codes = load_codes<kBits>(from + 2);
      put_field(block + kLow + 32 * (g / 2), codes, 0, kBytes4, 4 * (g % 2));
      if constexpr (kBits == 5) put_field(block + kHigh, codes, 4, kBytes1, g);
    }
    pack_scales_mins(sm, block + 4);
  }
};
using Q4KCodec = K45Codec<4>;
using Q5KCodec = K45Codec<5>;

// low nibbles[128] high pairs[64] scales i8[16] d. Each half of 128 positions has 64 low bytes (two
// groups low, two groups high) and 32 high bytes (a pair of bits for each of its four groups).
struct Q6KCodec {
  static constexpr RecordShape kShape = {2, 1, 8, 2, 6};
  static constexpr uint32_t kBlockBytes = 210;
  static constexpr uint32_t kCols = 256;
  static void encode(const uint8_t* block, uint8_t* record) {
    store16(record, load16(block + 208));
    uint8_t* to = record + 2;
    for (int g = 0; g < 8; ++g, to += kShape.group_bytes()) {
      const int half = g / 4, k = g % 4;
      store16(to, load16(block + 192 + 2 * g));
      Codes codes = load_field(block + 64 * half + 32 * (k % 2), 4 * (k / 2), kBytes4);
      add_field(codes, block + 128 + 32 * half, 2 * k, kBytes2, 4);
      store_codes<6>(codes, to + 2);
    }
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    std::memset(block, 0, kBlockBytes);
    store16(block + 208, load16(record));
    const uint8_t* from = record + 2;
    for (int g = 0; g < 8; ++g, from += kShape.group_bytes()) {
      const int half = g / 4, k = g % 4;
      store16(block + 192 + 2 * g, load16(from));
      const Codes codes = load_codes<6>(from + 2);
      put_field(block + 64 * half + 32 * (k % 2), codes, 0, kBytes4, 4 * (k / 2));
      put_field(block + 128 + 32 * half, codes, 4, kBytes2, 2 * k);
    }
  }
};

// scales[16] pairs[64] d dmin. Each half of 128 positions has 32 bytes, a pair for each of its
// groups.
struct Q2KCodec {
  static constexpr RecordShape kShape = {2, 2, 8, 2, 2};
  static constexpr uint32_t kBlockBytes = 84;
  static constexpr uint32_t kCols = 256;
  static void encode(const uint8_t* block, uint8_t* record) {
    store32(record, load32(block + 80));
    uint8_t* to = record + 4;
    for (int g = 0; g < 8; ++g, to += kShape.group_bytes()) {
      store16(to, load16(block + 2 * g));
      store_codes<2>(load_field(block + 16 + 32 * (g / 4), 2 * (g % 4), kBytes2), to + 2);
    }
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    std::memset(block, 0, kBlockBytes);
    store32(block + 80, load32(record));
    const uint8_t* from = record + 4;
    for (int g = 0; g < 8; ++g, from += kShape.group_bytes()) {
      store16(block + 2 * g, load16(from));
      put_field(block + 16 + 32 * (g / 4), load_codes<2>(from + 2), 0, kBytes2, 2 * (g % 4));
    }
  }
};

// third bits[32] (bit g = group g) pairs[64] scales[12] d. 16 scales of 6 bits: low nibbles in 8
// bytes, then 4 bytes of upper pairs.
struct Q3KCodec {
  static constexpr RecordShape kShape = {2, 1, 8, 2, 3};
  static constexpr uint32_t kBlockBytes = 110;
  static constexpr uint32_t kCols = 256;
  static void encode(const uint8_t* block, uint8_t* record) {
    constexpr uint32_t k2 = 0x03030303u, k4 = 0x0f0f0f0fu;
    store16(record, load16(block + 108));
    uint8_t scales[16];
    const uint32_t high = load32(block + 104);
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = load32(block + 96 + 4 * (i % 2)) >> (4 * (i / 2));
      store32(scales + 4 * i, (low & k4) | ((high >> (2 * i)) & k2) << 4);
    }
    uint8_t* to = record + 2;
    for (int g = 0; g < 8; ++g, to += kShape.group_bytes()) {
      store16(to, load16(scales + 2 * g));
      Codes codes = load_field(block + 32 + 32 * (g / 4), 2 * (g % 4), kBytes2);
      add_field(codes, block, g, kBytes1, 2);
      store_codes<3>(codes, to + 2);
    }
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    constexpr uint32_t k2 = 0x03030303u, k4 = 0x0f0f0f0fu;
    std::memset(block, 0, kBlockBytes);
    store16(block + 108, load16(record));
    uint8_t scales[16];
    const uint8_t* from = record + 2;
    for (int g = 0; g < 8; ++g, from += kShape.group_bytes()) {
      store16(scales + 2 * g, load16(from));
      const Codes codes = load_codes<3>(from + 2);
      put_field(block + 32 + 32 * (g / 4), codes, 0, kBytes2, 2 * (g % 4));
      put_field(block, codes, 2, kBytes1, g);
    }
    uint32_t low[2] = {0, 0}, high = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t four = load32(scales + 4 * i);
      low[i % 2] |= (four & k4) << (4 * (i / 2));
      high |= ((four >> 4) & k2) << (2 * i);
    }
    store32(block + 96, low[0]);
    store32(block + 100, low[1]);
    store32(block + 104, high);
  }
};

// d, upper pairs of 8 scales u16, their low nibbles[4], then 8 groups of 16 bytes as in q4_0.
struct IQ4XSCodec {
  static constexpr RecordShape kShape = {2, 1, 8, 1, 4};
  static constexpr uint32_t kBlockBytes = 136;
  static constexpr uint32_t kCols = 256;
  static void encode(const uint8_t* block, uint8_t* record) {
    store16(record, load16(block));
    const uint32_t high = load16(block + 2), low = load32(block + 4);
    uint8_t* to = record + 2;
    for (int g = 0; g < 8; ++g, to += kShape.group_bytes()) {
      to[0] = static_cast<uint8_t>(((low >> (4 * g)) & 15u) | ((high >> (2 * g)) & 3u) << 4);
      std::memcpy(to + 1, block + 8 + 16 * g, 16);
    }
  }
  static void decode(const uint8_t* record, uint8_t* block) {
    store16(block, load16(record));
    uint32_t high = 0, low = 0;
    const uint8_t* from = record + 2;
    for (int g = 0; g < 8; ++g, from += kShape.group_bytes()) {
      low |= (from[0] & 15u) << (4 * g);
      high |= ((from[0] >> 4) & 3u) << (2 * g);
      std::memcpy(block + 8 + 16 * g, from + 1, 16);
    }
    store16(block + 2, static_cast<uint16_t>(high));
    store32(block + 4, low);
  }
};

}  // namespace millrace::format
