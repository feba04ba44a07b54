// Source rows -> tiles and back. Every format is walked the same way: the eight rows of a tile are
// re-coded one by one into records (block_codecs.h), which are then interleaved (row_record.h).
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/numeric.h"
#include "format/block_codecs.h"
#include "format/view.h"
#include "format/view_shape.h"

namespace millrace::format {
namespace {

// Pointers to row 0 of the three streams and the distance between two rows of the view.
template <class Byte>
struct Streams {
  std::array<Byte*, 3> base = {};
  std::array<uint64_t, 3> stride = {};
};

template <class Byte, class Span>
Streams<Byte> streams_of(const WeightView& view, const std::array<Span, 3>& spans) {
  Streams<Byte> streams;
  const auto bytes = source_row_bytes(view.layout, view.scales != kNoTensor);
  for (size_t i = 0; i < 3; ++i) {
    streams.base[i] = reinterpret_cast<Byte*>(spans[i].data());
    streams.stride[i] = bytes[i] * view.row_step;
  }
  return streams;
}

uint32_t rows_of_tile(const WeightLayout& layout, uint32_t tile) {
  return std::min(kTileRows, layout.rows - tile * kTileRows);
}
uint32_t tiles_of(const WeightLayout& layout) { return (layout.rows - 1) / kTileRows + 1; }

// Calls body(tile block, first source row, rows) for every block of every tile, in order; `encode`
// and `decode` of GGUF blocks are looked up by type at compile time so that they inline.
template <class Codec>
void pack_blocks(const WeightLayout& layout, const Streams<const uint8_t>& from, uint8_t* to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  const uint32_t blocks = layout.cols / Codec::kCols;
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    const uint8_t* source = from.base[0] + uint64_t{tile} * kTileRows * from.stride[0];
    if (rows < kTileRows) std::memset(records, 0, sizeof(records));
    for (uint32_t b = 0; b < blocks; ++b, source += Codec::kBlockBytes) {
      if (rows == kTileRows) {
        for (uint32_t r = 0; r < kTileRows; ++r) {
          Codec::encode(source + r * from.stride[0], records + kMaxRecord * r);
        }
      } else {
        for (uint32_t r = 0; r < rows; ++r) {
          Codec::encode(source + r * from.stride[0], records + kMaxRecord * r);
        }
      }
      interleave(Codec::kShape, records, to);
      to += kTileRows * Codec::kShape.bytes();
    }
  }
}

template <class Codec>
void unpack_blocks(const WeightLayout& layout, const uint8_t* from, const Streams<uint8_t>& to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  const uint32_t blocks = layout.cols / Codec::kCols;
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    uint8_t* target = to.base[0] + uint64_t{tile} * kTileRows * to.stride[0];
    for (uint32_t b = 0; b < blocks; ++b, target += Codec::kBlockBytes) {
      separate(Codec::kShape, from, records);
      from += kTileRows * Codec::kShape.bytes();
      for (uint32_t r = 0; r < rows; ++r)
        Codec::decode(records + kMaxRecord * r, target + r * to.stride[0]);
    }
  }
}

// Affine and separate-scale mxfp4: codes as a stream, `heads` values of `Scale` beside each block.
template <int kBits, class Scale>
struct StreamShape {
  RecordShape record;
  uint32_t groups;
  uint32_t side_streams;  // 2: scales and biases; 1: scales only

  explicit StreamShape(const WeightLayout& layout) {
    groups = block_cols(layout) / kGroup;
    side_streams = layout.format == WeightFormat::kAffine ? 2 : 1;
    record = {sizeof(Scale), side_streams, groups, 0, kBits};
  }
};

