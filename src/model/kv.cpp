#include "model/kv.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/numa.h"
#include "base/numeric.h"

namespace millrace::model {

using kernels::kKvBlock;

Status KvShape::check(const ModelSpec& spec, kernels::KvType type) {
  if (!kernels::is_scaled(type)) return {};
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    uint32_t dim = std::max(layer.attention.key_dim, layer.attention.value_dim);
    if (layer.mla) dim = layer.mla->rank + layer.mla->rope_dim;
    if (layer.mla && layer.mla->indexer) dim = std::max(dim, layer.mla->indexer->dim);
    if (layer.mla && type == kernels::KvType::kQ4) {
      return fail(
          Code::kUnsupported,
          "a q4 KV cache is not kept for latent attention (layer {}): all {} heads read keys and "
          "values out of one latent, and no model has shown that four bits of it suffice; use "
          "--kv q8",
          i, layer.mla->heads);
    }
    if (dim > kernels::kMostTurned) {
      return fail(Code::kUnsupported,
                  "a {} KV cache holds heads of at most {} channels; layer {} has {}; use --kv f16",
                  kernels::kv_name(type), kernels::kMostTurned, i, dim);
    }
  }
  return {};
}

KvShape KvShape::make(const ModelSpec& spec, kernels::KvType type, uint32_t context, uint32_t chunk,
                      uint32_t sequences, uint32_t saves) {
  KvShape shape;
  shape.type = type;
  const auto layers = static_cast<uint32_t>(spec.layers.size());
  shape.places.reserve(uint64_t{layers} * spec.loops);
  for (uint32_t i = 0; i < layers * spec.loops; ++i) {
    const LayerSpec& layer = spec.layers[i % layers];
    AttentionSpec a = layer.attention;
    if (layer.mla) {  // the latent is the value, and with the rotated key behind it the key
      a.heads = a.kv_heads = 1;
      a.key_dim = layer.mla->rank + layer.mla->rope_dim;
      a.value_dim = layer.mla->rank;
    }
    if (a.kv_from >= 0) {
      shape.places.push_back(shape.places[i / layers * layers + static_cast<uint32_t>(a.kv_from)]);
      continue;
    }
    const StateSize state = StateSize::of(spec, layer);
    KvPlace place;
    place.tail = shape.state_floats;
    place.matrices = round_up(place.tail + state.tail, 16);
    shape.state_floats = round_up(place.matrices + state.matrices, 16);
    if (a.heads == 0) {
      shape.places.push_back(place);
      continue;
    }
    // A window that never ends before the context does is no window.
    const uint32_t window = a.window >= context ? 0 : a.window;
    auto found = std::find_if(shape.groups.begin(), shape.groups.end(),
                              [&](const KvGroup& g) { return g.window == window; });
    if (found == shape.groups.end())
      found = shape.groups.insert(shape.groups.end(), KvGroup{window, 0, 0});
    place.group = static_cast<uint32_t>(found - shape.groups.begin());
    place.offset = found->page_bytes;
    place.k_bytes = kernels::kv_key_bytes(type, a.key_dim);
    place.head_bytes = place.k_bytes + kernels::kv_value_bytes(type, a.value_dim);
    found->page_bytes += place.head_bytes * a.kv_heads;
    if (layer.mla && layer.mla->indexer && !layer.mla->indexer->shared) {
      place.index_offset = found->page_bytes;
      found->page_bytes += kernels::kv_key_bytes(type, layer.mla->indexer->dim);
    }
    shape.places.push_back(place);
  }
  for (KvGroup& group : shape.groups) {
    const uint64_t whole = (uint64_t{context} + kKvBlock - 1) / kKvBlock;
    // The window, the rows of one step, and a partly used page at each end.
    const uint64_t seen =
        group.window ? (uint64_t{group.window} + chunk + kKvBlock - 1) / kKvBlock + 1 : whole;
    group.pages = static_cast<uint32_t>(std::min(whole, seen) * sequences);
  }
  if (shape.state_floats) shape.slabs = sequences * (1 + saves);
  return shape;
}

uint64_t KvShape::bytes() const { return page_bytes() + StatePool::bytes(state_floats, slabs); }

uint64_t KvShape::page_bytes() const {
  uint64_t total = 0;
  for (const KvGroup& group : groups) total += round_up(group.page_bytes * group.pages, 4096);
  return total;
}

Expected<std::unique_ptr<KvPool>> KvPool::create(KvShape shape, stream::Ledger& ledger) {
  std::unique_ptr<StatePool> states;
  if (shape.state_floats) {
    MILLRACE_ASSIGN(states, StatePool::create(shape.state_floats, shape.slabs, ledger));
  }
  MILLRACE_TRY(ledger.reserve(stream::Use::kKv, shape.page_bytes()));
  std::unique_ptr<KvPool> pool(new KvPool(std::move(shape), ledger));
  pool->states_ = std::move(states);
  for (const KvGroup& group : pool->shape_.groups) {
    const uint64_t bytes = round_up(std::max<uint64_t>(group.page_bytes * group.pages, 1), 4096);
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
      return fail(Code::kNoMemory, "cannot map {} bytes for the KV cache", bytes);
    madvise(base, bytes, MADV_HUGEPAGE);  // a wish; attention walks through far apart places
    spread_over_nodes(base, bytes);
    pool->base_.push_back(static_cast<std::byte*>(base));
    std::vector<uint32_t> free(group.pages);
    for (uint32_t i = 0; i < group.pages; ++i) free[i] = group.pages - 1 - i;
    pool->free_.push_back(std::move(free));
    pool->references_.emplace_back(group.pages, 0);
  }
  return pool;
}

