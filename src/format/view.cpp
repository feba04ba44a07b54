// Which bytes of the source a view covers, and whether the source fits it.
#include "format/view.h"

#include <fmt/format.h>

#include "format/source_readers.h"
#include "format/view_shape.h"

namespace millrace::format {
namespace {

struct TypePair {
  SourceType type;
  WeightFormat format;
};
constexpr TypePair kFormats[] = {
    {SourceType::kF32, WeightFormat::kF32},       {SourceType::kF16, WeightFormat::kF16},
    {SourceType::kBF16, WeightFormat::kBF16},     {SourceType::kQ4_0, WeightFormat::kQ4_0},
    {SourceType::kQ4_1, WeightFormat::kQ4_1},     {SourceType::kQ5_0, WeightFormat::kQ5_0},
    {SourceType::kQ5_1, WeightFormat::kQ5_1},     {SourceType::kQ8_0, WeightFormat::kQ8_0},
    {SourceType::kQ2_K, WeightFormat::kQ2_K},     {SourceType::kQ3_K, WeightFormat::kQ3_K},
    {SourceType::kQ4_K, WeightFormat::kQ4_K},     {SourceType::kQ5_K, WeightFormat::kQ5_K},
    {SourceType::kQ6_K, WeightFormat::kQ6_K},     {SourceType::kIQ4_NL, WeightFormat::kIQ4_NL},
    {SourceType::kIQ4_XS, WeightFormat::kIQ4_XS}, {SourceType::kMXFP4, WeightFormat::kMXFP4},
};

const TypePair* pair_of(SourceType type) {
  for (const TypePair& pair : kFormats) {
    if (pair.type == type) return &pair;
  }
  return nullptr;
}

bool is_float(WeightFormat format) {
  return format == WeightFormat::kF32 || format == WeightFormat::kF16 ||
         format == WeightFormat::kBF16;
}

// A tensor seen as a stack of matrices; gpt-oss blocks [.., rows, groups, 16] as [.., rows, bytes].
struct Stack {
  uint64_t matrices = 1;
  uint64_t rows = 1;
  uint64_t cols = 1;  // elements of the last axis
};

Stack stack_of(const SourceTensor& tensor, bool blocks) {
  std::vector<uint64_t> shape = tensor.shape;
  Stack stack;
  if (blocks && shape.size() >= 2) {
    const uint64_t width = shape.back();
    shape.pop_back();
    shape.back() *= width;
  }
  if (!shape.empty()) {
    stack.cols = shape.back();
    shape.pop_back();
  }
  if (!shape.empty()) {
    stack.rows = shape.back();
    shape.pop_back();
  }
  for (const uint64_t axis : shape) stack.matrices *= axis;
  return stack;
}

Expected<const SourceTensor*> tensor_at(const ModelSource& source, uint32_t index,
                                        std::string_view what) {
  if (index >= source.tensors.size())
    return fail(Code::kInternal, "view without a {} tensor", what);
  return &source.tensors[index];
}

tl::unexpected<Error> misfit(const SourceTensor& tensor, std::string_view problem) {
  return fail(Code::kInvalid, "tensor '{}' ({} {}): {}", tensor.name, info(tensor.type).name,
              shape_text(tensor.shape), problem);
}

// What MLX calls the scales or biases of a weight.
std::string beside(const SourceTensor& weight, std::string_view what) {
  std::string_view module = weight.name;
  if (module.ends_with(".weight")) module.remove_suffix(7);
  return fmt::format("{}.{}", module, what);
}

Expected<ScaleType> scale_type_of(const SourceTensor& tensor) {
  if (tensor.type == SourceType::kF32) return ScaleType::kF32;
  if (tensor.type == SourceType::kF16) return ScaleType::kF16;
  if (tensor.type == SourceType::kBF16) return ScaleType::kBF16;
  return misfit(tensor, "scales and biases must be f32, f16 or bf16");
}

// Scales or biases beside a stack of `weight` rows.
Status check_side(const SourceTensor& tensor, const Stack& weight, uint64_t groups) {
  const Stack side = stack_of(tensor, false);
  if (side.matrices == weight.matrices && side.rows == weight.rows && side.cols == groups)
    return {};
  return misfit(tensor, fmt::format("does not fit weights of {} x {} rows in {} groups",
                                    weight.matrices, weight.rows, groups));
}

bool is_blocks(const SourceTensor& weight) {
  return weight.type == SourceType::kU8 && weight.shape.size() >= 3 && weight.shape.back() == 16;
}

Expected<WeightLayout> mxfp4_layout(const ModelSource& source, const SourceTensor& weight,
                                    uint32_t scales_index) {
  const bool blocks = is_blocks(weight);
  if (!blocks && weight.type != SourceType::kU32) {
    return misfit(weight, "mxfp4 codes must be u32, or u8 [.., groups, 16]");
  }
  MILLRACE_ASSIGN(const SourceTensor* scales, tensor_at(source, scales_index, "scales"));
  if (scales->type != SourceType::kU8 && scales->type != SourceType::kF8E8M0) {
    return misfit(*scales, "mxfp4 scales must be u8");
  }
  const Stack stack = stack_of(weight, blocks);
  const uint64_t bytes = blocks ? stack.cols : stack.cols * 4;
  if (bytes % 16 != 0) return misfit(weight, "mxfp4 rows must be whole groups of 32");
  MILLRACE_TRY(check_side(*scales, stack, bytes / 16));
  if (stack.rows > UINT32_MAX || bytes * 2 > UINT32_MAX) return misfit(weight, "is too large");
  WeightLayout layout;
  layout.format = WeightFormat::kMXFP4;
  layout.rows = static_cast<uint32_t>(stack.rows);
  layout.cols = static_cast<uint32_t>(bytes * 2);
  return layout;
}

Expected<WeightLayout> affine_layout(const ModelSource& source, const SourceTensor& weight,
                                     uint32_t scales_index, uint32_t biases_index,
                                     const QuantParams& quant) {
  if (weight.type != SourceType::kU32) return misfit(weight, "affine codes must be u32");
  MILLRACE_ASSIGN(const SourceTensor* scales, tensor_at(source, scales_index, "scales"));
  if (biases_index == kNoTensor) {
    return misfit(weight, fmt::format("affine, without '{}'", beside(weight, "biases")));
  }
  MILLRACE_ASSIGN(const SourceTensor* biases, tensor_at(source, biases_index, "biases"));
  const Stack stack = stack_of(weight, false);
  if (quant.bits == 0 || quant.group == 0) {
    return misfit(weight, "bits and group of its quantization are not known");
  }
  WeightLayout layout;
  layout.format = WeightFormat::kAffine;
  layout.bits = quant.bits;
  layout.group = quant.group;
  layout.rows = 1;
  layout.cols = quant.group;
  if (auto known = check_layout(layout); !known) return misfit(weight, known.error().message);
  if (stack.cols > UINT32_MAX || stack.cols * 32 % quant.bits != 0) {
    return misfit(weight, fmt::format("rows are not whole codes of {} bits", quant.bits));
  }
  const uint64_t cols = stack.cols * 32 / quant.bits;
  if (stack.rows > UINT32_MAX || cols > UINT32_MAX) return misfit(weight, "is too large");
  layout.rows = static_cast<uint32_t>(stack.rows);
  layout.cols = static_cast<uint32_t>(cols);
  MILLRACE_ASSIGN(layout.scale_type, scale_type_of(*scales));
  if (biases->type != scales->type) return misfit(*biases, "type differs from that of the scales");
  if (auto fits = check_layout(layout); !fits) return misfit(weight, fits.error().message);
  MILLRACE_TRY(check_side(*scales, stack, cols / quant.group));
  MILLRACE_TRY(check_side(*biases, stack, cols / quant.group));
  return layout;
}

uint64_t parts_of(uint64_t count, uint64_t part) { return (count + part - 1) / part; }

Expected<WeightLayout> fp8_layout(const ModelSource& source, const SourceTensor& weight,
                                  uint32_t scales_index, const QuantParams& quant) {
  MILLRACE_ASSIGN(const SourceTensor* scales, tensor_at(source, scales_index, "scales"));
  MILLRACE_TRY(scale_type_of(*scales));
  if (quant.scale_rows == 0 || quant.scale_cols == 0 || quant.scale_cols % kGroup != 0) {
    return misfit(weight,
                  fmt::format("scales for {} x {} weights (columns must be a multiple of {})",
                              quant.scale_rows, quant.scale_cols, kGroup));
  }
  const Stack stack = stack_of(weight, false), side = stack_of(*scales, false);
  if (stack.rows > UINT32_MAX || stack.cols > UINT32_MAX) return misfit(weight, "is too large");
  if (side.matrices != stack.matrices || side.rows != parts_of(stack.rows, quant.scale_rows) ||
      side.cols != parts_of(stack.cols, quant.scale_cols)) {
    return misfit(
        *scales,
        fmt::format("does not fit weights of {} x {} x {} with a scale for {} x {}", stack.matrices,
                    stack.rows, stack.cols, quant.scale_rows, quant.scale_cols));
  }
  WeightLayout layout;
  layout.format = WeightFormat::kFP8_E4M3;
  layout.rows = static_cast<uint32_t>(stack.rows);
  layout.cols = static_cast<uint32_t>(stack.cols);
  return layout;
}

Expected<WeightLayout> nvfp4_layout(const ModelSource& source, const SourceTensor& weight,
                                    uint32_t scales_index, uint32_t whole_index) {
  MILLRACE_ASSIGN(const SourceTensor* scales, tensor_at(source, scales_index, "scales"));
  if (whole_index == kNoTensor) {
    return misfit(weight, fmt::format("nvfp4, without '{}'", beside(weight, "weight_scale_2")));
  }
  MILLRACE_ASSIGN(const SourceTensor* whole, tensor_at(source, whole_index, "scale"));
  const Stack stack = stack_of(weight, false);
  if (stack.rows > UINT32_MAX || stack.cols > UINT32_MAX / 2) return misfit(weight, "is too large");
  if (stack.cols % 16 != 0) return misfit(weight, "nvfp4 rows must be whole groups of 32");
  MILLRACE_TRY(check_side(*scales, stack, stack.cols / 8));
  uint64_t values = 1;
  for (const uint64_t axis : whole->shape) values *= axis;
  if (whole->type != SourceType::kF32 || (values != 1 && values != stack.matrices))
    return misfit(*whole, "must be one f32, or one for each matrix");
  WeightLayout layout;
  layout.format = WeightFormat::kNVFP4;
  layout.rows = static_cast<uint32_t>(stack.rows);
  layout.cols = static_cast<uint32_t>(stack.cols * 2);
  return layout;
}

// The layout of a whole matrix of the view's weight, from the source.
Expected<WeightLayout> source_layout(const ModelSource& source, const WeightView& view) {
  QuantParams quant;
  quant.bits = view.layout.bits;
  quant.group = view.layout.group;
  quant.mxfp4 = view.layout.format == WeightFormat::kMXFP4;
  quant.scale_rows = view.scale_rows;
  quant.scale_cols = view.scale_cols;
  return layout_of(source, view.weight, view.scales, view.biases, quant);
}

// Largest element or row index that a view reads must exist.
Status check_range(const SourceTensor& tensor, const WeightView& view, uint64_t count,
                   uint64_t available, std::string_view what) {
  if (view.row_step == 0) return misfit(tensor, "view with a row step of 0");
  const uint64_t last = view.row_begin + (count - 1) * view.row_step;
  if (last < available) return {};
  return misfit(tensor, fmt::format("view reads {} {} of {}", what, last, available));
}

Expected<ViewShape> vector_shape(const SourceTensor& tensor, const WeightView& view) {
  const TypePair* pair = pair_of(tensor.type);
  if (pair == nullptr || !is_float(pair->format))
    return misfit(tensor, "a vector must be f32, f16 or bf16");
  if (pair->format != view.layout.format) {
    return misfit(tensor, fmt::format("view expects {}", name(view.layout.format)));
  }
  uint64_t length = tensor.shape.empty() ? 1 : tensor.shape.back();
  ViewShape shape;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) shape.matrices *= tensor.shape[i];
  // A small tensor of several axes (a convolution) as one vector: all of it.
  if (view.layout.cols > length && view.layout.cols == shape.matrices * length) {
    length = view.layout.cols;
    shape.matrices = 1;
  }
  shape.source_rows = length;
  shape.row_bytes[0] = info(tensor.type).block_bytes;
  if (view.layout.rows != 1 || view.transposed) return misfit(tensor, "a vector has one row");
  MILLRACE_TRY(check_range(tensor, view, view.layout.cols, length, "element"));
  return shape;
}

}  // namespace