template <int kBits, class Scale>
void pack_stream(const WeightLayout& layout, const Streams<const uint8_t>& from, uint8_t* to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  const StreamShape<kBits, Scale> shape(layout);
  const uint32_t blocks = layout.cols / block_cols(layout);
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    if (rows < kTileRows) std::memset(records, 0, sizeof(records));
    for (uint32_t b = 0; b < blocks; ++b) {
      for (uint32_t r = 0; r < rows; ++r) {
        const uint64_t row = uint64_t{tile} * kTileRows + r;
        uint8_t* record = records + kMaxRecord * r;
        for (uint32_t i = 0; i < shape.side_streams; ++i, record += sizeof(Scale)) {
          std::memcpy(record, from.base[1 + i] + row * from.stride[1 + i] + sizeof(Scale) * b,
                      sizeof(Scale));
        }
        const uint8_t* codes =
            from.base[0] + row * from.stride[0] + uint64_t{4 * kBits} * shape.groups * b;
        for (uint32_t g = 0; g < shape.groups; ++g, codes += 4 * kBits, record += 4 * kBits) {
          stream_to_words<kBits>(codes, record);
        }
      }
      interleave(shape.record, records, to);
      to += kTileRows * shape.record.bytes();
    }
  }
}

template <int kBits, class Scale>
void unpack_stream(const WeightLayout& layout, const uint8_t* from, const Streams<uint8_t>& to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  const StreamShape<kBits, Scale> shape(layout);
  const uint32_t blocks = layout.cols / block_cols(layout);
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    for (uint32_t b = 0; b < blocks; ++b) {
      separate(shape.record, from, records);
      from += kTileRows * shape.record.bytes();
      for (uint32_t r = 0; r < rows; ++r) {
        const uint64_t row = uint64_t{tile} * kTileRows + r;
        const uint8_t* record = records + kMaxRecord * r;
        for (uint32_t i = 0; i < shape.side_streams; ++i, record += sizeof(Scale)) {
          std::memcpy(to.base[1 + i] + row * to.stride[1 + i] + sizeof(Scale) * b, record,
                      sizeof(Scale));
        }
        uint8_t* codes = to.base[0] + row * to.stride[0] + uint64_t{4 * kBits} * shape.groups * b;
        for (uint32_t g = 0; g < shape.groups; ++g, codes += 4 * kBits, record += 4 * kBits) {
          store_stream<kBits>(load_codes<kBits>(record), codes);
        }
      }
    }
  }
}

// 8-bit floats whose scales serve a rectangle of rows and columns: in the tile each row has its scale,
// widened to f32, in front of every group.
float fp8_scale(SourceType type, const uint8_t* scales, uint64_t at) {
  if (type == SourceType::kF32) return std::bit_cast<float>(load32(scales + 4 * at));
  if (type == SourceType::kF16) return f16_to_f32(load16(scales + 2 * at));
  return bf16_to_f32(load16(scales + 2 * at));
}

void pack_fp8(const ModelSource& source, const WeightView& view, const Streams<const uint8_t>& from,
              uint8_t* to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  const WeightLayout& layout = view.layout;
  const SourceType type = source.tensors[view.scales].type;
  const uint64_t columns = (uint64_t{layout.cols} + view.scale_cols - 1) / view.scale_cols;
  const uint64_t first = view.row_begin / view.scale_rows;  // where the scales at hand begin
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    if (rows < kTileRows) std::memset(records, 0, sizeof(records));
    for (uint32_t b = 0; b < layout.cols / kGroup; ++b) {
      for (uint32_t r = 0; r < rows; ++r) {
        const uint64_t row = uint64_t{tile} * kTileRows + r;
        const uint64_t part = (view.row_begin + row * view.row_step) / view.scale_rows - first;
        const float scale =
            fp8_scale(type, from.base[1], part * columns + uint64_t{b} * kGroup / view.scale_cols);
        uint8_t* record = records + kMaxRecord * r;
        std::memcpy(record, &scale, 4);
        stream_to_words<8>(from.base[0] + row * from.stride[0] + uint64_t{kGroup} * b, record + 4);
      }
      interleave(kFp8Shape, records, to);
      to += kTileRows * kFp8Shape.bytes();
    }
  }
}

