// What must hold for every header that a parser accepts, whatever bytes it was made from.
#pragma once

#include <cstdlib>
#include <utility>
#include <vector>

#include "format/source.h"
#include "format/view.h"

namespace millrace::fuzz {

inline void require(bool holds) {
  if (!holds) std::abort();
}

// Tensors lie inside the file and apart from each other; views of them lie inside the tensors.
inline void check_tensors(std::vector<format::SourceTensor> tensors, uint64_t data_begin,
                          uint64_t file_size) {
  uint64_t previous = data_begin;
  for (const format::SourceTensor& tensor : tensors) {
    require(tensor.offset >= previous && tensor.bytes <= file_size &&
            tensor.offset <= file_size - tensor.bytes);
    previous = tensor.offset + tensor.bytes;
  }
  format::ModelSource source;
  source.tensors = std::move(tensors);
  for (uint32_t i = 0; i < source.tensors.size() && i < 64; ++i) {
    format::WeightView view;
    view.weight = i;
    auto layout = format::layout_of(source, i, format::kNoTensor, format::kNoTensor, {});
    if (!layout) {
      require(!layout.error().message.empty());
      continue;
    }
    view.layout = *layout;
    auto extents = format::view_extents(source, view);
    if (!extents) continue;
    const format::SourceTensor& tensor = source.tensors[i];
    const format::Extent& extent = (*extents)[0];
    require(extent.bytes > 0 && extent.offset >= tensor.offset);
    require(extent.offset + extent.bytes <= tensor.offset + tensor.bytes);
  }
}

}  // namespace millrace::fuzz