Expected<WeightLayout> layout_of(const ModelSource& source, uint32_t weight, uint32_t scales,
                                 uint32_t biases, const QuantParams& quant) {
  MILLRACE_ASSIGN(const SourceTensor* tensor, tensor_at(source, weight, "weight"));
  WeightLayout layout;
  const bool fp8_scales =
      scales < source.tensors.size() && source.tensors[scales].type == SourceType::kF8E4M3;
  if (scales != kNoTensor) {
    if (tensor->type == SourceType::kF8E4M3) {
      MILLRACE_ASSIGN(layout, fp8_layout(source, *tensor, scales, quant));
    } else if (tensor->type == SourceType::kU8 && fp8_scales) {
      MILLRACE_ASSIGN(layout, nvfp4_layout(source, *tensor, scales, biases));
    } else if (quant.mxfp4) {
      if (biases != kNoTensor) return misfit(*tensor, "mxfp4 weights have no biases");
      MILLRACE_ASSIGN(layout, mxfp4_layout(source, *tensor, scales));
    } else {
      MILLRACE_ASSIGN(layout, affine_layout(source, *tensor, scales, biases, quant));
    }
  } else {
    if (biases != kNoTensor) {
      return misfit(*tensor, fmt::format("biases without scales, '{}'", beside(*tensor, "scales")));
    }
    const TypePair* pair = pair_of(tensor->type);
    if (pair == nullptr) {
      return fail(Code::kUnsupported, "tensor '{}': type {} cannot be a weight", tensor->name,
                  info(tensor->type).name);
    }
    const Stack stack = stack_of(*tensor, false);
    if (stack.rows > UINT32_MAX || stack.cols > UINT32_MAX) return misfit(*tensor, "is too large");
    layout.format = pair->format;
    layout.rows = static_cast<uint32_t>(stack.rows);
    layout.cols = static_cast<uint32_t>(stack.cols);
  }
  if (auto fits = check_layout(layout); !fits) return misfit(*tensor, fits.error().message);
  return layout;
}

