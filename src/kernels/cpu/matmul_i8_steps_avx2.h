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

// c, d: accumulators of the two tiles. x, p: scratch. a, b: codes.
#define MILLRACE_FIRST_ROW(r)             \
  "vpbroadcastd %[q" #r "], %[x]\n\t"     \
  "vpmaddubsw %[x], %[a], %[c" #r "]\n\t" \
  "vpmaddubsw %[x], %[b], %[d" #r "]\n\t"
#define MILLRACE_NEXT_ROW(r)                \
  "vpbroadcastd %[q" #r "], %[x]\n\t"       \
  "vpmaddubsw %[x], %[a], %[p]\n\t"         \
  "vpmaddubsw %[x], %[b], %[x]\n\t"         \
  "vpaddw %[p], %[c" #r "], %[c" #r "]\n\t" \
  "vpaddw %[x], %[d" #r "], %[d" #r "]\n\t"
// Signed codes: |w| by x with w's sign; a, b are the codes, m, n their magnitudes.
#define MILLRACE_SIGNED_ROW(r)              \
  "vpbroadcastd %[q" #r "], %[x]\n\t"       \
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
#define MILLRACE_X(r) [q##r] "m"(*reinterpret_cast<const uint32_t(*)[1]>(q + 32 * r))

// sum (int16) = or += codes by the activations; row r's four are at q + 32 r.
template <int kRows, bool kFirst>
MILLRACE_INLINE inline void step(const __m256i& wa, const __m256i& wb, const uint8_t* q,
                                 Dots<2, kRows>& sum) {
  __m256i a, b, x, p;
  if constexpr (kRows == 4 && kFirst) {
    asm(MILLRACE_LOAD_CODES MILLRACE_FIRST_ROW(0) MILLRACE_FIRST_ROW(1) MILLRACE_FIRST_ROW(2)
            MILLRACE_FIRST_ROW(3)
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"), MILLRACE_SUM(2, "=&x"),
          MILLRACE_SUM(3, "=&x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1), MILLRACE_X(2), MILLRACE_X(3));
  } else if constexpr (kRows == 4) {
    asm(MILLRACE_LOAD_CODES MILLRACE_NEXT_ROW(0) MILLRACE_NEXT_ROW(1) MILLRACE_NEXT_ROW(2)
            MILLRACE_NEXT_ROW(3)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SUM(2, "+x"),
          MILLRACE_SUM(3, "+x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1), MILLRACE_X(2), MILLRACE_X(3));
  } else if constexpr (kRows == 3 && kFirst) {
    asm(MILLRACE_LOAD_CODES MILLRACE_FIRST_ROW(0) MILLRACE_FIRST_ROW(1) MILLRACE_FIRST_ROW(2)
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"),
          MILLRACE_SUM(2, "=&x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1), MILLRACE_X(2));
  } else if constexpr (kRows == 3) {
    asm(MILLRACE_LOAD_CODES MILLRACE_NEXT_ROW(0) MILLRACE_NEXT_ROW(1) MILLRACE_NEXT_ROW(2)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"),
          MILLRACE_SUM(2, "+x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1), MILLRACE_X(2));
  } else if constexpr (kFirst) {
    static_assert(kRows == 2);
    asm(MILLRACE_LOAD_CODES MILLRACE_FIRST_ROW(0) MILLRACE_FIRST_ROW(1)
        : MILLRACE_SUM(0, "=&x"), MILLRACE_SUM(1, "=&x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1));
  } else {
    asm(MILLRACE_LOAD_CODES MILLRACE_NEXT_ROW(0) MILLRACE_NEXT_ROW(1)
        : MILLRACE_SUM(0, "+x"),
          MILLRACE_SUM(1, "+x"), [a] "=&x"(a), [b] "=&x"(b), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1));
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
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1), MILLRACE_X(2),
          MILLRACE_X(3), [one] "x"(one));
  } else if constexpr (kRows == 3) {
    asm(MILLRACE_LOAD_SIGNED MILLRACE_SIGNED_ROW(0) MILLRACE_SIGNED_ROW(1) MILLRACE_SIGNED_ROW(2)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), MILLRACE_SUM(2, "+x"), [a] "=&x"(a),
          [b] "=&x"(b), [m] "=&x"(m), [n] "=&x"(n), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1), MILLRACE_X(2), [one] "x"(one));
  } else {
    static_assert(kRows == 2);
    asm(MILLRACE_LOAD_SIGNED MILLRACE_SIGNED_ROW(0) MILLRACE_SIGNED_ROW(1)
        : MILLRACE_SUM(0, "+x"), MILLRACE_SUM(1, "+x"), [a] "=&x"(a), [b] "=&x"(b), [m] "=&x"(m),
          [n] "=&x"(n), [x] "=&x"(x), [p] "=&x"(p)
        : MILLRACE_CODES, MILLRACE_X(0), MILLRACE_X(1), [one] "x"(one));
  }
}

#undef MILLRACE_FIRST_ROW
#undef MILLRACE_NEXT_ROW
#undef MILLRACE_SIGNED_ROW
#undef MILLRACE_LOAD_CODES
#undef MILLRACE_LOAD_SIGNED
#undef MILLRACE_SUM
#undef MILLRACE_CODES
#undef MILLRACE_X

}  // namespace
}  // namespace millrace::kernels
