#include "model/state.h"

#include <sys/mman.h>

#include <cstring>

#include "base/numeric.h"

namespace millrace::model {

StateSize StateSize::of(const ModelSpec& spec, const LayerSpec& layer) {
  StateSize size;
  if (layer.conv) size.tail = uint64_t{layer.conv->kernel - 1} * spec.hidden;
  if (layer.delta) {
    const DeltaSpec& d = *layer.delta;
    size.tail = uint64_t{d.kernel - 1} * d.channels();
    size.matrices = uint64_t{d.value_heads} * d.key_dim * d.value_dim;
  }
  if (layer.mamba) {
    const Mamba2Spec& m = *layer.mamba;
    size.tail = uint64_t{m.kernel - 1} * m.channels();
    size.matrices = uint64_t{m.heads} * m.state_dim * m.head_dim;
  }
  return size;
}

uint64_t StatePool::bytes(uint64_t floats, uint32_t slabs) {
  return round_up(floats * sizeof(float) * slabs, 4096);
}

Expected<std::unique_ptr<StatePool>> StatePool::create(uint64_t floats, uint32_t slabs,
                                                       stream::Ledger& ledger) {
  const uint64_t size = bytes(floats, slabs);
  MILLRACE_TRY(ledger.reserve(stream::Use::kKv, size));
  std::unique_ptr<StatePool> pool(new StatePool(floats, slabs, ledger));
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return fail(Code::kNoMemory, "cannot map {} bytes for recurrent state", size);
  pool->base_ = static_cast<float*>(base);
  for (uint32_t i = slabs; i-- > 0;) pool->free_.push_back(i);
  return pool;
}

StatePool::~StatePool() {
  const uint64_t size = bytes(floats_, slabs_);
  if (base_) munmap(base_, size);
  ledger_.release(stream::Use::kKv, size);
}

Expected<uint32_t> StatePool::take() {
  if (free_.empty()) {
    return fail(Code::kNoMemory, "all {} slabs of recurrent state are in use", slabs_);
  }
  const uint32_t slab = free_.back();
  free_.pop_back();
  return slab;
}

Status RecurrentState::reserve() {
  if (!pool_ || slab_) return {};
  MILLRACE_ASSIGN(slab_, pool_->take());
  std::memset(data(), 0, pool_->floats() * sizeof(float));
  position_ = 0;
  return {};
}

void RecurrentState::clear() {
  if (slab_) pool_->drop(*slab_);
  if (saved_) pool_->drop(*saved_);
  slab_.reset();
  saved_.reset();
  position_ = 0;
}

Status RecurrentState::save() {
  if (!pool_) return {};
  if (position_ == kBroken)
    return fail(Code::kInternal, "a state that a failed pass left is saved");
  MILLRACE_TRY(reserve());
  if (!saved_) {
    MILLRACE_ASSIGN(saved_, pool_->take());
  }
  std::memcpy(pool_->data(*saved_), data(), pool_->floats() * sizeof(float));
  saved_position_ = position_;
  return {};
}

Status RecurrentState::restore() {
  if (!saved_) return fail(Code::kInternal, "no recurrent state was kept to go back to");
  std::memcpy(data(), pool_->data(*saved_), pool_->floats() * sizeof(float));
  position_ = saved_position_;
  return {};
}

}  // namespace millrace::model