std::array<uint64_t, 3> source_row_bytes(const WeightLayout& layout, bool separate_scales) {
  const uint64_t cols = layout.cols;
  switch (layout.format) {
    case WeightFormat::kAffine: {
      const uint64_t side = cols / layout.group * (layout.scale_type == ScaleType::kF32 ? 4 : 2);
      return {cols / 8 * layout.bits, side, side};
    }
    case WeightFormat::kMXFP4:
      if (separate_scales) return {cols / 2, cols / kGroup, 0};
      break;
    case WeightFormat::kFP8_E4M3:
      return {cols, 0, 0};
    case WeightFormat::kNVFP4:
      return {cols / 2, cols / 16, 0};
    default:
      break;
  }
  for (const TypePair& pair : kFormats) {
    if (pair.format != layout.format) continue;
    const SourceTypeInfo& type = info(pair.type);
    return {cols / type.block_elements * type.block_bytes, 0, 0};
  }
  return {0, 0, 0};
}

Expected<ViewShape> view_shape(const ModelSource& source, const WeightView& view) {
  MILLRACE_ASSIGN(const SourceTensor* tensor, tensor_at(source, view.weight, "weight"));
  if (auto fits = check_layout(view.layout); !fits) return misfit(*tensor, fits.error().message);
  ViewShape shape;
  if (view.vector) {
    MILLRACE_ASSIGN(shape, vector_shape(*tensor, view));
  } else {
    MILLRACE_ASSIGN(const WeightLayout whole, source_layout(source, view));
    const WeightLayout& packed = view.layout;
    const bool affine = whole.format == WeightFormat::kAffine;
    if (whole.format != packed.format || (affine && whole.scale_type != packed.scale_type)) {
      return misfit(*tensor, fmt::format("view expects {}", name(packed.format)));
    }
    const Stack stack =
        stack_of(*tensor, whole.format == WeightFormat::kMXFP4 && is_blocks(*tensor));
    shape.matrices = stack.matrices;
    shape.source_rows = stack.rows;
    shape.row_bytes = source_row_bytes(whole, view.scales != kNoTensor);
    if (is_float(packed.format)) {
      shape.encoding = Encoding::kFloat;
    } else {
      shape.encoding = view.scales == kNoTensor ? Encoding::kGgml : Encoding::kStream;
    }
    if (view.transposed && shape.encoding != Encoding::kFloat) {
      return misfit(*tensor, "only float weights can be transposed");
    }
    const uint64_t inner = view.transposed ? whole.rows : whole.cols;
    if (inner != packed.cols)
      return misfit(*tensor, fmt::format("view expects {} columns", packed.cols));
    MILLRACE_TRY(
        check_range(*tensor, view, packed.rows, view.transposed ? whole.cols : whole.rows, "row"));
  }
  if (view.index >= shape.matrices) {
    return misfit(*tensor, fmt::format("view reads matrix {} of {}", view.index, shape.matrices));
  }
  return shape;
}

