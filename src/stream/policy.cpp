#include "stream/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace millrace::stream {
namespace {

constexpr std::array<PolicyName, 4> kNames = {{{PolicyKind::kLru, "lru"},
                                               {PolicyKind::kLfu, "lfu"},
                                               {PolicyKind::kS3Fifo, "s3-fifo"},
                                               {PolicyKind::kNextUse, "next-use"}}};

// Doubly linked lists of pieces in memory reserved once; a piece is in one list at most.
class Links {
 public:
  struct List {
    uint32_t oldest = kNone, newest = kNone, size = 0;
  };
  explicit Links(uint32_t pieces) : nodes_(pieces) {}

  uint32_t newer(uint32_t piece) const { return nodes_[piece].newer; }
  void append(const List& list, std::vector<uint32_t>* to) const {
    for (uint32_t p = list.oldest; p != kNone; p = newer(p)) to->push_back(p);
  }
  void push(List& list, uint32_t piece) {
    nodes_[piece] = {list.newest, kNone};
    (list.newest == kNone ? list.oldest : nodes_[list.newest].newer) = piece;
    list.newest = piece;
    ++list.size;
  }
  void remove(List& list, uint32_t piece) {
    const Node node = nodes_[piece];
    (node.older == kNone ? list.oldest : nodes_[node.older].newer) = node.newer;
    (node.newer == kNone ? list.newest : nodes_[node.newer].older) = node.older;
    --list.size;
  }

 private:
  struct Node {
    uint32_t older = kNone, newer = kNone;
  };
  std::vector<Node> nodes_;
};

class Lru : public Policy {
 public:
  explicit Lru(uint32_t pieces) : links_(pieces) {}
  void admitted(uint32_t piece) override { links_.push(list_, piece); }
  void used(uint32_t piece, uint32_t) override {
    links_.remove(list_, piece);
    links_.push(list_, piece);
  }
  void removed(uint32_t piece) override { links_.remove(list_, piece); }
  uint32_t victim(const MayGo& may_go) override {
    for (uint32_t p = list_.oldest; p != kNone; p = links_.newer(p))
      if (may_go(p)) return p;
    return kNone;
  }
  std::vector<uint32_t> order() const override {
    std::vector<uint32_t> pieces;
    pieces.reserve(list_.size);
    links_.append(list_, &pieces);
    return pieces;
  }

 private:
  Links links_;
  Links::List list_;
};

// The resident pieces, to walk over.
class ResidentSet {
 public:
  explicit ResidentSet(uint32_t pieces) : at_(pieces, kNone) { list_.reserve(pieces); }
  void add(uint32_t piece) {
    at_[piece] = static_cast<uint32_t>(list_.size());
    list_.push_back(piece);
  }
  void remove(uint32_t piece) {
    const uint32_t last = list_.back();
    list_[at_[piece]] = last;
    at_[last] = at_[piece];
    at_[piece] = kNone;
    list_.pop_back();
  }
  // The one that may go with the least worth(piece), of several the lowest.
  template <class Worth>
  uint32_t least(const Policy::MayGo& may_go, Worth worth) const {
    uint32_t least = kNone;
    double value = 0;
    for (const uint32_t p : list_) {
      const double v = worth(p);
      if (least != kNone && !(v < value || (v == value && p < least))) continue;
      if (!may_go(p)) continue;
      least = p;
      value = v;
    }
    return least;
  }
  // Ascending in worth(piece), equal ones by piece.
  template <class Worth>
  std::vector<uint32_t> order(Worth worth) const {
    std::vector<std::pair<double, uint32_t>> keyed;
    keyed.reserve(list_.size());
    for (const uint32_t p : list_) keyed.emplace_back(worth(p), p);
    std::sort(keyed.begin(), keyed.end());
    std::vector<uint32_t> pieces;
    pieces.reserve(keyed.size());
    for (const auto& [value, p] : keyed) pieces.push_back(p);
    return pieces;
  }

 private:
  std::vector<uint32_t> list_, at_;
};

// Passes over the model after which a use counts half: chosen by replaying recorded traces
// (docs/experiments/expert-policies.md).
constexpr double kHalfLife = 64;

// In which share of the rows each piece fires, the average of a pass counting half after kHalfLife
// passes. A prompt's pass counts no more than a token's: what comes next is like what was last, and in
// replays every larger weight made answers to prompts slower. Counts outlive residency: what comes back
// is known. Instead of shrinking all counts as time passes, new uses count for more.
class FiringRate {
 public:
  explicit FiringRate(size_t pieces) : counts_(pieces, 0.0), growth_(std::exp2(1.0 / kHalfLife)) {}