void unpack_fp8(const WeightLayout& layout, const uint8_t* from, const Streams<uint8_t>& to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    for (uint32_t b = 0; b < layout.cols / kGroup; ++b) {
      separate(kFp8Shape, from, records);
      from += kTileRows * kFp8Shape.bytes();
      for (uint32_t r = 0; r < rows; ++r) {
        const uint64_t row = uint64_t{tile} * kTileRows + r;
        store_stream<8>(load_codes<8>(records + kMaxRecord * r + 4),
                        to.base[0] + row * to.stride[0] + uint64_t{kGroup} * b);
      }
    }
  }
}

// Codes of four bits with a scale for 16 of them, and one for the whole matrix.
void pack_nvfp4(const WeightLayout& layout, const Streams<const uint8_t>& from, uint8_t* to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    if (rows < kTileRows) std::memset(records, 0, sizeof(records));
    for (uint32_t b = 0; b < layout.cols / kGroup; ++b) {
      for (uint32_t r = 0; r < rows; ++r) {
        const uint64_t row = uint64_t{tile} * kTileRows + r;
        uint8_t* record = records + kMaxRecord * r;
        std::memcpy(record, from.base[2], 4);
        std::memcpy(record + 4, from.base[1] + row * from.stride[1] + uint64_t{2} * b, 2);
        stream_to_words<4>(from.base[0] + row * from.stride[0] + uint64_t{16} * b, record + 6);
      }
      interleave(kNvfp4Shape, records, to);
      to += kTileRows * kNvfp4Shape.bytes();
    }
  }
}

void unpack_nvfp4(const WeightLayout& layout, const uint8_t* from, const Streams<uint8_t>& to) {
  alignas(64) uint8_t records[kTileRows * kMaxRecord];
  for (uint32_t tile = 0; tile < tiles_of(layout); ++tile) {
    const uint32_t rows = rows_of_tile(layout, tile);
    for (uint32_t b = 0; b < layout.cols / kGroup; ++b) {
      separate(kNvfp4Shape, from, records);
      from += kTileRows * kNvfp4Shape.bytes();
      for (uint32_t r = 0; r < rows; ++r) {
        const uint64_t row = uint64_t{tile} * kTileRows + r;
        const uint8_t* record = records + kMaxRecord * r;
        std::memcpy(to.base[1] + row * to.stride[1] + uint64_t{2} * b, record + 4, 2);
        store_stream<4>(load_codes<4>(record + 6),
                        to.base[0] + row * to.stride[0] + uint64_t{16} * b);
      }
    }
  }
}

// Element (row, k) of the view is at row * row_step + k * inner_step in elements of T.
struct FloatSteps {
  uint64_t row = 1;
  uint64_t inner = 1;
};

// Columns and tiles are walked in squares, so that a transposed source, whose lines hold many rows
// of one column, stays in the first-level cache until its lines are used up.
constexpr uint32_t kSquareCols = 128;
constexpr uint32_t kSquareTiles = 8;

// Calls body(tile, rows, first column, last column) for every piece of every square.
template <class Body>
void for_each_square(const WeightLayout& layout, Body body) {
  for (uint32_t begin = 0; begin < tiles_of(layout); begin += kSquareTiles) {
    const uint32_t end = std::min(begin + kSquareTiles, tiles_of(layout));
    for (uint32_t k = 0; k < layout.cols; k += std::min(kSquareCols, layout.cols - k)) {
      const uint32_t k_end = k + std::min(kSquareCols, layout.cols - k);
      for (uint32_t tile = begin; tile < end; ++tile)
        body(tile, rows_of_tile(layout, tile), k, k_end);
    }
  }
}

