#include "stream/replay.h"

#include <algorithm>
#include <set>

namespace millrace::stream {
namespace {

// What fired in each pass, each piece once, in the order in which the forward pass asks.
struct Fired {
  std::vector<uint32_t> pieces;
  std::vector<uint32_t> rows;  // of the pass, that each was used by
  std::vector<size_t> begin;   // by pass, and the end
};

Fired fired_of(const Trace& trace) {
  Fired out;
  std::vector<uint32_t> set;
  out.begin.push_back(0);
  for (const TracePass& pass : trace.passes) {
    set.assign(pass.experts.begin(), pass.experts.end());
    std::sort(set.begin(), set.end());
    for (auto at = set.begin(); at != set.end();) {
      const auto next = std::upper_bound(at, set.end(), *at);
      out.pieces.push_back(pass.layer * trace.head.experts + *at);
      out.rows.push_back(static_cast<uint32_t>(next - at));
      at = next;
    }
    out.begin.push_back(out.pieces.size());
  }
  return out;
}

// Gives up what is used again last. Knows the future.
class Belady : public Policy {
 public:
  Belady(const Fired& fired, uint32_t pieces)
      : next_(fired.pieces.size(), kNone), at_(pieces, kNone) {
    std::vector<uint32_t> seen(pieces, kNone);
    for (size_t i = fired.pieces.size(); i-- > 0;) {
      next_[i] = seen[fired.pieces[i]];
      seen[fired.pieces[i]] = static_cast<uint32_t>(i);
    }
  }
  void now(size_t use) { use_ = use; }
  void admitted(uint32_t) override {}
  void used(uint32_t piece, uint32_t) override {
    forget(piece);
    at_[piece] = next_[use_];
    order_.insert({at_[piece], piece});
  }
  void removed(uint32_t piece) override { forget(piece); }
  uint32_t victim(const MayGo& may_go) override {
    for (auto it = order_.rbegin(); it != order_.rend(); ++it)
      if (may_go(it->second)) return it->second;
    return kNone;
  }
  std::vector<uint32_t> order() const override {
    std::vector<uint32_t> pieces;
    pieces.reserve(order_.size());
    for (auto it = order_.rbegin(); it != order_.rend(); ++it) pieces.push_back(it->second);
    return pieces;
  }

 private:
  void forget(uint32_t piece) { order_.erase({at_[piece], piece}); }
  std::vector<uint32_t> next_;                     // by use: the next one of the same piece
  std::vector<uint32_t> at_;                       // by piece
  std::set<std::pair<uint32_t, uint32_t>> order_;  // resident pieces by next use
  size_t use_ = 0;
};

}  // namespace

Expected<ReplayResult> replay(const Trace& trace, std::optional<PolicyKind> kind,
                              const ReplayOptions& options) {
  if (options.slots < trace.head.used)
    return fail(Code::kInvalid, "{} slots do not hold the {} experts of one row", options.slots,
                trace.head.used);
  const uint32_t pieces = trace.head.layers * trace.head.experts;
  const Fired fired = fired_of(trace);
  std::unique_ptr<Policy> policy;
  Belady* belady = nullptr;
  if (kind) {
    PolicyFacts facts;
    for (uint32_t piece = 0; piece < pieces; ++piece)
      facts.layer_of.push_back(piece / trace.head.experts);
    facts.slots = options.slots;
    policy = make_policy(*kind, std::move(facts));
  } else {
    auto best = std::make_unique<Belady>(fired, pieces);
    belady = best.get();
    policy = std::move(best);
  }
  std::vector<uint8_t> resident(pieces, 0), wanted(pieces, 0);
  uint32_t count = 0;
  ReplayResult result;
  std::vector<size_t> order;
  for (size_t p = 0; p < trace.passes.size(); ++p) {
    const TracePass& pass = trace.passes[p];
    policy->began(pass.layer, static_cast<uint32_t>(pass.experts.size()) / trace.head.used);
    // As in the store: resident experts first; what is still wanted in this pass stays.
    order.clear();
    for (size_t i = fired.begin[p]; i < fired.begin[p + 1]; ++i) {
      wanted[fired.pieces[i]] = 1;
      if (resident[fired.pieces[i]]) order.push_back(i);
    }
    const size_t hits = order.size();
    for (size_t i = fired.begin[p]; i < fired.begin[p + 1]; ++i)
      if (!resident[fired.pieces[i]]) order.push_back(i);
    if (pass.step >= options.skip_steps) {
      result.uses += order.size();
      result.hits += hits;
    }
    for (const size_t i : order) {
      const uint32_t piece = fired.pieces[i];
      if (belady) belady->now(i);
      if (!resident[piece]) {
        if (count == options.slots) {
          const uint32_t gone =
              policy->victim([&](uint32_t q) { return resident[q] != 0 && wanted[q] == 0; });
          if (gone == kNone) return fail(Code::kInternal, "no piece can be given up in pass {}", p);
          policy->removed(gone);
          resident[gone] = 0;
          --count;
        }
        resident[piece] = 1;
        ++count;
        policy->admitted(piece);
      }
      policy->used(piece, fired.rows[i]);
      wanted[piece] = 0;
    }
  }
  return result;
}

}  // namespace millrace::stream