  // A layer that is not behind the one before begins another pass over the model.
  void began(uint32_t layer, uint32_t rows) {
    const bool again = first_ || layer <= layer_;
    first_ = false;
    layer_ = layer;
    rows_ = std::max(1u, rows);
    if (!again) return;
    unit_ *= growth_;
    if (unit_ < 1e200) return;
    for (double& count : counts_) count /= unit_;
    unit_ = 1.0;
  }
  void use(uint32_t piece, uint32_t rows) {
    counts_[piece] += unit_ * std::min(1.0, static_cast<double>(rows) / rows_);
  }
  uint32_t layer() const { return layer_; }  // of the present pass
  uint32_t rows() const { return rows_; }
  double share(uint32_t piece) const { return counts_[piece] / unit_ * (1.0 - 1.0 / growth_); }

 private:
  std::vector<double> counts_;
  double growth_, unit_ = 1.0;
  uint32_t layer_ = 0, rows_ = 1;
  bool first_ = true;
};

class Lfu : public Policy {
 public:
  explicit Lfu(uint32_t pieces) : resident_(pieces), rate_(pieces) {}
  void began(uint32_t layer, uint32_t rows) override { rate_.began(layer, rows); }
  void admitted(uint32_t piece) override { resident_.add(piece); }
  void used(uint32_t piece, uint32_t rows) override { rate_.use(piece, rows); }
  void removed(uint32_t piece) override { resident_.remove(piece); }
  uint32_t victim(const MayGo& may_go) override {
    return resident_.least(may_go, [this](uint32_t piece) { return rate_.share(piece); });
  }
  std::vector<uint32_t> order() const override {
    return resident_.order([this](uint32_t piece) { return rate_.share(piece); });
  }

 private:
  ResidentSet resident_;
  FiringRate rate_;
};

class S3Fifo : public Policy {
 public:
  S3Fifo(uint32_t pieces, uint32_t slots) : links_(pieces), state_(pieces) { resize(slots); }

  void admitted(uint32_t piece) override {
    State& s = state_[piece];
    const bool known = s.where == Where::kGhost;
    if (known) links_.remove(ghosts_, piece);
    s = {known ? Where::kMain : Where::kSmall, 0, true};
    links_.push(known ? main_ : small_, piece);
  }
  void used(uint32_t piece, uint32_t) override {
    State& s = state_[piece];
    if (!s.fresh) s.uses = static_cast<uint8_t>(std::min(s.uses + 1, 3));
    s.fresh = false;
  }
  void removed(uint32_t piece) override {
    State& s = state_[piece];
    links_.remove(s.where == Where::kSmall ? small_ : main_, piece);
    if (s.where != Where::kSmall || most_ghosts_ == 0) {
      s.where = Where::kNowhere;
      return;
    }
    if (ghosts_.size == most_ghosts_) forget_oldest();
    s.where = Where::kGhost;
    links_.push(ghosts_, piece);
  }
  uint32_t victim(const MayGo& may_go) override {
    // Each step takes a use from a piece or moves it on; a piece that may not go is skipped once.
    for (uint32_t steps = 4 * (small_.size + main_.size) + 4; steps > 0; --steps) {
      const bool from_small = small_.size >= most_small_ || main_.size == 0;
      Links::List& list = from_small ? small_ : main_;
      const uint32_t piece = list.oldest;
      if (piece == kNone) return kNone;
      State& s = state_[piece];
      if (s.uses == 0 && may_go(piece)) return piece;
      links_.remove(list, piece);
      if (from_small && s.uses > 0) {
        s = {Where::kMain, 0, false};
        links_.push(main_, piece);
      } else {
        if (s.uses > 0) --s.uses;
        links_.push(list, piece);
      }
    }
    for (const Links::List* list : {&small_, &main_})
      for (uint32_t p = list->oldest; p != kNone; p = links_.newer(p))
        if (may_go(p)) return p;
    return kNone;
  }
  std::vector<uint32_t> order() const override {
    std::vector<uint32_t> pieces;
    pieces.reserve(small_.size + main_.size);
    links_.append(small_, &pieces);
    links_.append(main_, &pieces);
    // What was not used since it came goes first, as in victim().
    std::stable_sort(pieces.begin(), pieces.end(),
                     [this](uint32_t a, uint32_t b) { return state_[a].uses < state_[b].uses; });
    return pieces;
  }
  void resize(uint32_t slots) override {
    most_small_ = std::max(1u, slots / 10);
    most_ghosts_ = slots;
    while (ghosts_.size > most_ghosts_) forget_oldest();
  }

