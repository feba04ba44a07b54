// Which bytes of the source the pieces carry, and which must be kept beside them.
#include "format/pack_coverage.h"

#include <algorithm>

namespace millrace::format {

bool Coverage::Units::mark(uint64_t first, uint64_t step, uint64_t number) {
  bool any = false;
  for (uint64_t i = 0; i < number; ++i) {
    auto unit = used[first + i * step];
    if (unit) continue;
    unit = true;
    any = true;
    ++count;
  }
  return any;
}

Expected<bool> Coverage::mark(uint32_t tensor, uint64_t unit_bytes, bool transposed, uint64_t first,
                              uint64_t step, uint64_t number) {
  const SourceTensor& at = source_.tensors[tensor];
  const uint64_t total = unit_bytes == 0 ? 0 : at.bytes / unit_bytes;
  if (number == 0 || total == 0 || first >= total || (number - 1) * step >= total - first) {
    return fail(Code::kInternal, "tensor '{}': a view leaves its bounds", at.name);
  }
  Units& units = units_[{tensor, unit_bytes, transposed}];
  units.used.resize(total);
  return units.mark(first, step, number);
}

Expected<bool> Coverage::add(const WeightView& view) {
  MILLRACE_ASSIGN(const auto whole, view_extents(source_, view));
  // A view of one row alone says where a row begins and how long it is, whatever the format.
  WeightView row = view;
  row.layout.rows = 1;
  MILLRACE_ASSIGN(const auto one, view_extents(source_, row));
  const uint64_t step = std::max<uint32_t>(view.row_step, 1);
  bool any = false;
  const auto tensors = tensors_of(view);
  for (size_t i = 0; i < 3; ++i) {
    if (tensors[i] == kNoTensor || whole[i].bytes == 0 || only_read(view, i)) continue;
    const SourceTensor& tensor = source_.tensors[tensors[i]];
    const uint64_t element = info(tensor.type).block_bytes;
    uint64_t unit = one[i].bytes, first = 0, number = view.layout.rows;
    if (view.vector) {
      unit = element;
      first = (whole[i].offset - tensor.offset) / unit;
      number = view.layout.cols;
    } else if (view.transposed) {
      // Rows lie across the tensor: a unit is one column of one matrix of the stack.
      unit = element * view.layout.cols;
      first = view.index * tensor.shape.back() + view.row_begin;
    } else if (unit != 0) {
      first = (whole[i].offset - tensor.offset) / unit;
    }
    MILLRACE_ASSIGN(const bool fresh, mark(tensors[i], unit, view.transposed, first, step, number));
    any |= fresh;
  }
  return any;
}

bool Coverage::carried(uint32_t tensor) const {
  for (const bool transposed : {false, true}) {
    for (auto at = units_.lower_bound({tensor, 0, false});
         at != units_.end() && at->first.tensor == tensor; ++at) {
      if (at->first.transposed != transposed) continue;
      const uint64_t bytes = source_.tensors[tensor].bytes;
      if (at->second.count * at->first.unit_bytes == bytes) return true;
    }
  }
  return false;
}

Expected<std::vector<SourceRange>> ranges_beside(const ModelSource& source,
                                                 const PieceTable& table) {
  Coverage coverage(source);
  for (const Piece& piece : table.pieces) {
    for (const PieceTensor& tensor : piece.tensors) {
      auto added = coverage.add(tensor.view);
      if (!added) return with_context("piece " + piece.name, std::move(added.error()));
    }
  }
  std::vector<std::vector<Extent>> carried(source.files.size());
  for (uint32_t i = 0; i < source.tensors.size(); ++i) {
    const SourceTensor& tensor = source.tensors[i];
    if (tensor.bytes != 0 && coverage.carried(i)) {
      carried[tensor.file].push_back({tensor.file, tensor.offset, tensor.bytes});
    }
  }
  std::vector<SourceRange> ranges;
  const auto keep = [&](uint32_t file, uint64_t begin, uint64_t end) {
    while (begin < end) {
      const uint64_t part = std::min(end - begin, kMaxRange);
      ranges.push_back({file, begin, part});
      begin += part;
    }
  };
  for (uint32_t file = 0; file < source.files.size(); ++file) {
    const SourceFile& at = source.files[file];
    std::ranges::sort(carried[file], {}, &Extent::offset);
    // The header may be over kMaxRange; it stays in consecutive ranges all the same.
    keep(file, 0, at.data_begin);
    uint64_t end = at.data_begin;
    for (const Extent& extent : carried[file]) {
      if (extent.offset < end) {
        return fail(Code::kInternal, "{}: tensors overlap at offset {}", at.name, extent.offset);
      }
      keep(file, end, extent.offset);
      end = extent.offset + extent.bytes;
    }
    keep(file, end, at.size);
  }
  return ranges;
}

}  // namespace millrace::format