bool only_read(const WeightView& view, size_t i) {
  return (view.layout.format == WeightFormat::kFP8_E4M3 && i == 1) ||
         (view.layout.format == WeightFormat::kNVFP4 && i == 2);
}

namespace {

// Of a tensor that is only read: the rows of scales that the view's rows need, or the one scale.
Extent read_extent(const ModelSource& source, const WeightView& view, const ViewShape& shape,
                   uint32_t index) {
  const SourceTensor& tensor = source.tensors[index];
  Extent extent;
  extent.file = tensor.file;
  if (view.layout.format == WeightFormat::kNVFP4) {
    extent.offset = tensor.offset + (tensor.bytes > 4 ? 4 * view.index : 0);
    extent.bytes = 4;
    return extent;
  }
  const uint64_t unit = parts_of(view.layout.cols, view.scale_cols) * info(tensor.type).block_bytes;
  const uint64_t first = view.row_begin / view.scale_rows;
  const uint64_t last =
      (view.row_begin + uint64_t{view.layout.rows - 1} * view.row_step) / view.scale_rows;
  const uint64_t before = view.index * parts_of(shape.source_rows, view.scale_rows) + first;
  extent.offset = tensor.offset + before * unit;
  extent.bytes = (last - first + 1) * unit;
  return extent;
}

}  // namespace

