// Paged KV: blocks of 64 positions, reference counted, one pool for each distinct window.
//
// A page holds 64 positions of all layers of its group (layers with the same window). Inside: for
// each layer, for each kv head, its K block then its V block (kernels/kv_layout.h). Groups with a
// window keep only the pages a future query can see. Layers with recurrent state keep it in a slab beside the
// pages (state.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/ops.h"
#include "model/spec.h"
#include "model/state.h"
#include "stream/ledger.h"

namespace millrace::model {

struct KvGroup {
  uint32_t window = 0;  // 0: every position stays
  uint64_t page_bytes = 0;
  uint32_t pages = 0;  // in the pool
};

// Where a layer's heads lie inside a page, and its state inside a slab.
struct KvPlace {
  uint32_t group = 0;
  uint64_t offset = 0;        // of the layer in the page
  uint64_t k_bytes = 0;       // of one head's K block
  uint64_t head_bytes = 0;    // K and V block of one head
  uint64_t index_offset = 0;  // of the block of index keys, like a K block, in the page
  uint64_t tail = 0;          // floats before the layer's convolution tail in a slab
  uint64_t matrices = 0;      // and before its matrices
};

struct KvShape {
  kernels::KvType type = kernels::KvType::kF16;
  std::vector<KvGroup> groups;
  std::vector<KvPlace> places;  // by layer, for each time that the layers run
  uint64_t state_floats = 0;    // of a slab; 0: no layer has recurrent state
  uint32_t slabs = 0;
  // An error that names what of a model cannot be kept in this type.
  static Status check(const ModelSpec& spec, kernels::KvType type);
  // `context`: most positions of a sequence; `chunk`: most rows of one sequence in a step;
  // `sequences`: at a time, each with room to keep `saves` copies of its recurrent state (0 or 1).
  static KvShape make(const ModelSpec& spec, kernels::KvType type, uint32_t context, uint32_t chunk,
                      uint32_t sequences, uint32_t saves = 0);
  uint64_t bytes() const;  // pages and slabs
  uint64_t page_bytes() const;
};

class KvPool {
 public:
  static Expected<std::unique_ptr<KvPool>> create(KvShape shape, stream::Ledger& ledger);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvShape& shape() const { return shape_; }
  // A page with one reference, or an error when the pool is used up.
  Expected<uint32_t> take(uint32_t group);
  void share(uint32_t group, uint32_t page) { ++references_[group][page]; }
  void drop(uint32_t group, uint32_t page);
  uint32_t references(uint32_t group, uint32_t page) const { return references_[group][page]; }
  std::byte* data(uint32_t group, uint32_t page) const {
    return base_[group] + shape_.groups[group].page_bytes * page;
  }
  uint32_t free_pages(uint32_t group) const { return static_cast<uint32_t>(free_[group].size()); }
  StatePool* states() const { return states_.get(); }  // null: no layer has recurrent state

 private:
  KvPool(KvShape shape, stream::Ledger& ledger) : shape_(std::move(shape)), ledger_(ledger) {}
  KvShape shape_;
  stream::Ledger& ledger_;
  std::vector<std::byte*> base_;
  std::vector<std::vector<uint32_t>> free_, references_;
  std::unique_ptr<StatePool> states_;
};

// The state of one sequence: its pages. Positions [0, length) are committed.
class KvSequence {
 public:
  explicit KvSequence(KvPool& pool);
  ~KvSequence();
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  uint32_t length() const { return length_; }
  // Pages for positions up to `length` exist and are this sequence's own (copied if shared).
  Status reserve(uint32_t length);
  // The next query is at `length`; pages that no query can see any more are given back.
  void commit(uint32_t length);
  // Forgets positions from `length` on. Recurrent state is not taken back (except to 0): use
  // rollback().
  void trim(uint32_t length);

  // Rollback, for rows that may have to be taken back. begin_round() keeps the recurrent state at
  // length(), if there is any. After the round's rows ran, and before they are committed,
  // rollback(length) forgets all from `length` on, and answers from which position on rows must be
  // run again (without need for their logits) before others follow: `length`, or the round's begin
  // where recurrent state had to be restored. The result is as if the forgotten rows never ran.
  Status begin_round();
  Expected<uint32_t> rollback(uint32_t length);

  RecurrentState& state() { return state_; }

  // Page base of absolute block `block` of a group; null when it was given back.
  std::byte* page(uint32_t group, uint32_t block) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  void forget(uint32_t length);  // pages and length
  KvPool& pool_;
  uint32_t length_ = 0;
  std::vector<std::vector<uint32_t>> pages_;  // by group, by block
  RecurrentState state_;
};

}  // namespace millrace::model
