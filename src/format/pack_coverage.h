// Which bytes of the source the pieces carry, and which must be kept beside them.
//
// A tensor is carried when views use every row of it; a tensor that is used in part, or not at all,
// is kept as it is, and so is everything outside of tensors (headers, padding).
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "format/piece.h"
#include "format/source.h"
#include "format/view.h"

namespace millrace::format {

class Coverage {
 public:
  explicit Coverage(const ModelSource& source) : source_(source) {}

  // Marks what the view uses. True when any of it was not marked before.
  Expected<bool> add(const WeightView& view);
  bool carried(uint32_t tensor) const;

 private:
  // Units of one tensor: its rows (or columns when read transposed, or elements of vectors).
  struct Units {
    std::vector<bool> used;
    uint64_t count = 0;
    bool mark(uint64_t first, uint64_t step, uint64_t number);
  };
  struct Key {
    uint32_t tensor;
    uint64_t unit_bytes;
    bool transposed;
    auto operator<=>(const Key&) const = default;
  };
  Expected<bool> mark(uint32_t tensor, uint64_t unit_bytes, bool transposed, uint64_t first,
                      uint64_t step, uint64_t number);

  const ModelSource& source_;
  std::map<Key, Units> units_;
};

// The three tensors that a view may use.
inline std::array<uint32_t, 3> tensors_of(const WeightView& view) {
  return {view.weight, view.scales, view.biases};
}

// A run of source bytes kept in source.bin.
struct SourceRange {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Everything the table does not carry, by file and offset. The header of a file is a range of its
// own, so that it can be read and checked alone; long ranges are cut at kMaxRange.
inline constexpr uint64_t kMaxRange = uint64_t{64} << 20;
Expected<std::vector<SourceRange>> ranges_beside(const ModelSource& source,
                                                 const PieceTable& table);

}  // namespace millrace::format
