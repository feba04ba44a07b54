// The 32 codes of one row in one group, and the words that hold them in a tile.
//
// Codes travel as bytes in two vector registers of sixteen positions. A row has exactly `bits`
// 32-bit words a group; word v of the eight rows, side by side, is vector v of the layout
// (layout.h), so all the work on codes is done on one row at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace millrace::format {

static_assert(std::endian::native == std::endian::little, "files and layouts are little-endian");

inline uint64_t load64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, 8);
  return value;
}
inline uint32_t load32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, 4);
  return value;
}
inline uint16_t load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, 2);
  return value;
}
inline void store64(uint8_t* to, uint64_t value) { std::memcpy(to, &value, 8); }
inline void store32(uint8_t* to, uint32_t value) { std::memcpy(to, &value, 4); }
inline void store16(uint8_t* to, uint16_t value) { std::memcpy(to, &value, 2); }

inline constexpr uint64_t kBytes1 = 0x0101010101010101u;
inline constexpr uint64_t kBytes2 = 0x0303030303030303u;
inline constexpr uint64_t kBytes4 = 0x0f0f0f0f0f0f0f0fu;

// Two 64-bit registers side by side; shifts act on each.
using Pair = uint64_t __attribute__((vector_size(16)));

inline Pair load_pair(const uint8_t* from) {
  Pair value;
  std::memcpy(&value, from, 16);
  return value;
}
inline void store_pair(uint8_t* to, Pair value) { std::memcpy(to, &value, 16); }

struct Codes {
  Pair half[2];  // positions 0..15 and 16..31
};

// Plane of bits `shift`..`shift+3`: byte j holds position j low and j + 16 high.
inline void store_plane4(const Codes& codes, int shift, uint8_t* words) {
  store_pair(words, ((codes.half[0] >> shift) & kBytes4) | ((codes.half[1] >> shift) & kBytes4)
                                                               << 4);
}
inline void load_plane4(const uint8_t* words, int shift, Codes& codes) {
  const Pair plane = load_pair(words);
  codes.half[0] |= (plane & kBytes4) << shift;
  codes.half[1] |= ((plane >> 4) & kBytes4) << shift;
}

// Byte i, bits 2p..2p+1: position 8p + i.
inline void store_plane2(const Codes& codes, int shift, uint8_t* words) {
  const Pair both = ((codes.half[0] >> shift) & kBytes2) | ((codes.half[1] >> shift) & kBytes2)
                                                               << 4;
  store64(words, both[0] | both[1] << 2);
}
inline void load_plane2(const uint8_t* words, int shift, Codes& codes) {
  const uint64_t plane = load64(words);
  const Pair both = {plane, plane >> 2};
  codes.half[0] |= (both & kBytes2) << shift;
  codes.half[1] |= ((both >> 4) & kBytes2) << shift;
}

// Byte j, bit c: position 4c + j.
inline void store_plane1(const Codes& codes, int shift, uint8_t* words) {
  const Pair both = ((codes.half[0] >> shift) & kBytes1) | ((codes.half[1] >> shift) & kBytes1)
                                                               << 4;
  const uint64_t chunks = both[0] | both[1] << 2;
  store32(words, static_cast<uint32_t>(chunks) | static_cast<uint32_t>(chunks >> 32) << 1);
}
inline void load_plane1(const uint8_t* words, int shift, Codes& codes) {
  const uint64_t plane = load32(words);
  const uint64_t chunks = plane | (plane >> 1) << 32;
  const Pair both = {chunks, chunks >> 2};
  codes.half[0] |= (both & kBytes1) << shift;
  codes.half[1] |= ((both >> 4) & kBytes1) << shift;
}

template <int kBits>
inline void store_codes(const Codes& codes, uint8_t* words) {
  static_assert(kBits == 2 || kBits == 3 || kBits == 4 || kBits == 5 || kBits == 6 || kBits == 8);
  if constexpr (kBits == 8) {
    store_pair(words, codes.half[0]);
    store_pair(words + 16, codes.half[1]);
  } else if constexpr (kBits >= 4) {
    store_plane4(codes, 0, words);
    if constexpr (kBits == 5) store_plane1(codes, 4, words + 16);
    if constexpr (kBits == 6) store_plane2(codes, 4, words + 16);
  } else {
    store_plane2(codes, 0, words);
    if constexpr (kBits == 3) store_plane1(codes, 2, words + 8);
  }
}

template <int kBits>
inline Codes load_codes(const uint8_t* words) {
  Codes codes = {};
  if constexpr (kBits == 8) {
    codes.half[0] = load_pair(words);
    codes.half[1] = load_pair(words + 16);
  } else if constexpr (kBits >= 4) {
    load_plane4(words, 0, codes);
    if constexpr (kBits == 5) load_plane1(words + 16, 4, codes);
    if constexpr (kBits == 6) load_plane2(words + 16, 4, codes);
  } else {
    load_plane2(words, 0, codes);
    if constexpr (kBits == 3) load_plane1(words + 8, 2, codes);
  }
  return codes;
}