template <class T>
void pack_floats(const WeightLayout& layout, const FloatSteps& steps, const uint8_t* from,
                 uint8_t* to) {
  for_each_square(layout, [&](uint32_t tile, uint32_t rows, uint32_t k_begin, uint32_t k_end) {
    const uint8_t* source = from + uint64_t{tile} * kTileRows * steps.row * sizeof(T);
    uint8_t* target = to + (uint64_t{tile} * layout.cols + k_begin) * kTileRows * sizeof(T);
    for (uint32_t k = k_begin; k < k_end; ++k, target += kTileRows * sizeof(T)) {
      T values[kTileRows] = {};
      for (uint32_t r = 0; r < rows; ++r) {
        std::memcpy(&values[r], source + (r * steps.row + k * steps.inner) * sizeof(T), sizeof(T));
      }
      std::memcpy(target, values, sizeof(values));
    }
  });
}

template <class T>
void unpack_floats(const WeightLayout& layout, const FloatSteps& steps, const uint8_t* from,
                   uint8_t* to) {
  for_each_square(layout, [&](uint32_t tile, uint32_t rows, uint32_t k_begin, uint32_t k_end) {
    uint8_t* target = to + uint64_t{tile} * kTileRows * steps.row * sizeof(T);
    const uint8_t* source = from + (uint64_t{tile} * layout.cols + k_begin) * kTileRows * sizeof(T);
    for (uint32_t k = k_begin; k < k_end; ++k, source += kTileRows * sizeof(T)) {
      for (uint32_t r = 0; r < rows; ++r) {
        std::memcpy(target + (r * steps.row + k * steps.inner) * sizeof(T), source + r * sizeof(T),
                    sizeof(T));
      }
    }
  });
}

FloatSteps float_steps(const ModelSource& source, const WeightView& view) {
  if (!view.transposed) return {uint64_t{view.row_step} * view.layout.cols, 1};
  const std::vector<uint64_t>& shape = source.tensors[view.weight].shape;
  return {view.row_step, shape.empty() ? 1 : shape.back()};
}

template <class T>
void copy_elements(const WeightView& view, const uint8_t* from, uint64_t from_step, uint8_t* to,
                   uint64_t to_step) {
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, uint64_t{view.layout.cols} * sizeof(T));
    return;
  }
  for (uint64_t i = 0; i < view.layout.cols; ++i) {
    std::memcpy(to + i * to_step * sizeof(T), from + i * from_step * sizeof(T), sizeof(T));
  }
}

// Calls visit.template operator()<Codec>() with the codec of a GGUF format.
template <class Visit>
void with_codec(WeightFormat format, Visit visit) {
  switch (format) {
    case WeightFormat::kQ4_0:
    case WeightFormat::kIQ4_NL:
      return visit.template operator()<Q4_0Codec>();
    case WeightFormat::kQ4_1:
      return visit.template operator()<Q4_1Codec>();
    case WeightFormat::kQ5_0:
      return visit.template operator()<Q5_0Codec>();
    case WeightFormat::kQ5_1:
      return visit.template operator()<Q5_1Codec>();
    case WeightFormat::kQ8_0:
      return visit.template operator()<Q8_0Codec>();
    case WeightFormat::kQ2_K:
      return visit.template operator()<Q2KCodec>();
    case WeightFormat::kQ3_K:
      return visit.template operator()<Q3KCodec>();
    case WeightFormat::kQ4_K:
      return visit.template operator()<Q4KCodec>();
    case WeightFormat::kQ5_K:
      return visit.template operator()<Q5KCodec>();
    case WeightFormat::kQ6_K:
      return visit.template operator()<Q6KCodec>();
    case WeightFormat::kIQ4_XS:
      return visit.template operator()<IQ4XSCodec>();
    case WeightFormat::kMXFP4:
      return visit.template operator()<MxFp4Codec>();
    default:
      return;
  }
}

