// Another budget while the model runs: slots are added behind those that are there, or the last ones
// go, so that a region stays one piece of memory. A huge page is then given back whole, and none can
// grow over what was given back.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "stream/slots.h"

namespace millrace::stream {

Status SlotTable::resize(const ResidencyPlan& plan, uint64_t most_moved) {
  assert(plan.class_of == class_of_);
  const auto slots_of = [&](size_t c) { return plan.classes[c].pinned + plan.classes[c].shared; };
  const auto bytes_of = [&](size_t c, uint64_t slots) { return slots * classes_[c].slot_bytes; };
  // What is given up comes first: explicit huge pages or locked memory may be just enough for the
  // arena, and never is more of it in use than before or after.
  std::vector<size_t> growing;
  for (size_t c = 0; c < classes_.size(); ++c) {
    if (slots_of(c) > classes_[c].count) {
      growing.push_back(c);
      continue;
    }
    fit(classes_[c], plan.classes[c], plan, &most_moved);
    (void)arena_.commit(c, bytes_of(c, slots_of(c)));  // what shrinks cannot fail
  }
  for (const size_t c : growing) {
    Status grown = arena_.commit(c, bytes_of(c, slots_of(c)));
    if (grown) continue;
    for (const size_t b : growing) {  // back to what was
      if (b == c) break;
      (void)arena_.commit(b, bytes_of(b, classes_[b].count));
    }
    return grown;
  }
  for (const size_t c : growing) fit(classes_[c], plan.classes[c], plan, &most_moved);
  return {};
}

// Resident pieces without a slot of their own, the first to give up first.
std::vector<uint32_t> SlotTable::order(const Class& c) const {
  std::vector<uint32_t> pieces;
  if (c.policy) {
    pieces = c.policy->order();
  } else {
    pieces = c.pieces;
    std::stable_sort(pieces.begin(), pieces.end(),
                     [this](uint32_t a, uint32_t b) { return distance(a) > distance(b); });
  }
  std::erase_if(pieces, [this](uint32_t p) {
    return entries_[p].state != PieceState::kResident || entries_[p].pinned;
  });
  return pieces;
}

// The piece loses its slot.
void SlotTable::vacate(uint32_t piece) {
  PieceEntry& entry = entries_[piece];
  Class& c = classes_[class_of_[piece]];
  if (entry.state == PieceState::kResident && c.policy) c.policy->removed(piece);
  if (entry.slot != kNone) slots_[entry.slot].piece = kNone;
  entry.slot = kNone;
  entry.state = PieceState::kAbsent;
}

void SlotTable::fit(Class& c, const SlotClass& to, const ResidencyPlan& plan,
                    uint64_t* most_moved) {
  for (const uint32_t p : c.pieces) {
    PieceEntry& entry = entries_[p];
    assert(entry.state != PieceState::kReading && !entry.fired);
    entry.holds = 0;  // of a pass that failed half-way
    entry.pinned = plan.pinned[p] != 0;
    if (entry.state == PieceState::kAbsent) vacate(p);
  }
  std::vector<uint32_t> kept = order(c);
  if (kept.size() > to.shared) {
    const auto gone = kept.begin() + static_cast<std::ptrdiff_t>(kept.size() - to.shared);
    std::for_each(kept.begin(), gone, [this](uint32_t p) { vacate(p); });
    kept.erase(kept.begin(), gone);
  }
  // What is given up last is copied first, and pinned pieces before it.
  for (const uint32_t p : c.pieces)
    if (entries_[p].pinned && entries_[p].state == PieceState::kResident) kept.push_back(p);
  std::reverse(kept.begin(), kept.end());

  c.count = to.pinned + to.shared;
  const uint32_t end = c.first + c.count;
  uint32_t next = c.first;
  const auto take_free = [&] {
    while (slots_[next].piece != kNone) ++next;
    assert(next < end);
    return next;
  };
  for (const uint32_t p : kept) {
    const uint32_t from = entries_[p].slot;
    if (from < end) continue;
    if (piece_bytes_[p] > *most_moved) {
      vacate(p);
      continue;
    }
    *most_moved -= piece_bytes_[p];
    const uint32_t slot = take_free();
    std::memcpy(slots_[slot].data, slots_[from].data, piece_bytes_[p]);
    slots_[from].piece = kNone;
    slots_[slot].piece = p;
    entries_[p].slot = slot;
  }
  for (const uint32_t p : c.pieces) {
    if (!entries_[p].pinned || entries_[p].slot != kNone) continue;
    entries_[p].slot = take_free();
    slots_[entries_[p].slot].piece = p;
  }
  c.free.clear();
  for (uint32_t s = end; s-- > c.first;)
    if (slots_[s].piece == kNone) c.free.push_back(s);
  if (c.policy) c.policy->resize(c.count);
}

}  // namespace millrace::stream
