// The scalar matrix products: the definition of the bits (kernels/matmul.h), written to be read.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/codes.h"
#include "kernels/cpu/kernels.h"

namespace millrace::kernels::scalar {
namespace {

using format::WeightFormat;
using format::WeightLayout;

// One group (32 inner positions) of one row of activations.
struct GroupRow {
  const int8_t* q;
  float dx;
  int32_t sum0, sum1;  // of the first and second 16 codes
  int32_t sum() const { return sum0 + sum1; }
};

// Where a group of one output row lies, and how its codes read.
struct Codes {
  const uint8_t* planes;
  uint32_t bits;
  uint32_t row;
  int32_t offset = 0;             // subtracted from the code
  const int8_t* table = nullptr;  // replaces the code
  bool is_signed = false;         // q8_0

  int32_t at(uint32_t k) const {
    const uint32_t code = code_at(planes, bits, row, k);
    if (table) return table[code];
    if (is_signed) return static_cast<int8_t>(code);
    return static_cast<int32_t>(code) - offset;
  }
  int32_t dot(const GroupRow& x, uint32_t begin = 0, uint32_t end = 32) const {
    int32_t total = 0;
    for (uint32_t k = begin; k < end; ++k) total += at(k) * x.q[k];
    return total;
  }
};

float fma_int(float scale, int32_t value, float acc) {
  return std::fma(scale, static_cast<float>(value), acc);
}

// How the codes of a format read (k-quants' minimums and affine biases come in through the sums).
Codes codes_of(const WeightLayout& layout, const uint8_t* planes, uint32_t row) {
  Codes codes{planes, format::code_bits(layout), row};
  switch (layout.format) {
    case WeightFormat::kQ4_0:
      codes.offset = 8;
      break;
    case WeightFormat::kQ5_0:
      codes.offset = 16;
      break;
    case WeightFormat::kQ3_K:
      codes.offset = 4;
      break;
    case WeightFormat::kQ6_K:
      codes.offset = 32;
      break;
    case WeightFormat::kQ8_0:
      codes.is_signed = true;
      break;
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
      codes.table = format::kIQ4Values;
      break;
    case WeightFormat::kMXFP4:
      codes.table = format::kE2M1Doubled;
      break;
    default:
      break;
  }
  return codes;
}

// Adds the groups of one block to acc. `x(g)` gives group g of the block.
template <class X>
float add_block(const WeightLayout& layout, const uint8_t* block, uint32_t row, float acc, X x) {
  const uint32_t plane_bytes = 32 * format::code_bits(layout);
  const auto codes = [&](const uint8_t* planes) { return codes_of(layout, planes, row); };
  switch (layout.format) {
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ8_0:
    case WeightFormat::kIQ4_NL: {
      const GroupRow r = x(0);
      return fma_int(load_f16(block + 2 * row) * r.dx, codes(block + 16).dot(r), acc);
    }
    case WeightFormat::kMXFP4: {
      const GroupRow r = x(0);
      return fma_int(e8m0_to_f32(block[row]) * 0.5f * r.dx, codes(block + 8).dot(r), acc);
    }
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1: {
      const GroupRow r = x(0);
      acc = fma_int(load_f16(block + 2 * row) * r.dx, codes(block + 32).dot(r), acc);
      return fma_int(load_f16(block + 16 + 2 * row) * r.dx, r.sum(), acc);
    }
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K: {
      const float d = load_f16(block + 2 * row);
      const float dmin = load_f16(block + 16 + 2 * row);
      for (uint32_t g = 0; g < 8; ++g) {
        const uint8_t* group = block + 32 + g * (16 + plane_bytes);
        const GroupRow r = x(g);
        acc = fma_int(d * r.dx, group[row] * codes(group + 16).dot(r), acc);
        acc = fma_int(-(dmin * r.dx), group[8 + row] * r.sum(), acc);
      }
      return acc;
    }
    case WeightFormat::kQ6_K:
    case WeightFormat::kQ3_K: {
      const bool q6 = layout.format == WeightFormat::kQ6_K;
      const auto scale = [&](uint8_t s) { return q6 ? static_cast<int8_t>(s) : int32_t{s} - 32; };
      const float d = load_f16(block + 2 * row);
      for (uint32_t g = 0; g < 8; ++g) {
        const uint8_t* group = block + 16 + g * (16 + plane_bytes);
        const Codes c = codes(group + 16);
        const GroupRow r = x(g);
        const int32_t total =
            scale(group[row]) * c.dot(r, 0, 16) + scale(group[8 + row]) * c.dot(r, 16, 32);
        acc = fma_int(d * r.dx, total, acc);
      }
      return acc;
    }
    case WeightFormat::kQ2_K: {
      const float d = load_f16(block + 2 * row);
      const float dmin = load_f16(block + 16 + 2 * row);
      for (uint32_t g = 0; g < 8; ++g) {
        const uint8_t* group = block + 32 + g * (16 + plane_bytes);
        const Codes c = codes(group + 16);
        const GroupRow r = x(g);
        const int32_t s0 = group[row], s1 = group[8 + row];
        acc = fma_int(d * r.dx, (s0 & 15) * c.dot(r, 0, 16) + (s1 & 15) * c.dot(r, 16, 32), acc);
        acc = fma_int(-(dmin * r.dx), (s0 >> 4) * r.sum0 + (s1 >> 4) * r.sum1, acc);
      }
      return acc;
    }
    case WeightFormat::kIQ4_XS: {
      const float d = load_f16(block + 2 * row);
      for (uint32_t g = 0; g < 8; ++g) {
        const uint8_t* group = block + 16 + g * (8 + plane_bytes);
        const GroupRow r = x(g);
        acc = fma_int(d * r.dx, (int32_t{group[row]} - 32) * codes(group + 8).dot(r), acc);
      }
      return acc;
    }
    case WeightFormat::kAffine: {
      const uint32_t biases = 8 * scale_bytes(layout.scale_type);
      const float s = load_scale(block, row, layout.scale_type);
      const float b = load_scale(block + biases, row, layout.scale_type);
      for (uint32_t g = 0; g < layout.group / 32u; ++g) {
        const GroupRow r = x(g);
        acc = fma_int(s * r.dx, codes(block + 2 * biases + g * plane_bytes).dot(r), acc);
        acc = fma_int(b * r.dx, r.sum(), acc);
      }
      return acc;
    }
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
    case WeightFormat::kFP8_E4M3:
    case WeightFormat::kNVFP4:
      break;  // never with int8 activations
  }
  return acc;
}

template <class F>
void for_outputs(const MatmulArgs& args, F&& f) {
  for (uint32_t tile = args.tile_begin; tile < args.tile_end; ++tile) {
    for (uint32_t lane = 0; lane < format::kTileRows; ++lane) {
      const uint32_t n = tile * format::kTileRows + lane;
      if (n < args.weight.layout.rows) f(tile, lane, n);
    }
  }
}

}  // namespace

void matmul_i8(const MatmulArgs& args) {
  const WeightLayout& layout = args.weight.layout;
  const auto* packed = reinterpret_cast<const uint8_t*>(args.weight.data);
  const uint64_t tile_bytes = format::tile_bytes(layout);
  const uint64_t block_bytes = format::block_bytes(layout);
  const uint32_t block_cols = format::block_cols(layout);
  const uint64_t groups = layout.cols / format::kGroup;
  for_outputs(args, [&](uint32_t tile, uint32_t lane, uint32_t n) {
    for (uint32_t r = 0; r < args.rows.count; ++r) {
      const uint8_t* block = packed + tile * tile_bytes;
      float acc = 0.0f;
      for (uint32_t k = 0; k < layout.cols; k += block_cols, block += block_bytes) {
        acc = add_block(layout, block, lane, acc, [&](uint32_t g) {
          const uint64_t at = r * groups + k / format::kGroup + g;
          return GroupRow{args.rows.q + at * format::kGroup, args.rows.scale[at],
                          args.rows.sum[2 * at], args.rows.sum[2 * at + 1]};
        });
      }
      args.out[r * args.out_stride + n] = acc;
    }
  });
}

void matmul_f32(const MatmulArgs& args) {
  const WeightLayout& layout = args.weight.layout;
  std::vector<float> w(layout.cols);
  for_outputs(args, [&](uint32_t, uint32_t, uint32_t n) {
    format::dequantize_row(layout, args.weight.data, n, w.data());
    for (uint32_t r = 0; r < args.rows.count; ++r) {
      const float* x = args.rows.f32 + r * args.rows.stride;
      float acc = 0.0f;
      for (uint32_t k = 0; k < layout.cols; ++k) acc = std::fma(w[k], x[k], acc);
      args.out[r * args.out_stride + n] = acc;
    }
  });
}

}  // namespace millrace::kernels::scalar
