// Cuts a budget into slots. Every class starts with the least it can run with; what is left is
// spent slot by slot in a fixed order, passing over what does not fit, so more budget never means
// fewer bytes in use.
//
// Scanned classes (read once in every pass) come first: a pinned byte saves a byte of disk in every
// pass, whatever the class. They are completed from the smallest class up, because a class that is
// complete needs no slots to read ahead, and because the one left over is then the largest (the
// dense FFN), whose reads spread over the whole pass. In it the pinned pieces are spread evenly
// over the scan instead of being its front: the disk then always has the next missing piece to read
// while the resident ones between are computed, and a few shared slots are enough to keep it busy.
// Reads in a pass are the same n - k either way.
#include "stream/residency.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/numeric.h"
#include "base/size_text.h"
#include "base/status.h"

namespace millrace::stream {
namespace {

using format::Piece;
using format::PieceKind;

constexpr uint64_t kPage = 4096;
constexpr uint32_t kAheadSlots = 2;  // one in use, one being read
// Small pieces need several reads in flight to keep a disk busy: this many bytes of them, at
// most 8.
constexpr uint64_t kAheadBytes = uint64_t{32} << 20;
constexpr uint64_t kMostAhead = 8;

struct Group {
  PieceKind kind = PieceKind::kMixer;
  bool scanned = false;
  uint64_t slot_bytes = 0;
  std::vector<uint32_t> pieces;  // in scan order
  uint32_t least = 1;
  uint32_t slots = 0;

  uint32_t count() const { return static_cast<uint32_t>(pieces.size()); }
  uint64_t total() const { return slot_bytes * pieces.size(); }
  bool full() const { return slots == count(); }
};

// Slots of a scanned class that are not pinned: never more than a quarter of what it has, beyond
// the two it needs.
uint32_t shared_slots(const Group& group) {
  const uint64_t wanted = 1 + std::min(kMostAhead, kAheadBytes / group.slot_bytes);
  const uint64_t shared =
      std::max<uint64_t>(kAheadSlots, std::min<uint64_t>(wanted, group.slots / 4));
  return static_cast<uint32_t>(std::min<uint64_t>(shared, group.slots));
}

bool is_scanned(PieceKind kind, const Demand& demand) {
  if (kind == PieceKind::kExpert || kind == PieceKind::kLookup) return false;
  return kind != PieceKind::kEmbedding || demand.tied_head;
}

// The budget that is left, spent one slot at a time.
class Purse {
 public:
  explicit Purse(uint64_t bytes) : bytes_(bytes) {}
  bool buy(Group& group) {
    if (group.full() || group.slot_bytes > bytes_) return false;
    bytes_ -= group.slot_bytes;
    ++group.slots;
    return true;
  }
  uint64_t left() const { return bytes_; }