template <class Scale, class Visit>
void with_bits(uint32_t bits, Visit visit) {
  switch (bits) {
    case 2:
      return visit.template operator()<2, Scale>();
    case 3:
      return visit.template operator()<3, Scale>();
    case 4:
      return visit.template operator()<4, Scale>();
    case 5:
      return visit.template operator()<5, Scale>();
    case 6:
      return visit.template operator()<6, Scale>();
    default:
      return visit.template operator()<8, Scale>();
  }
}

// Calls visit.template operator()<bits, type of the scales>() for separate scales.
template <class Visit>
void with_stream(const WeightLayout& layout, Visit visit) {
  if (layout.format == WeightFormat::kMXFP4) return visit.template operator()<4, uint8_t>();
  if (layout.scale_type == ScaleType::kF32) return with_bits<uint32_t>(layout.bits, visit);
  return with_bits<uint16_t>(layout.bits, visit);
}

}  // namespace

void pack_view(const ModelSource& source, const WeightView& view,
               const std::array<std::span<const std::byte>, 3>& from, std::span<std::byte> to) {
  const WeightLayout& layout = view.layout;
  const auto streams = streams_of<const uint8_t>(view, from);
  const bool wide = layout.format == WeightFormat::kF32;
  const bool narrow = layout.format == WeightFormat::kF16 || layout.format == WeightFormat::kBF16;
  auto* target = reinterpret_cast<uint8_t*>(to.data());
  if (view.vector && wide) {
    copy_elements<uint32_t>(view, streams.base[0], view.row_step, target, 1);
  } else if (view.vector) {
    copy_elements<uint16_t>(view, streams.base[0], view.row_step, target, 1);
  } else if (wide) {
    pack_floats<uint32_t>(layout, float_steps(source, view), streams.base[0], target);
  } else if (narrow) {
    pack_floats<uint16_t>(layout, float_steps(source, view), streams.base[0], target);
  } else if (layout.format == WeightFormat::kFP8_E4M3) {
    pack_fp8(source, view, streams, target);
  } else if (layout.format == WeightFormat::kNVFP4) {
    pack_nvfp4(layout, streams, target);
  } else if (view.scales != kNoTensor) {
    with_stream(layout, [&]<int kBits, class Scale>() {
      pack_stream<kBits, Scale>(layout, streams, target);
    });
  } else {
    with_codec(layout.format, [&]<class Codec>() { pack_blocks<Codec>(layout, streams, target); });
  }
}

void unpack_view(const ModelSource& source, const WeightView& view, std::span<const std::byte> from,
                 const std::array<std::span<std::byte>, 3>& to) {
  const WeightLayout& layout = view.layout;
  const auto streams = streams_of<uint8_t>(view, to);
  const bool wide = layout.format == WeightFormat::kF32;
  const bool narrow = layout.format == WeightFormat::kF16 || layout.format == WeightFormat::kBF16;
  const auto* packed = reinterpret_cast<const uint8_t*>(from.data());
  if (view.vector && wide) {
    copy_elements<uint32_t>(view, packed, 1, streams.base[0], view.row_step);
  } else if (view.vector) {
    copy_elements<uint16_t>(view, packed, 1, streams.base[0], view.row_step);
  } else if (wide) {
    unpack_floats<uint32_t>(layout, float_steps(source, view), packed, streams.base[0]);
  } else if (narrow) {
    unpack_floats<uint16_t>(layout, float_steps(source, view), packed, streams.base[0]);
  } else if (layout.format == WeightFormat::kFP8_E4M3) {
    unpack_fp8(layout, packed, streams);
  } else if (layout.format == WeightFormat::kNVFP4) {
    unpack_nvfp4(layout, packed, streams);
  } else if (view.scales != kNoTensor) {
    with_stream(layout, [&]<int kBits, class Scale>() {
      unpack_stream<kBits, Scale>(layout, packed, streams);
    });
  } else {
    with_codec(layout.format,
               [&]<class Codec>() { unpack_blocks<Codec>(layout, packed, streams); });
  }
}

}  // namespace millrace::format
