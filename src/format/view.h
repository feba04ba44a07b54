// A WeightView says how one matrix or vector of a piece is cut out of source tensors, and carries it
// there and back: source bytes -> packed layout (pack_view) and packed -> source (unpack_view).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "format/layout.h"
#include "format/source.h"

namespace millrace::format {

inline constexpr uint32_t kNoTensor = UINT32_MAX;

struct WeightView {
  WeightLayout layout;  // of the packed matrix; see `vector` for 1-D tensors
  // 1-D: stored as the source's own bytes (f32, f16 or bf16), cols elements, rows = 1. index, row_begin and
  // row_step select elements as they select rows of a matrix: element i is [index][row_begin + i * row_step].
  bool vector = false;
  bool transposed = false;      // source is stored [cols, source rows] (float formats only)
  uint32_t weight = kNoTensor;  // index into ModelSource::tensors
  uint32_t scales = kNoTensor;  // affine, mxfp4 with separate scales, fp8_e4m3, nvfp4
  uint32_t biases = kNoTensor;  // affine; nvfp4: the scale of the whole matrix
  uint16_t scale_rows = 0;      // fp8_e4m3: a scale serves so many rows
  uint16_t scale_cols = 0;      // and columns (a multiple of 32)
  uint64_t index = 0;           // which matrix of a stacked tensor [..., rows, cols]
  uint32_t row_begin = 0;       // first source row used
  uint32_t row_step = 1;        // 2 for interleaved gate/up
};

// A contiguous run of bytes of a source file.
struct Extent {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// The extents that hold what the view needs: [0] weight, [1] scales, [2] biases (bytes == 0 if unused).
// Fails when shape, type or bounds do not fit the view.
Expected<std::array<Extent, 3>> view_extents(const ModelSource& source, const WeightView& view);

uint64_t view_bytes(const WeightView& view);  // bytes in the piece

// Whether source tensor i of the view ([0] weight, [1] scales, [2] biases) is only read: its values are
// repeated in the piece, and unpacking does not write it. Packed models keep such tensors beside.
bool only_read(const WeightView& view, size_t i);

// `from[i]` holds the bytes of extent i. `to` has view_bytes(view) bytes. Pure permutation, no failure.
void pack_view(const ModelSource& source, const WeightView& view,
               const std::array<std::span<const std::byte>, 3>& from, std::span<std::byte> to);
// Inverse: writes those bytes of `to[i]` that the view covers and leaves the others alone.
void unpack_view(const ModelSource& source, const WeightView& view, std::span<const std::byte> from,
                 const std::array<std::span<std::byte>, 3>& to);

// Layout that a source tensor (with optional scales/biases) has once packed; nullopt-like error names the tensor.
// `quant_bits`/`quant_group`: affine parameters when `scales` is given and the weight is u32 codes.
struct QuantParams {
  uint8_t bits = 0;
  uint16_t group = 0;
  bool mxfp4 = false;
  uint16_t scale_rows = 128, scale_cols = 128;  // fp8_e4m3
};
Expected<WeightLayout> layout_of(const ModelSource& source, uint32_t weight, uint32_t scales,
                                 uint32_t biases, const QuantParams& quant);

}  // namespace millrace::format
