// The quantized formats as SIMD kernels see them: what each one is made of. No instructions here.
//
// Included by files of one instruction set only; everything is local to the including file (see
// vec_avx2.h).
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/matmul.h"

namespace millrace::kernels {
namespace {

#define MILLRACE_INLINE __attribute__((always_inline))

// f(0), f(1), ... f(kCount - 1) with constant arguments: arrays of vectors indexed by them live in
// registers, which the compiler's own unrolling (it comes later) does not reach.
template <int kCount, class F>
MILLRACE_INLINE inline void unroll(F f) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) MILLRACE_INLINE {
    (f(std::integral_constant<int, kIndex>{}), ...);
  }
  (std::make_integer_sequence<int, kCount>{});
}

using format::ScaleType;
using format::WeightFormat;

enum class Code {
  kUnsigned,       // as stored
  kSigned,         // int8 as stored: sign trick
  kFlipped,        // unsigned 8 bit minus 128, then as kSigned
  kTableSigned,    // iq4 table, as kSigned
  kTableUnsigned,  // e2m1 table plus 12
  kE4M3,           // 8-bit floats: float activations only
};
enum class Scale { kF16, kF32, kHalfF32, kE8M0, kAffine };  // kHalfF32: half of the f32
enum class Ints {
  kNone,
  kScaleMin,       // q4_K q5_K: u8 scale, u8 minimum
  kScaleMinus32,   // iq4_xs
  kHalves,         // q6_K: i8 scales of the two halves
  kHalvesMinus32,  // q3_K
  kNibbles,        // q2_K: scale | minimum << 4 of the two halves
  kE4M3Halves,     // nvfp4: e4m3 scales of the two halves; float activations only
};

struct Traits {
  int bits;  // stored code bits
  int most;  // largest magnitude of a multiplicand
  Code code;
  int offset;  // integer dot = dot of multiplicands - offset * sum
  Scale scale;
  bool bias;           // a second float: m, dmin or the affine bias
  bool negative_bias;  // it is subtracted (dmin)
  Ints ints;
  int groups;  // of a block; 0: layout.group / 32

  constexpr bool is_signed() const {
    return code == Code::kSigned || code == Code::kFlipped || code == Code::kTableSigned;
  }
  // Chunks that fit an int16 sum: each adds two products of at most most * 127. A span of 8 would
  // cross halves with scales of their own.
  constexpr int span() const {
    const int fit = 32767 / (2 * most * 127);
    return fit >= 8 && !halves() ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
  }
  constexpr int plane_bytes() const { return 32 * bits; }
  constexpr int ints_bytes() const {
    return ints == Ints::kNone ? 0 : ints == Ints::kScaleMinus32 ? 8 : 16;
  }
  constexpr bool halves() const {
    return ints == Ints::kHalves || ints == Ints::kHalvesMinus32 || ints == Ints::kNibbles ||
           ints == Ints::kE4M3Halves;
  }
};

constexpr Traits block32(int bits, int most, Code code, int offset, bool bias) {
  return {bits, most, code, offset, Scale::kF16, bias, false, Ints::kNone, 1};
}
constexpr Traits block256(int bits, int most, Code code, int offset, bool dmin, Ints ints) {
  return {bits, most, code, offset, Scale::kF16, dmin, dmin, ints, 8};
}
constexpr Traits affine(int bits) {
  const int most = (1 << bits) - 1;
  if (bits < 8)
    return {bits, most, Code::kUnsigned, 0, Scale::kAffine, true, false, Ints::kNone, 0};
  // Products of codes up to 255 would saturate int16: minus 128, given back through the sums.
  return {8, 128, Code::kFlipped, -128, Scale::kAffine, true, false, Ints::kNone, 0};
}
constexpr Traits kQ4_0 = block32(4, 15, Code::kUnsigned, 8, false);
constexpr Traits kQ4_1 = block32(4, 15, Code::kUnsigned, 0, true);
constexpr Traits kQ5_0 = block32(5, 31, Code::kUnsigned, 16, false);
constexpr Traits kQ5_1 = block32(5, 31, Code::kUnsigned, 0, true);
constexpr Traits kQ8_0 = block32(8, 128, Code::kSigned, 0, false);
constexpr Traits kIQ4_NL = block32(4, 127, Code::kTableSigned, 0, false);
constexpr Traits kMXFP4 = {4,     24,    Code::kTableUnsigned, 12, Scale::kE8M0,
                           false, false, Ints::kNone,          1};
constexpr Traits kFP8_E4M3 = {8, 1, Code::kE4M3, 0, Scale::kF32, false, false, Ints::kNone, 1};
constexpr Traits kNVFP4 = {4,     24,    Code::kTableUnsigned, 12, Scale::kHalfF32,
                           false, false, Ints::kE4M3Halves,    1};
constexpr Traits kQ2_K = block256(2, 3, Code::kUnsigned, 0, true, Ints::kNibbles);
constexpr Traits kQ3_K = block256(3, 7, Code::kUnsigned, 4, false, Ints::kHalvesMinus32);
constexpr Traits kQ4_K = block256(4, 15, Code::kUnsigned, 0, true, Ints::kScaleMin);
constexpr Traits kQ5_K = block256(5, 31, Code::kUnsigned, 0, true, Ints::kScaleMin);
constexpr Traits kQ6_K = block256(6, 63, Code::kUnsigned, 32, false, Ints::kHalves);
constexpr Traits kIQ4_XS = block256(4, 127, Code::kTableSigned, 0, false, Ints::kScaleMinus32);

}  // namespace
}  // namespace millrace::kernels