 private:
  uint64_t bytes_;
};

std::vector<Group> group_pieces(const format::PieceTable& table, const Demand& demand,
                                std::vector<uint32_t>* class_of) {
  std::vector<Group> groups;
  std::map<std::pair<PieceKind, uint64_t>, uint32_t> index;
  for (uint32_t p = 0; p < table.pieces.size(); ++p) {
    const Piece& piece = table.pieces[p];
    const uint64_t bytes = std::max(kPage, round_up(piece.bytes, kPage));
    const auto [at, added] =
        index.try_emplace({piece.kind, bytes}, static_cast<uint32_t>(groups.size()));
    if (added) {
      Group& group = groups.emplace_back();
      group.kind = piece.kind;
      group.scanned = is_scanned(piece.kind, demand);
      group.slot_bytes = bytes;
    }
    groups[at->second].pieces.push_back(p);
    class_of->push_back(at->second);
  }
  for (Group& group : groups) {
    if (group.kind == PieceKind::kExpert) {
      group.least = std::clamp<uint32_t>(demand.experts_per_token, 1, group.count());
    }
    group.slots = group.least;
  }
  return groups;
}

void spend(std::vector<Group>& groups, uint64_t budget) {
  Purse purse(budget);
  std::vector<Group*> scanned;
  std::vector<Group*> random;  // experts and an untied embedding: any piece may be next
  for (Group& group : groups) (group.scanned ? scanned : random).push_back(&group);
  std::stable_sort(scanned.begin(), scanned.end(),
                   [](const Group* a, const Group* b) { return a->total() < b->total(); });

  for (Group* group : scanned) {
    while (group->slots < kAheadSlots && purse.buy(*group)) continue;
  }
  for (Group* group : scanned) {
    while (purse.buy(*group)) continue;
  }
  // Equal shares of their pieces: always the class that has the smallest part of them resident.
  while (!random.empty()) {
    const auto poorest =
        std::min_element(random.begin(), random.end(), [](const Group* a, const Group* b) {
          return uint64_t{a->slots} * b->count() < uint64_t{b->slots} * a->count();
        });
    if (!purse.buy(**poorest)) random.erase(poorest);
  }
}

void pin(const Group& group, uint32_t count, std::vector<uint8_t>* pinned) {
  const uint32_t n = group.count();
  for (uint32_t j = 0; j < n; ++j) {
    // A tied embedding keeps its front: low token ids are the frequent ones, and it is looked up,
    // too.
    const bool chosen = group.kind == PieceKind::kEmbedding
                            ? j < count
                            : uint64_t{j + 1} * count / n > uint64_t{j} * count / n;
    if (chosen) (*pinned)[group.pieces[j]] = 1;
  }
}

}  // namespace

Expected<ResidencyPlan> plan_residency(const format::PieceTable& table, uint64_t budget,
                                       const Demand& demand) {
  ResidencyPlan plan;
  plan.experts_per_token = demand.experts_per_token;
  std::vector<Group> groups = group_pieces(table, demand, &plan.class_of);
  for (const Group& group : groups) {
    plan.smallest_budget += group.least * group.slot_bytes;
    plan.full_budget += group.total();
    const uint64_t wanted =
        group.kind == PieceKind::kExpert
            ? std::max<uint64_t>(group.least, (uint64_t{group.count()} * 2 + 4) / 5)
            : group.count();
    plan.comfortable_budget += wanted * group.slot_bytes;
  }
  if (budget < plan.smallest_budget) {
    return fail(Code::kNoMemory,
                "a weight budget of {} cannot hold one layer's working set; the smallest that "
                "works is {} ({})",
                size_text(budget), size_text(plan.smallest_budget),
                size_to_give(plan.smallest_budget));
  }
  spend(groups, budget - plan.smallest_budget);

  plan.pinned.assign(table.pieces.size(), 0);
  for (const Group& group : groups) {
    SlotClass& out = plan.classes.emplace_back();
    out.kind = group.kind;
    out.slot_bytes = group.slot_bytes;
    out.pieces = group.count();
    if (group.full()) {
      out.pinned = group.slots;
    } else {
      out.shared = group.scanned ? shared_slots(group) : group.slots;
      out.pinned = group.slots - out.shared;
    }
    pin(group, out.pinned, &plan.pinned);
    plan.arena_bytes += group.slots * group.slot_bytes;
  }

  for (uint32_t p = 0; p < table.pieces.size(); ++p) {
    const PieceKind kind = table.pieces[p].kind;
    if (kind != PieceKind::kExpert && kind != PieceKind::kEmbedding && kind != PieceKind::kLookup)
      plan.scan.push_back(p);
  }
  if (demand.tied_head) {  // the embedding is read again as the head, at the end of the pass
    for (uint32_t p = 0; p < table.pieces.size(); ++p) {
      if (table.pieces[p].kind == PieceKind::kEmbedding) plan.scan.push_back(p);
    }
  }
  return plan;
}

uint32_t ResidencyPlan::streamed_piece() const {
  uint64_t most = 0;
  size_t streamed = classes.size();
  for (size_t i = 0; i < classes.size(); ++i) {
    const SlotClass& c = classes[i];
    const uint64_t held = uint64_t{c.pinned} + c.shared;
    if (held >= c.pieces || (c.pieces - held) * c.slot_bytes <= most) continue;
    most = (c.pieces - held) * c.slot_bytes;
    streamed = i;
  }
  for (uint32_t p = 0; p < class_of.size(); ++p) {
    if (class_of[p] == streamed && !pinned[p]) return p;
  }
  return UINT32_MAX;
}

ResidencyPlan lesser_plan(const ResidencyPlan& now, const ResidencyPlan& wanted) {
  ResidencyPlan plan = now;
  plan.arena_bytes = 0;
  std::vector<bool> taken(plan.classes.size());
  for (size_t c = 0; c < plan.classes.size(); ++c) {
    SlotClass& to = plan.classes[c];
    const SlotClass& other = wanted.classes[c];
    taken[c] = uint64_t{other.pinned} + other.shared <= uint64_t{to.pinned} + to.shared;
    if (taken[c]) to = other;
    plan.arena_bytes += (uint64_t{to.pinned} + to.shared) * to.slot_bytes;
  }
  for (size_t p = 0; p < plan.pinned.size(); ++p) {
    if (taken[plan.class_of[p]]) plan.pinned[p] = wanted.pinned[p];
  }
  return plan;
}

}  // namespace millrace::stream
