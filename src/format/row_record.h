// A row's share of a tile block: the same fields in the same order as the block in layout.h, one
// value where the block has eight. So a block is the eight records interleaved value by value, and
// a field at byte `o` of the record lies at byte 8 * o of the block.
#pragma once

#include "format/layout.h"
#include "format/planes.h"

namespace millrace::format {

struct RecordShape {
  uint32_t head_width = 0;  // bytes of a head value: d and dmin, scale and bias, a float weight
  uint32_t heads = 0;
  uint32_t groups = 0;  // groups of 32 codes
  uint32_t scales = 0;  // bytes of scales in front of each group
  uint32_t words = 0;   // 32-bit words of codes of a group: its bits

  constexpr uint32_t head_bytes() const { return head_width * heads; }
  constexpr uint32_t group_bytes() const { return scales + 4 * words; }
  constexpr uint32_t bytes() const { return head_bytes() + groups * group_bytes(); }
};

inline constexpr uint32_t kMaxRecord = 256;

RecordShape record_shape(const WeightLayout& layout);

template <class T>
inline void interleave_field(const uint8_t* records, uint32_t at, uint8_t* block) {
  for (uint32_t r = 0; r < kTileRows; ++r) {
    std::memcpy(block + 8 * at + sizeof(T) * r, records + kMaxRecord * r + at, sizeof(T));
  }
}
template <class T>
inline void separate_field(const uint8_t* block, uint32_t at, uint8_t* records) {
  for (uint32_t r = 0; r < kTileRows; ++r) {
    std::memcpy(records + kMaxRecord * r + at, block + 8 * at + sizeof(T) * r, sizeof(T));
  }
}

// Calls visit.template operator()<T>(byte in the record) for every value, in order.
template <class Visit>
inline void for_each_field(const RecordShape& shape, Visit visit) {
  for (uint32_t i = 0; i < shape.heads; ++i) {
    if (shape.head_width == 4) {
      visit.template operator()<uint32_t>(4 * i);
    } else if (shape.head_width == 2) {
      visit.template operator()<uint16_t>(2 * i);
    } else {
      visit.template operator()<uint8_t>(i);
    }
  }
  uint32_t at = shape.head_bytes();
  for (uint32_t g = 0; g < shape.groups; ++g) {
    for (uint32_t i = 0; i < shape.scales; ++i) visit.template operator()<uint8_t>(at++);
    for (uint32_t i = 0; i < shape.words; ++i, at += 4) visit.template operator()<uint32_t>(at);
  }
}

// Eight records, kMaxRecord bytes apart, to a tile block and back.
inline void interleave(const RecordShape& shape, const uint8_t* records, uint8_t* block) {
  for_each_field(shape, [&]<class T>(uint32_t at) { interleave_field<T>(records, at, block); });
}
inline void separate(const RecordShape& shape, const uint8_t* block, uint8_t* records) {
  for_each_field(shape, [&]<class T>(uint32_t at) { separate_field<T>(block, at, records); });
}

// The record of one row out of a block.
inline void separate_row(const RecordShape& shape, const uint8_t* block, uint32_t row,
                         uint8_t* record) {
  for_each_field(shape, [&]<class T>(uint32_t at) {
    std::memcpy(record + at, block + 8 * at + sizeof(T) * row, sizeof(T));
  });
}

}  // namespace millrace::format