// Four-bit streams (position 2k low, 2k + 1 high in byte k) straight to plane4, sixteen bytes at
// once: the commonest format of all.
using Bytes16 = uint8_t __attribute__((vector_size(16)));
inline void stream4_to_plane4(const uint8_t* from, uint8_t* words) {
  Bytes16 both;
  std::memcpy(&both, from, 16);
  const Bytes16 low = both & 15, high = both >> 4;
  const Bytes16 first =
      __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const Bytes16 second = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                 13, 29, 14, 30, 15, 31);
  const Bytes16 plane = first | second << 4;
  std::memcpy(words, &plane, 16);
}

// A little-endian stream of eight kBits-wide codes <-> eight bytes.
template <int kBits>
inline uint64_t spread(uint64_t stream) {
  constexpr uint64_t kOne = (uint64_t{1} << kBits) - 1;
  constexpr uint64_t kTwo = (uint64_t{1} << (2 * kBits)) - 1;
  constexpr uint64_t kFour = (uint64_t{1} << (4 * kBits)) - 1;
  constexpr uint64_t kOnes = kOne * 0x0001000100010001u;
  constexpr uint64_t kTwos = kTwo * 0x0000000100000001u;
  if constexpr (kBits == 8) return stream;
  stream = (stream & kFour) | ((stream >> (4 * kBits)) & kFour) << 32;
  stream = (stream & kTwos) | ((stream >> (2 * kBits)) & kTwos) << 16;
  return (stream & kOnes) | ((stream >> kBits) & kOnes) << 8;
}
template <int kBits>
inline uint64_t gather(uint64_t bytes) {
  constexpr uint64_t kOne = (uint64_t{1} << kBits) - 1;
  constexpr uint64_t kTwo = (uint64_t{1} << (2 * kBits)) - 1;
  constexpr uint64_t kFour = (uint64_t{1} << (4 * kBits)) - 1;
  constexpr uint64_t kOnes = kOne * 0x0001000100010001u;
  constexpr uint64_t kTwos = kTwo * 0x0000000100000001u;
  if constexpr (kBits == 8) return bytes;
  bytes = (bytes & kOnes) | ((bytes >> 8) & kOnes) << kBits;
  bytes = (bytes & kTwos) | ((bytes >> 16) & kTwos) << (2 * kBits);
  return (bytes & kFour) | ((bytes >> 32) & kFour) << (4 * kBits);
}

// One group (32 codes, 4 * kBits bytes) of an MLX or gpt-oss weight row to its words. The codes
// stay in four scalar registers of eight: moving them to vectors costs more than it saves. Loads
// are eight bytes wide and stay inside the group.
template <int kBits>
inline void stream_to_words(const uint8_t* from, uint8_t* words) {
  if constexpr (kBits == 8) {
    std::memcpy(words, from, 32);
    return;
  }
  if constexpr (kBits == 4) return stream4_to_plane4(from, words);
  uint64_t p[4];
  for (int i = 0; i < 4; ++i) {
    const int at = kBits * i, last = 4 * kBits - 8;
    const int load = at < last ? at : last;
    p[i] = spread<kBits>(load64(from + load) >> (8 * (at - load)));
  }
  constexpr int kLow = kBits >= 4 ? 4 : 2;  // bits of the first plane; what is above them follows
  if constexpr (kLow == 4) {
    store64(words, (p[0] & kBytes4) | (p[2] & kBytes4) << 4);
    store64(words + 8, (p[1] & kBytes4) | (p[3] & kBytes4) << 4);
  } else {
    store64(words, (p[0] & kBytes2) | (p[1] & kBytes2) << 2 | (p[2] & kBytes2) << 4 |
                       (p[3] & kBytes2) << 6);
  }
  for (uint64_t& codes : p) codes = (codes >> kLow) & (kBits - kLow == 2 ? kBytes2 : kBytes1);
  const uint64_t rest = p[0] | p[1] << 2 | p[2] << 4 | p[3] << 6;
  if constexpr (kBits - kLow == 2) store64(words + 4 * kLow, rest);
  if constexpr (kBits - kLow == 1) {
    store32(words + 4 * kLow, static_cast<uint32_t>(rest) | static_cast<uint32_t>(rest >> 32) << 1);
  }
}
template <int kBits>
inline void store_stream(const Codes& codes, uint8_t* to) {
  for (int p = 0; p < 4; ++p) {
    const uint64_t stream = gather<kBits>(codes.half[p / 2][p % 2]);
    std::memcpy(to + kBits * p, &stream, kBits);
  }
}

}  // namespace millrace::format
