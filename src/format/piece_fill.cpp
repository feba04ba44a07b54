#include "format/piece_fill.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "base/numeric.h"

namespace millrace::format {
namespace {

constexpr uint64_t kWindow = 4096;
constexpr uint64_t kPart = uint64_t{4} << 20;  // of a matrix, read and packed at once
constexpr uint64_t kScratch = uint64_t{8}
                              << 20;  // two parts: interleaved gate and up come together

// A tensor, or whole tiles of one.
struct Part {
  WeightView view;
  std::array<Extent, 3> extents;
  uint64_t to = 0;  // in the slot
};

// One read: sorted, disjoint, and its place in the scratch.
struct Run {
  Extent extent;
  uint64_t window = 0;  // where its aligned window starts in the scratch
  std::byte const* data = nullptr;
};

bool before(const Extent& a, const Extent& b) {
  return a.file != b.file ? a.file < b.file : a.offset < b.offset;
}

Expected<std::vector<Part>> parts_of(const ModelSource& source, const Piece& piece) {
  std::vector<Part> parts;
  for (const PieceTensor& tensor : piece.tensors) {
    const WeightView& view = tensor.view;
    MILLRACE_ASSIGN(const auto extents, view_extents(source, view));
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
      MILLRACE_ASSIGN(part.extents, view_extents(source, part.view));
      parts.push_back(part);
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return before(a.extents[0], b.extents[0]); });
  return parts;
}

// The reads that bring the extents of all of `parts`. Returns the scratch they take.
uint64_t plan_runs(std::span<const Part> parts, std::vector<Run>* runs) {
  runs->clear();
  for (const Part& part : parts) {
    for (const Extent& extent : part.extents) {
      if (extent.bytes != 0) runs->push_back({extent, 0, nullptr});
    }
  }
  std::sort(runs->begin(), runs->end(),
            [](const Run& a, const Run& b) { return before(a.extent, b.extent); });
  size_t count = 0;
  for (const Run& run : *runs) {
    if (count > 0) {
      Extent& last = (*runs)[count - 1].extent;
      const uint64_t end = last.offset + last.bytes;
      // Neighbours whose windows would touch are one read.
      if (last.file == run.extent.file && run.extent.offset / kWindow <= end / kWindow) {
        last.bytes = std::max(end, run.extent.offset + run.extent.bytes) - last.offset;
        continue;
      }
    }
    (*runs)[count++] = run;
  }
  runs->resize(count);
  uint64_t scratch = 0;
  for (Run& run : *runs) {
    run.window = scratch;
    scratch += fill_window_bytes(run.extent.offset, run.extent.bytes);
  }
  return scratch;
}

// Whether the part reads bytes that one before it reads, too.
bool shares_bytes(std::span<const Part> parts, size_t index) {
  const Extent& at = parts[index].extents[0];
  const Extent& last = parts[index - 1].extents[0];
  return at.file == last.file && at.offset < last.offset + last.bytes;
}

// As many parts as the scratch holds, without parting those that share bytes where that can be
// helped.
size_t group_end(std::span<const Part> parts, size_t begin, uint64_t scratch,
                 std::vector<Run>* runs) {
  size_t end = begin + 1;
  while (end < parts.size() && plan_runs(parts.subspan(begin, end + 1 - begin), runs) <= scratch) {
    ++end;
  }
  size_t whole = end;
  while (whole > begin && whole < parts.size() && shares_bytes(parts, whole)) --whole;
  return whole > begin ? whole : end;
}

std::span<const std::byte> find(std::span<const Run> runs, const Extent& extent) {
  if (extent.bytes == 0) return {};
  for (const Run& run : runs) {
    if (run.extent.file == extent.file && run.extent.offset <= extent.offset &&
        extent.offset + extent.bytes <= run.extent.offset + run.extent.bytes) {
      return {run.data + (extent.offset - run.extent.offset), extent.bytes};
    }
  }
  assert(false && "every extent has its run");
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

Expected<uint64_t> fill_scratch_bytes(const ModelSource& source, const Piece& piece) {
  MILLRACE_ASSIGN(const auto parts, parts_of(source, piece));
  std::vector<Run> runs;
  uint64_t least = std::min(kScratch, plan_runs(parts, &runs));
  for (const Part& part : parts) least = std::max(least, plan_runs({&part, 1}, &runs));
  return least;
}

Status fill_piece(const ModelSource& source, const Piece& piece, SourceBytes& from,
                  std::span<std::byte> scratch, std::span<std::byte> slot) {
  assert(slot.size() >= piece.bytes);
  MILLRACE_ASSIGN(const auto parts, parts_of(source, piece));
  zero_padding(piece, slot);
  std::vector<Run> runs;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    end = group_end(parts, begin, scratch.size(), &runs);
    const auto group = std::span(parts).subspan(begin, end - begin);
    if (plan_runs(group, &runs) > scratch.size()) {
      return fail(Code::kInternal, "{}: the read buffer of {} bytes is too small", piece.name,
                  scratch.size());
    }
    for (Run& run : runs) {
      const uint64_t window = fill_window_bytes(run.extent.offset, run.extent.bytes);
      MILLRACE_ASSIGN(run.data, from.read(run.extent.file, run.extent.offset, run.extent.bytes,
                                          scratch.subspan(run.window, window)));
    }
    for (const Part& part : group) {
      pack_view(
          source, part.view,
          {find(runs, part.extents[0]), find(runs, part.extents[1]), find(runs, part.extents[2])},
          slot.subspan(part.to, view_bytes(part.view)));
    }
  }
  return {};
}

}  // namespace millrace::format