KvPool::~KvPool() {
  for (size_t g = 0; g < base_.size(); ++g) {
    munmap(base_[g],
           round_up(std::max<uint64_t>(shape_.groups[g].page_bytes * shape_.groups[g].pages, 1),
                    4096));
  }
  ledger_.release(stream::Use::kKv, shape_.page_bytes());
}

Expected<uint32_t> KvPool::take(uint32_t group) {
  if (free_[group].empty()) {
    return fail(Code::kNoMemory,
                "the KV cache is full ({} pages of {} positions); give a larger --context",
                shape_.groups[group].pages, kKvBlock);
  }
  const uint32_t page = free_[group].back();
  free_[group].pop_back();
  references_[group][page] = 1;
  return page;
}

void KvPool::drop(uint32_t group, uint32_t page) {
  if (--references_[group][page] == 0) free_[group].push_back(page);
}

KvSequence::KvSequence(KvPool& pool)
    : pool_(pool), pages_(pool.shape().groups.size()), state_(pool.states()) {}

KvSequence::~KvSequence() { trim(0); }

Status KvSequence::reserve(uint32_t length) {
  MILLRACE_TRY(state_.reserve());
  if (length <= length_) return {};
  const uint32_t first = length_ / kKvBlock, last = (length - 1) / kKvBlock;
  for (uint32_t g = 0; g < pages_.size(); ++g) {
    auto& pages = pages_[g];
    if (pages.size() <= last) pages.resize(last + 1, kNone);
    for (uint32_t block = first; block <= last; ++block) {
      if (pages[block] == kNone) {
        MILLRACE_ASSIGN(pages[block], pool_.take(g));
      } else if (pool_.references(g, pages[block]) > 1) {
        MILLRACE_ASSIGN(const uint32_t own, pool_.take(g));
        std::memcpy(pool_.data(g, own), pool_.data(g, pages[block]),
                    pool_.shape().groups[g].page_bytes);
        pool_.drop(g, pages[block]);
        pages[block] = own;
      }
    }
  }
  return {};
}

void KvSequence::commit(uint32_t length) {
  length_ = length;
  for (uint32_t g = 0; g < pages_.size(); ++g) {
    const uint32_t window = pool_.shape().groups[g].window;
    if (window == 0 || length < window) continue;
    // A query at `length` sees positions from length + 1 - window on.
    const uint32_t gone = (length + 1 - window) / kKvBlock;
    auto& pages = pages_[g];
    for (uint32_t block = std::min<uint32_t>(gone, static_cast<uint32_t>(pages.size()));
         block-- > 0;) {
      if (pages[block] == kNone) break;
      pool_.drop(g, pages[block]);
      pages[block] = kNone;
    }
  }
}

void KvSequence::trim(uint32_t length) {
  forget(length);
  if (length == 0) state_.clear();
}

void KvSequence::forget(uint32_t length) {
  const uint32_t keep = (length + kKvBlock - 1) / kKvBlock;
  for (uint32_t g = 0; g < pages_.size(); ++g) {
    auto& pages = pages_[g];
    while (pages.size() > keep) {
      if (pages.back() != kNone) pool_.drop(g, pages.back());
      pages.pop_back();
    }
  }
  length_ = std::min(length_, length);
}

Status KvSequence::begin_round() { return state_.save(); }

Expected<uint32_t> KvSequence::rollback(uint32_t length) {
  for (uint32_t g = 0; g < pages_.size(); ++g) {
    // The oldest position that a query at `length` sees must still be there.
    const uint32_t window = pool_.shape().groups[g].window;
    const uint32_t oldest = window && length + 1 > window ? length + 1 - window : 0;
    if (oldest < length && !page(g, oldest / kKvBlock)) {
      return fail(Code::kInternal, "positions that a row at {} would see are gone", length);
    }
  }
  uint32_t from = length;
  if (state_.exists() && state_.position() != length) {
    const auto saved = state_.saved_position();
    if (!saved || *saved > length) {
      return fail(Code::kInternal, "the recurrent state cannot go back to position {}", length);
    }
    MILLRACE_TRY(state_.restore());
    from = *saved;
  }
  forget(from);
  return from;
}

std::byte* KvSequence::page(uint32_t group, uint32_t block) const {
  const auto& pages = pages_[group];
  return block < pages.size() && pages[block] != kNone ? pool_.data(group, pages[block]) : nullptr;
}

}  // namespace millrace::model
