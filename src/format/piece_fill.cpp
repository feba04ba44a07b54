#include "format/piece_fill.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "base/numeric.h"

namespace millrace::format {
namespace {

constexpr uint64_t kWindow = 4096;
// Of a matrix, in one step. Windows around its weights, scales and biases still fit.
constexpr uint64_t kPart = PieceFill::kStep - 16 * kWindow;
// Tensors that lie apart are steps of their own, for reads at the same time, unless they are small.
constexpr uint64_t kSmall = uint64_t{256} << 10;

bool before(const Extent& a, const Extent& b) {
  return a.file != b.file ? a.file < b.file : a.offset < b.offset;
}

std::span<const std::byte> find(std::span<const PieceFill::Read> reads, const Extent& extent,
                                std::span<const std::byte> scratch) {
  if (extent.bytes == 0) return {};
  for (const PieceFill::Read& read : reads) {
    if (read.file == extent.file && read.offset <= extent.offset &&
        extent.offset + extent.bytes <= read.offset + read.bytes) {
      const uint64_t at = read.window + read.offset % kWindow + (extent.offset - read.offset);
      return scratch.subspan(at, extent.bytes);
    }
  }
  assert(false && "every extent has its read");
  return {};
}

void zero_padding(const Piece& piece, std::span<std::byte> slot) {
  std::vector<std::pair<uint64_t, uint64_t>> used;
  for (const PieceTensor& tensor : piece.tensors) {
    used.emplace_back(tensor.offset, tensor.offset + view_bytes(tensor.view));
  }
  std::sort(used.begin(), used.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : used) {
    if (begin > at) std::memset(slot.data() + at, 0, begin - at);
    at = std::max(at, end);
  }
  if (piece.bytes > at) std::memset(slot.data() + at, 0, piece.bytes - at);
}

}  // namespace

uint64_t fill_window_bytes(uint64_t offset, uint64_t bytes) {
  return round_up(offset + bytes, kWindow) - offset / kWindow * kWindow;
}

Expected<std::vector<PieceFill::Part>> PieceFill::split() const {
  std::vector<Part> parts;
  for (const PieceTensor& tensor : piece_->tensors) {
    const WeightView& view = tensor.view;
    MILLRACE_ASSIGN(const auto extents, view_extents(*source_, view));
    const uint64_t total = extents[0].bytes + extents[1].bytes + extents[2].bytes;
    const bool whole = view.vector || view.transposed || total <= kPart;
    if (whole) {
      parts.push_back({view, extents, tensor.offset});
      continue;
    }
    // Tiles are independent of each other: a run of them packs alone.
    const uint32_t rows = view.layout.rows;
    const uint64_t fit = rows * kPart / total / kTileRows * kTileRows;
    const auto step = static_cast<uint32_t>(std::max<uint64_t>(kTileRows, fit));
    for (uint32_t row = 0; row < rows; row += step) {
      Part part{view, {}, tensor.offset + row / kTileRows * tile_bytes(view.layout)};
      part.view.row_begin += row * view.row_step;
      part.view.layout.rows = std::min(step, rows - row);
      MILLRACE_ASSIGN(part.extents, view_extents(*source_, part.view));
      parts.push_back(part);
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return before(a.extents[0], b.extents[0]); });
  return parts;
}

uint64_t PieceFill::plan_reads(std::span<const Part> parts, std::vector<Read>* reads) {
  std::vector<Extent> extents;
  extents.reserve(3 * parts.size());
  for (const Part& part : parts) {
    for (const Extent& extent : part.extents) {
      if (extent.bytes != 0) extents.push_back(extent);
    }
  }
  std::sort(extents.begin(), extents.end(), before);
  reads->clear();
  for (const Extent& extent : extents) {
    if (!reads->empty()) {
      Read& last = reads->back();
      const uint64_t end = last.offset + last.bytes;
      // Neighbours whose windows would touch are one read.
      if (last.file == extent.file && extent.offset / kWindow <= end / kWindow) {
        last.bytes = std::max(end, extent.offset + extent.bytes) - last.offset;
        continue;
      }
    }
    reads->push_back({extent.file, extent.offset, extent.bytes, 0});
  }
  uint64_t scratch = 0;
  for (Read& read : *reads) {
    read.window = scratch;
    scratch += fill_window_bytes(read.offset, read.bytes);
  }
  return scratch;
}

bool PieceFill::share_bytes(const Part& a, const Part& b) {
  const Extent& first = a.extents[0];
  const Extent& second = b.extents[0];
  return first.file == second.file && second.offset < first.offset + first.bytes;
}

Expected<PieceFill> PieceFill::plan(const ModelSource& source, const Piece& piece) {
  PieceFill fill(source, piece);
  MILLRACE_ASSIGN(auto parts, fill.split());
  std::vector<Read> reads;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    Step step;
    uint64_t scratch = plan_reads(std::span(parts).subspan(begin, 1), &step.reads);
    for (end = begin + 1; end < parts.size(); ++end) {
      const uint64_t more = plan_reads(std::span(parts).subspan(begin, end + 1 - begin), &reads);
      const bool joins = more <= kStep && (reads.size() == step.reads.size() || more <= kSmall);
      // What shares bytes is read once, even where that takes more scratch.
      if (!joins && !share_bytes(parts[end - 1], parts[end])) break;
      step.reads.swap(reads);
      scratch = more;
    }
    step.parts.assign(parts.begin() + static_cast<std::ptrdiff_t>(begin),
                      parts.begin() + static_cast<std::ptrdiff_t>(end));
    fill.scratch_ = std::max(fill.scratch_, scratch);
    fill.steps_.push_back(std::move(step));
  }
  if (fill.steps_.empty()) fill.steps_.emplace_back();  // nothing but padding
  return fill;
}

uint64_t PieceFill::largest_read() const {
  uint64_t most = 0;
  for (const Step& step : steps_) {
    for (const Read& read : step.reads) most = std::max(most, read.bytes);
  }
  return most;
}

void PieceFill::pack(uint32_t step, std::span<const std::byte> scratch,
                     std::span<std::byte> slot) const {
  if (step == 0) zero_padding(*piece_, slot);
  const std::vector<Read>& reads = steps_[step].reads;
  for (const Part& part : steps_[step].parts) {
    const auto& e = part.extents;
    pack_view(*source_, part.view,
              {find(reads, e[0], scratch), find(reads, e[1], scratch), find(reads, e[2], scratch)},
              slot.subspan(part.to, view_bytes(part.view)));
  }
}

}  // namespace millrace::format
