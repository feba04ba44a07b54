// What a pack will write, decided before the first byte: items (ranges of source.bin, then pieces),
// their places, and the chunks in which they are made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/manifest.h"
#include "format/packed.h"

namespace millrace::format {

// Knobs that users do not need and tests do.
struct PackTuning {
  uint64_t file_bytes = uint64_t{8} << 30;     // a new weights file after about this
  uint64_t chunk_bytes = uint64_t{4} << 20;    // of packed bytes made at a time
  uint64_t batch_bytes = uint64_t{256} << 20;  // made durable and journaled together, or after
  double batch_seconds = 3.0;                  // this long
  std::function<Status(std::string_view item)> on_item;  // after each item: delays and faults
};

struct PackItem {
  uint32_t out = 0;  // 0: source.bin; n: weights file n - 1
  uint64_t offset = 0;
  uint64_t bytes = 0;  // padded
};

// A part of an item: raw source bytes, or a view (some rows of a larger one).
struct PackChunk {
  uint32_t item = 0;
  bool last = false;  // of its item
  bool is_view = false;
  uint64_t offset = 0;  // in the item
  uint64_t bytes = 0;   // made
  Extent raw;
  WeightView view;
};

struct PackPlan {
  Manifest manifest;  // without hashes
  std::vector<PackItem> items;
  std::vector<PackChunk> chunks;
  std::vector<uint64_t> out_bytes;  // by out file
  uint64_t total = 0;
  Hash128 table_id;  // of everything above

  std::string item_name(uint32_t item) const;
};

std::string out_name(uint32_t out);

Expected<PackPlan> make_pack_plan(const PackJob& job, const PackTuning& tuning);

// Some rows of a view; what it packs to is a slice of what the whole packs to.
std::vector<WeightView> cut_view(const WeightView& view, uint64_t chunk_bytes);

Expected<PackResult> pack_model(const PackJob& job, const PackTuning& tuning);

}  // namespace millrace::format