Expected<std::array<Extent, 3>> view_extents(const ModelSource& source, const WeightView& view) {
  MILLRACE_ASSIGN(const ViewShape shape, view_shape(source, view));
  const std::array<uint32_t, 3> tensors = {view.weight, view.scales, view.biases};
  const uint64_t count = view.vector ? view.layout.cols : view.layout.rows;
  std::array<Extent, 3> extents;
  for (size_t i = 0; i < 3; ++i) {
    if (tensors[i] != kNoTensor && !view.vector && only_read(view, i)) {
      extents[i] = read_extent(source, view, shape, tensors[i]);
      continue;
    }
    if (tensors[i] == kNoTensor || shape.row_bytes[i] == 0) continue;
    const SourceTensor& tensor = source.tensors[tensors[i]];
    extents[i].file = tensor.file;
    uint64_t unit = shape.row_bytes[i];
    const uint64_t matrix = view.index * shape.source_rows * unit;
    uint64_t steps = (count - 1) * view.row_step;
    if (view.transposed) {
      // Row r of the result is column r of the source: the run spans every source row.
      unit = info(tensor.type).block_bytes;
      steps += (view.layout.cols - 1) * (shape.row_bytes[i] / unit);
    }
    extents[i].offset = tensor.offset + matrix + view.row_begin * unit;
    extents[i].bytes = (steps + 1) * unit;
    if (extents[i].offset + extents[i].bytes > tensor.offset + tensor.bytes) {
      return misfit(tensor, "has fewer bytes than its shape needs");
    }
  }
  return extents;
}

uint64_t view_bytes(const WeightView& view) {
  if (!view.vector) return packed_bytes(view.layout);
  return uint64_t{view.layout.cols} * (view.layout.format == WeightFormat::kF32 ? 4 : 2);
}

}  // namespace millrace::format
