// Recurrent state: what the layers without a cache carry from one token to the next. Each sequence
// has one slab of f32 (all layers), and another for each state it wants to come back to.
//
// Inside: for each recurrent layer its convolution's tail [kernel - 1][channels], then its heads'
// matrices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "stream/ledger.h"

namespace millrace::model {

// Floats of a layer's convolution tail and of its matrices; 0 and 0 for attention.
struct StateSize {
  uint64_t tail = 0, matrices = 0;
  static StateSize of(const ModelSpec& spec, const LayerSpec& layer);
};

class StatePool {
 public:
  static Expected<std::unique_ptr<StatePool>> create(uint64_t floats, uint32_t slabs,
                                                     stream::Ledger& ledger);
  static uint64_t bytes(uint64_t floats, uint32_t slabs);
  ~StatePool();
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  Expected<uint32_t> take();  // contents undefined
  void drop(uint32_t slab) { free_.push_back(slab); }
  float* data(uint32_t slab) const { return base_ + floats_ * slab; }
  uint64_t floats() const { return floats_; }
  uint32_t free_slabs() const { return static_cast<uint32_t>(free_.size()); }

 private:
  StatePool(uint64_t floats, uint32_t slabs, stream::Ledger& ledger)
      : floats_(floats), slabs_(slabs), ledger_(ledger) {}
  uint64_t floats_;
  uint32_t slabs_;
  stream::Ledger& ledger_;
  float* base_ = nullptr;
  std::vector<uint32_t> free_;
};

// The state of one sequence. It has consumed the tokens at [0, position()).
class RecurrentState {
 public:
  explicit RecurrentState(StatePool* pool) : pool_(pool) {}  // null: the model has none
  ~RecurrentState() { clear(); }
  RecurrentState(const RecurrentState&) = delete;
  RecurrentState& operator=(const RecurrentState&) = delete;

  bool exists() const { return pool_ != nullptr; }
  uint32_t position() const { return position_; }
  float* data() const { return pool_->data(*slab_); }
  Status reserve();  // a slab of zeros, unless there is one
  void clear();      // back to position 0, slabs given back

  // A forward pass marks the state broken while it advances it, and where it stands afterwards.
  void begin_advance() { position_ = kBroken; }
  void end_advance(uint32_t position) { position_ = position; }

  Status save();  // keeps a copy of the state as it is, in place of the one kept before
  std::optional<uint32_t> saved_position() const {
    return saved_ ? std::optional(saved_position_) : std::nullopt;
  }
  Status restore();  // to the copy, which stays

 private:
  static constexpr uint32_t kBroken = UINT32_MAX;
  StatePool* pool_;
  std::optional<uint32_t> slab_, saved_;
  uint32_t position_ = 0, saved_position_ = 0;
};

}  // namespace millrace::model
