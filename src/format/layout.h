// Packed weight layout: how a matrix lies in a piece, on disk and in memory alike.
//
// A matrix W [rows, cols] is cut into tiles of 8 output rows; the last tile is padded with zeros.
// Inside a tile the inner dimension runs in blocks, and the eight rows are interleaved so that a
// vector lane owns one output row. Values are exactly those of the source (a permutation of its bits).
//
// Codes: quantized formats hold unsigned codes of 2..8 bits (q8_0: the int8 bytes themselves).
// For a group of 32 inner positions of a tile, the codes form 8 chunks; chunk c is 32 bytes, byte
// 4*r + j holding the code of row r at inner position 4*c + j. Chunks are stored in bit planes:
//   plane8 (256 B)  vector c               = chunk c
//   plane4 (128 B)  vector v = 0..3        low nibble: chunk v, high nibble: chunk v + 4
//   plane2 ( 64 B)  vector v = 0..1        bits 2p..2p+1: chunk v + 2p, p = 0..3
//   plane1 ( 32 B)  one vector             bit c: chunk c
//   bits: 2 = plane2; 3 = plane2 (bits 0-1) + plane1 (bit 2); 4 = plane4; 5 = plane4 + plane1 (bit 4);
//         6 = plane4 + plane2 (bits 4-5); 8 = plane8. Planes follow each other in that order.
//
// Blocks, in order (all little-endian, "x8" = one for each of the tile's rows, in row order):
//   f32, f16, bf16      a block is one inner position: value x8
//   q4_0 q5_0 q8_0 iq4_nl   block 32: d f16 x8 | planes
//   q4_1 q5_1           block 32: d f16 x8 | m f16 x8 | planes
//   mxfp4               block 32: e8m0 u8 x8 | plane4 (e2m1 codes)
//   q4_K q5_K           block 256: d f16 x8 | dmin f16 x8 | 8 x { scale u8 x8 | min u8 x8 | planes }
//   q6_K                block 256: d f16 x8 | 8 x { scale i8 x8 of the first 16 | scale i8 x8 of the second 16 | planes }
//   q2_K                block 256: d f16 x8 | dmin f16 x8 | 8 x { s u8 x8 | s u8 x8 | planes }, s = scale | min << 4
//   q3_K                block 256: d f16 x8 | 8 x { scale u8 x8 | scale u8 x8 | planes }, scale 0..63, used as scale - 32
//   iq4_xs              block 256: d f16 x8 | 8 x { scale u8 x8 | planes }, scale 0..63, used as scale - 32
//   fp8_e4m3            block 32: scale f32 x8 | plane8 (e4m3 codes)
//   nvfp4               block 32: scale f32 x8 | 2 x { scale e4m3 x8 of 16 } | plane4 (e2m1 codes)
//   affine              block = group: scale x8 | bias x8 (type of the source) | group/32 x planes
// Inner position order is the value order of the format's reference, whatever the nibble order of the source.
// Decoded value of a code (f32, in the reference's own order of operations, see dequantize_row):
//   q4_0 (c-8)*d; q5_0 (c-16)*d; q8_0 c*d; q4_1/q5_1 c*d+m; iq4 table[c]*d; mxfp4 table[c]*2^(e-128) (table doubled)
//   q2_K d*sc*c - dmin*m; q3_K d*(sc-32)*(c-4); q4_K/q5_K d*sc*c - dmin*m; q6_K d*sc*(c-32); affine s*c + b.
//   fp8_e4m3 e4m3(c)*s; nvfp4 (s/2*e4m3(of 16))*table[c] (table doubled)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace millrace::format {

inline constexpr uint32_t kTileRows = 8;
inline constexpr uint32_t kGroup = 32;  // inner positions that share one activation scale

enum class WeightFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kAffine,
  kFP8_E4M3,  // 8-bit floats with a scale; the source has one for a square of rows and columns
  kNVFP4,
};
inline constexpr int kWeightFormats = 19;

enum class ScaleType : uint8_t { kF32, kF16, kBF16 };

struct WeightLayout {
  WeightFormat format = WeightFormat::kF32;
  uint8_t bits = 0;                         // affine only: 2, 3, 4, 5, 6, 8
  uint16_t group = 0;                       // affine only: 32, 64, 128
  ScaleType scale_type = ScaleType::kBF16;  // affine only
  uint32_t rows = 0;                        // outputs
  uint32_t cols = 0;                        // inner dimension, a multiple of block_cols

  bool operator==(const WeightLayout&) const = default;
};

std::string_view name(WeightFormat format);
Expected<WeightFormat> weight_format_from_name(std::string_view name);

uint32_t block_cols(
    const WeightLayout& layout);  // inner positions of a block (1, 32, 256 or the group)
uint64_t block_bytes(const WeightLayout& layout);   // bytes of a block of a tile (8 rows)
uint64_t tile_bytes(const WeightLayout& layout);    // cols / block_cols * block_bytes
uint64_t packed_bytes(const WeightLayout& layout);  // ceil(rows / 8) * tile_bytes
uint32_t code_bits(const WeightLayout& layout);     // 2..8; 0 for float formats
// Whether products may round activations to int8: codes stand for integers. Float codes take floats.
bool takes_int8(const WeightLayout& layout);

// True when cols fits the format (a multiple of block_cols, and of 32 for quantized formats).
Status check_layout(const WeightLayout& layout);

// Writes row `row` of a packed matrix as f32 into out[0..cols). Bit-equal to the format's reference.
void dequantize_row(const WeightLayout& layout, const std::byte* packed, uint32_t row, float* out);

// The e2m1 values doubled (mxfp4), and the non-linear table of iq4_nl / iq4_xs.
extern const int8_t kE2M1Doubled[16];
extern const int8_t kIQ4Values[16];

}  // namespace millrace::format
