// The innermost steps of the AVX2 products: four bytes of each output of two tiles, by a few rows.
//
// In assembly because of loads, of which a core does two of 32 bytes in a cycle: from intrinsics GCC reads
// each vector of codes again for every row (it has no register left once it has moved additions about),
// which makes 12 loads of a step of four rows where these have 6.
//
// Included by matmul_i8_avx2.h only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/format_traits.h"

namespace millrace::kernels {
namespace {

// One accumulator for each row and tile.
template <int kTiles, int kRows>
struct Dots {
  __m256i v[kRows][kTiles];
};

// c, d: accumulators of the two tiles. x, p: scratch. a, b: names of the codes' registers.
#define MILLRACE_FIRST_ROW(r, a, b)           \
  "vpbroadcastd 32*" #r "(%[q]), %[x]\n\t"    \
  "vpmaddubsw %[x], %[" a "], %[c" #r "]\n\t" \
  "vpmaddubsw %[x], %[" b "], %[d" #r "]\n\t"
#define MILLRACE_ADD_ROW(at, r, a, b)             \
  "vpbroadcastd " at "+32*" #r "(%[q]), %[x]\n\t" \
  "vpmaddubsw %[x], %[" a "], %[p]\n\t"           \
  "vpmaddubsw %[x], %[" b "], %[x]\n\t"           \
  "vpaddw %[p], %[c" #r "], %[c" #r "]\n\t"       \
  "vpaddw %[x], %[d" #r "], %[d" #r "]\n\t"
#define MILLRACE_NEXT_ROW(r, a, b) MILLRACE_ADD_ROW("0", r, a, b)
#define MILLRACE_HIGH_ROW(r) MILLRACE_ADD_ROW("16", r, "a", "b")
// Signed codes: |w| by x with w's sign; a, b are the codes, m, n their magnitudes.
#define MILLRACE_SIGNED_ROW(r)              \
  "vpbroadcastd 32*" #r "(%[q]), %[x]\n\t"  \
  "vpsignb %[a], %[x], %[p]\n\t"            \
  "vpsignb %[b], %[x], %[x]\n\t"            \
  "vpmaddubsw %[p], %[m], %[p]\n\t"         \
  "vpmaddubsw %[x], %[n], %[x]\n\t"         \
  "vpmaddwd %[one], %[p], %[p]\n\t"         \
  "vpmaddwd %[one], %[x], %[x]\n\t"         \
  "vpaddd %[p], %[c" #r "], %[c" #r "]\n\t" \
  "vpaddd %[x], %[d" #r "], %[d" #r "]\n\t"
#define MILLRACE_LOAD_CODES \
  "vmovdqa %[wa], %[a]\n\t" \
  "vmovdqa %[wb], %[b]\n\t"
#define MILLRACE_LOAD_SIGNED \
  MILLRACE_LOAD_CODES        \
  "vpabsb %[a], %[m]\n\t"    \
  "vpabsb %[b], %[n]\n\t"
#define MILLRACE_SUM(r, as) [c##r] as(sum.v[r][0]), [d##r] as(sum.v[r][1])
#define MILLRACE_CODES [wa] "m"(wa), [wb] "m"(wb)
#define MILLRACE_LOW              \
  "vmovdqu %[wa], %[a]\n\t"       \
  "vmovdqu %[wb], %[b]\n\t"       \
  "vpand %[a], %[mask], %[m]\n\t" \
  "vpand %[b], %[mask], %[n]\n\t"
#define MILLRACE_HIGH             \
  "vpsrlw $4, %[a], %[a]\n\t"     \
  "vpsrlw $4, %[b], %[b]\n\t"     \
  "vpand %[a], %[mask], %[a]\n\t" \
  "vpand %[b], %[mask], %[b]\n\t"
#define MILLRACE_SCRATCH \
  [a] "=&x"(a), [b] "=&x"(b), [m] "=&x"(m), [n] "=&x"(n), [x] "=&x"(x), [p] "=&x"(p)
#define MILLRACE_NIBBLES                                 \
  [wa] "m"(*reinterpret_cast<const uint8_t(*)[32]>(pa)), \
      [wb] "m"(*reinterpret_cast<const uint8_t(*)[32]>(pb)), [mask] "x"(mask)
#define MILLRACE_X [q] "r"(q), "m"(*reinterpret_cast<const uint8_t(*)[32 * kRows]>(q))

// sum (int16) = or += codes by the activations; row r's four are at q + 32 r.
template <int kRows, bool kFirst>
MILLRACE_INLINE inline void step(const __m256i& wa, const __m256i& wb, const uint8_t* q,
                                 Dots<2, kRows>& sum) {
  __m256i a, b, x, p;
  if constexpr (kRows == 4 && kFirst) {
    asm(MILLRACE_LOAD_CODES MILLRACE_FIRST_ROW(0, "a", "b") MILLRACE_FIRST_ROW(1, "a", "b")
            MILLRACE_FIRST_ROW(2, "a", "b") MILLRACE_FIRST_ROW(3, "a", "b")
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"), MILLRACE_SUM(2, "=&x"),
          MILLRACE_SUM(3, "=&x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x)
        : MILLRACE_CODES, MILLRACE_X);
  } else if constexpr (kRows == 4) {
    asm(MILLRACE_LOAD_CODES MILLRACE_NEXT_ROW(0, "a", "b") MILLRACE_NEXT_ROW(1, "a", "b")
            MILLRACE_NEXT_ROW(2, "a", "b") MILLRACE_NEXT_ROW(3, "a", "b")
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SUM(2, "+x"),
          MILLRACE_SUM(3, "+x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X);
  } else if constexpr (kRows == 3 && kFirst) {
    asm(MILLRACE_LOAD_CODES MILLRACE_FIRST_ROW(0, "a", "b") MILLRACE_FIRST_ROW(1, "a", "b")
            MILLRACE_FIRST_ROW(2, "a", "b")
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"),
          MILLRACE_SUM(2, "=&x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x)
        : MILLRACE_CODES, MILLRACE_X);
  } else if constexpr (kRows == 3) {
    asm(MILLRACE_LOAD_CODES MILLRACE_NEXT_ROW(0, "a", "b") MILLRACE_NEXT_ROW(1, "a", "b")
            MILLRACE_NEXT_ROW(2, "a", "b")
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"),
          MILLRACE_SUM(2, "+x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X);
  } else if constexpr (kFirst) {
    static_assert(kRows == 2);
    asm(MILLRACE_LOAD_CODES MILLRACE_FIRST_ROW(0, "a", "b") MILLRACE_FIRST_ROW(1, "a", "b")
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x)
        : MILLRACE_CODES, MILLRACE_X);
  } else {
    asm(MILLRACE_LOAD_CODES MILLRACE_NEXT_ROW(0, "a", "b") MILLRACE_NEXT_ROW(1, "a", "b")
        : MILLRACE_SUM(0, "+x"),
          MILLRACE_SUM(1, "+x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X);
  }
}

// The same for two chunks whose codes are the low and the high halves of the bytes at pa and pb: row r's
// activations are at q + 32 r and 16 behind.
template <int kRows, bool kFirst>
MILLRACE_INLINE inline void nibble_step(const uint8_t* pa, const uint8_t* pb, const uint8_t* q,
                                        Dots<2, kRows>& sum) {
  __m256i a, b, m, n, x, p;
  const __m256i mask = _mm256_set1_epi8(15);
  if constexpr (kRows == 4 && kFirst) {
    asm(MILLRACE_LOW MILLRACE_FIRST_ROW(0, "m", "n") MILLRACE_FIRST_ROW(1, "m", "n")
            MILLRACE_FIRST_ROW(2, "m", "n") MILLRACE_FIRST_ROW(3, "m", "n")
                MILLRACE_HIGH MILLRACE_HIGH_ROW(0) MILLRACE_HIGH_ROW(1) MILLRACE_HIGH_ROW(2)
                    MILLRACE_HIGH_ROW(3)
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"), MILLRACE_SUM(2, "=&x"),
          MILLRACE_SUM(3, "=&x"), MILLRACE_SCRATCH
        : MILLRACE_NIBBLES, MILLRACE_X);
  } else if constexpr (kRows == 4) {
    asm(MILLRACE_LOW MILLRACE_NEXT_ROW(0, "m", "n") MILLRACE_NEXT_ROW(1, "m", "n")
            MILLRACE_NEXT_ROW(2, "m", "n") MILLRACE_NEXT_ROW(3, "m", "n")
                MILLRACE_HIGH MILLRACE_HIGH_ROW(0) MILLRACE_HIGH_ROW(1) MILLRACE_HIGH_ROW(2)
                    MILLRACE_HIGH_ROW(3)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SUM(2, "+x"),
          MILLRACE_SUM(3, "+x"), MILLRACE_SCRATCH
        : MILLRACE_NIBBLES, MILLRACE_X);
  } else if constexpr (kRows == 3 && kFirst) {
    asm(MILLRACE_LOW MILLRACE_FIRST_ROW(0, "m", "n") MILLRACE_FIRST_ROW(1, "m", "n")
            MILLRACE_FIRST_ROW(2, "m", "n") MILLRACE_HIGH MILLRACE_HIGH_ROW(0) MILLRACE_HIGH_ROW(1)
                MILLRACE_HIGH_ROW(2)
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"), MILLRACE_SUM(2, "=&x"), MILLRACE_SCRATCH
        : MILLRACE_NIBBLES, MILLRACE_X);
  } else if constexpr (kRows == 3) {
    asm(MILLRACE_LOW MILLRACE_NEXT_ROW(0, "m", "n") MILLRACE_NEXT_ROW(1, "m", "n")
            MILLRACE_NEXT_ROW(2, "m", "n") MILLRACE_HIGH MILLRACE_HIGH_ROW(0) MILLRACE_HIGH_ROW(1)
                MILLRACE_HIGH_ROW(2)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SUM(2, "+x"), MILLRACE_SCRATCH
        : MILLRACE_NIBBLES, MILLRACE_X);
  } else if constexpr (kFirst) {
    static_assert(kRows == 2);
    asm(MILLRACE_LOW MILLRACE_FIRST_ROW(0, "m", "n") MILLRACE_FIRST_ROW(1, "m", "n")
            MILLRACE_HIGH MILLRACE_HIGH_ROW(0) MILLRACE_HIGH_ROW(1)
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"), MILLRACE_SCRATCH
        : MILLRACE_NIBBLES, MILLRACE_X);
  } else {
    asm(MILLRACE_LOW MILLRACE_NEXT_ROW(0, "m", "n") MILLRACE_NEXT_ROW(1, "m", "n")
            MILLRACE_HIGH MILLRACE_HIGH_ROW(0) MILLRACE_HIGH_ROW(1)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SCRATCH
        : MILLRACE_NIBBLES, MILLRACE_X);
  }
}

// sum (int32) += signed codes by the activations.
template <int kRows>
MILLRACE_INLINE inline void signed_step(const __m256i& wa, const __m256i& wb, const uint8_t* q,
                                        Dots<2, kRows>& sum) {
  __m256i a, b, m, n, x, p;
  const __m256i one = _mm256_set1_epi16(1);
  if constexpr (kRows == 4) {
    asm(MILLRACE_LOAD_SIGNED MILLRACE_SIGNED_ROW(0) MILLRACE_SIGNED_ROW(1) MILLRACE_SIGNED_ROW(2)
            MILLRACE_SIGNED_ROW(3)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SUM(2, "+x"),
          MILLRACE_SUM(3, "+x"), [a] "=&x"(a), [b] "=&x"(b), [m] "=&x"(m), [n] "=&x"(n),
          [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X, [one] "x"(one));
  } else if constexpr (kRows == 3) {
    asm(MILLRACE_LOAD_SIGNED MILLRACE_SIGNED_ROW(0) MILLRACE_SIGNED_ROW(1) MILLRACE_SIGNED_ROW(2)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SUM(2, "+x"), [a] "=&x"(a),
          [b] "=&x"(b), [m] "=&x"(m), [n] "=&x"(n), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X, [one] "x"(one));
  } else {
    static_assert(kRows == 2);
    asm(MILLRACE_LOAD_SIGNED MILLRACE_SIGNED_ROW(0) MILLRACE_SIGNED_ROW(1)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), [a] "=&x"(a), [b] "=&x"(b), [m] "=&x"(m),
          [n] "=&x"(n), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X, [one] "x"(one));
  }
}

#undef MILLRACE_FIRST_ROW
#undef MILLRACE_ADD_ROW
#undef MILLRACE_NEXT_ROW
#undef MILLRACE_HIGH_ROW
#undef MILLRACE_LOW
#undef MILLRACE_HIGH
#undef MILLRACE_SCRATCH
#undef MILLRACE_NIBBLES
#undef MILLRACE_SIGNED_ROW
#undef MILLRACE_LOAD_CODES
#undef MILLRACE_LOAD_SIGNED
#undef MILLRACE_SUM
#undef MILLRACE_CODES
#undef MILLRACE_X

}  // namespace
}  // namespace millrace::kernels
