// What a view needs to know of its source tensors to walk over them.
#pragma once

#include "format/view.h"

namespace millrace::format {

// How the weight codes lie in the source.
enum class Encoding : uint8_t {
  kFloat,   // plain values
  kGgml,    // GGUF blocks
  kStream,  // codes as one little-endian stream a row; scales apart (MLX, gpt-oss)
};

struct ViewShape {
  Encoding encoding = Encoding::kFloat;
  uint64_t source_rows = 0;  // rows of one matrix (of the source's own last-but-one axis)
  uint64_t matrices = 1;     // product of the leading axes
  std::array<uint64_t, 3> row_bytes = {0, 0, 0};  // of weight, scales, biases; 0: unused
};

// Checks types, shapes and bounds of a view against its source.
Expected<ViewShape> view_shape(const ModelSource& source, const WeightView& view);

// The row bytes of a checked view, from its layout alone.
std::array<uint64_t, 3> source_row_bytes(const WeightLayout& layout, bool separate_scales);

}  // namespace millrace::format