 private:
  void forget_oldest() {
    const uint32_t oldest = ghosts_.oldest;
    links_.remove(ghosts_, oldest);
    state_[oldest].where = Where::kNowhere;
  }
  enum class Where : uint8_t { kNowhere, kSmall, kMain, kGhost };
  struct State {
    Where where = Where::kNowhere;
    uint8_t uses = 0;
    bool fresh = false;
  };
  Links links_;
  std::vector<State> state_;
  Links::List small_, main_, ghosts_;
  uint32_t most_small_ = 1, most_ghosts_ = 0;
};

// Gives up the piece whose next use is expected last. Passes go through the layers in order, so a
// piece that fires in a share p of the passes is used next, on average, after
//   d + (1 - p) / p passes,
// d being the part of a pass until its layer comes up again. Of passes of n rows, p = 1 - (1 - r)^n, r
// being a decayed average over rows; the next pass is taken to have as many as the present one. Where
// p is near 1 for all (a prompt, a text that keeps its experts) this is Belady's choice on a cyclic
// scan, where LRU and LFU would give up just what comes next; where p is small it is LFU.
class NextUse : public Policy {
 public:
  explicit NextUse(PolicyFacts facts)
      : layer_of_(std::move(facts.layer_of)),
        resident_(static_cast<uint32_t>(layer_of_.size())),
        rate_(layer_of_.size()) {
    uint32_t last = 0;
    for (const uint32_t layer : layer_of_) last = std::max(last, layer);
    pass_share_ = 1.0 / (last + 1.0);
  }
  void began(uint32_t layer, uint32_t rows) override { rate_.began(layer, rows); }
  void admitted(uint32_t piece) override { resident_.add(piece); }
  void used(uint32_t piece, uint32_t rows) override { rate_.use(piece, rows); }
  void removed(uint32_t piece) override { resident_.remove(piece); }
  uint32_t victim(const MayGo& may_go) override {
    return resident_.least(may_go, [this](uint32_t piece) { return -until_next(piece); });
  }
  std::vector<uint32_t> order() const override {
    return resident_.order([this](uint32_t piece) { return -until_next(piece); });
  }

 private:
  double until_next(uint32_t piece) const {
    const double ahead = (static_cast<double>(layer_of_[piece]) - rate_.layer()) * pass_share_;
    double share = std::clamp(rate_.share(piece), 1e-9, 1.0);
    if (rate_.rows() > 1) share = 1.0 - std::pow(1.0 - share, rate_.rows());
    return (ahead > 0 ? ahead : ahead + 1.0) + (1.0 - share) / share;
  }

  std::vector<uint32_t> layer_of_;
  ResidentSet resident_;
  FiringRate rate_;
  double pass_share_ = 1.0;  // of one layer
};

}  // namespace

std::span<const PolicyName> policy_names() { return kNames; }

std::string_view name(PolicyKind kind) {
  for (const PolicyName& entry : kNames)
    if (entry.kind == kind) return entry.name;
  return "?";
}

Expected<PolicyKind> find_policy(std::string_view name) {
  std::vector<std::string_view> known;
  for (const PolicyName& entry : kNames) {
    if (entry.name == name) return entry.kind;
    known.push_back(entry.name);
  }
  return fail(Code::kInvalid, "there is no policy '{}'; there are {}", name,
              fmt::join(known, ", "));
}

std::unique_ptr<Policy> make_policy(PolicyKind kind, PolicyFacts facts) {
  const auto pieces = static_cast<uint32_t>(facts.layer_of.size());
  switch (kind) {
    case PolicyKind::kLru:
      return std::make_unique<Lru>(pieces);
    case PolicyKind::kLfu:
      return std::make_unique<Lfu>(pieces);
    case PolicyKind::kS3Fifo:
      return std::make_unique<S3Fifo>(pieces, facts.slots);
    case PolicyKind::kNextUse:
      return std::make_unique<NextUse>(std::move(facts));
  }
  return nullptr;
}

}  // namespace millrace::stream
