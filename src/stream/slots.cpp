#include "stream/slots.h"

#include <algorithm>
#include <cassert>

namespace millrace::stream {

using format::PieceKind;

namespace {

PolicyFacts facts_of(const format::PieceTable& table, uint32_t slots) {
  PolicyFacts facts;
  facts.slots = slots;
  facts.layer_of.reserve(table.pieces.size());
  for (const format::Piece& piece : table.pieces)
    facts.layer_of.push_back(static_cast<uint32_t>(std::max(piece.layer, 0)));
  return facts;
}

}  // namespace

std::vector<uint64_t> SlotTable::regions(const ResidencyPlan& plan) {
  std::vector<uint64_t> bytes;
  bytes.reserve(plan.classes.size());
  for (const SlotClass& c : plan.classes) bytes.push_back(c.slot_bytes * c.pieces);
  return bytes;
}

SlotTable::SlotTable(const format::PieceTable& table, const ResidencyPlan& plan, Arena& arena,
                     PolicyKind policy)
    : arena_(arena),
      class_of_(plan.class_of),
      scan_length_(static_cast<uint32_t>(plan.scan.size())) {
  entries_.resize(table.pieces.size());
  for (uint32_t i = 0; i < plan.scan.size(); ++i) {
    PieceEntry& entry = entries_[plan.scan[i]];
    entry.scan_at = i;
    entry.lookup = table.pieces[plan.scan[i]].kind == PieceKind::kEmbedding;
  }
  for (const format::Piece& piece : table.pieces) {
    piece_bytes_.push_back(piece.bytes);
    layer_of_.push_back(static_cast<uint32_t>(std::max(piece.layer, 0)));
  }

  classes_.resize(plan.classes.size());
  slots_.reserve(entries_.size());
  for (uint32_t p = 0; p < entries_.size(); ++p) classes_[class_of_[p]].pieces.push_back(p);
  for (uint32_t c = 0; c < classes_.size(); ++c) {
    const SlotClass& from = plan.classes[c];
    Class& to = classes_[c];
    to.first = static_cast<uint32_t>(slots_.size());
    to.slot_bytes = from.slot_bytes;
    to.free.reserve(from.pieces);
    std::byte* data = arena.region(c);
    for (uint32_t s = 0; s < from.pieces; ++s) {
      slots_.push_back({data, kNone});
      data += from.slot_bytes;
    }
    // Pieces of an embedding come with the tokens; what was used last is as good a guess as any.
    const bool scanned = !to.pieces.empty() && entries_[to.pieces[0]].scan_at != kNone;
    if (!scanned)
      to.policy = make_policy(from.kind == PieceKind::kExpert ? policy : PolicyKind::kLru,
                              facts_of(table, from.pinned + from.shared));
  }
}

std::span<std::byte> SlotTable::bytes(uint32_t piece) const {
  assert(entries_[piece].slot != kNone);
  return {slots_[entries_[piece].slot].data, piece_bytes_[piece]};
}

bool SlotTable::place(uint32_t piece, bool ahead) {
  PieceEntry& entry = entries_[piece];
  assert(entry.state == PieceState::kAbsent);
  if (!entry.pinned) {
    Class& c = classes_[class_of_[piece]];
    if (c.free.empty()) {
      const uint32_t gone = victim(c);
      if (gone == kNone) return false;
      if (ahead && distance(gone) <= distance(piece)) return false;
      drop(gone);
    }
    entry.slot = c.free.back();
    c.free.pop_back();
    slots_[entry.slot].piece = piece;
  }
  entry.state = PieceState::kReading;
  return true;
}

void SlotTable::arrived(uint32_t piece) {
  PieceEntry& entry = entries_[piece];
  assert(entry.state == PieceState::kReading);
  entry.state = PieceState::kResident;
  Class& c = classes_[class_of_[piece]];
  if (c.policy) c.policy->admitted(piece);
}

void SlotTable::drop(uint32_t piece) {
  PieceEntry& entry = entries_[piece];
  assert(entry.state != PieceState::kAbsent && entry.holds == 0);
  Class& c = classes_[class_of_[piece]];
  if (entry.state == PieceState::kResident && c.policy) c.policy->removed(piece);
  if (!entry.pinned) {
    slots_[entry.slot].piece = kNone;
    c.free.push_back(entry.slot);
    entry.slot = kNone;
  }
  entry.state = PieceState::kAbsent;
}

void SlotTable::touch(uint32_t piece) {
  const PieceEntry& entry = entries_[piece];
  Class& c = classes_[class_of_[piece]];
  if (!c.policy || entry.state != PieceState::kResident) return;
  c.policy->used(piece, entry.rows);
}

void SlotTable::began(std::span<const uint32_t> pieces, uint32_t rows) {
  // Experts of a layer are of one class, or of a few that differ in size.
  ++stamp_;
  for (const uint32_t piece : pieces) {
    Class& c = classes_[class_of_[piece]];
    if (!c.policy || c.stamp == stamp_) continue;
    c.stamp = stamp_;
    c.policy->began(layer_of_[piece], rows);
  }
}

void SlotTable::used(uint32_t piece) {
  const PieceEntry& entry = entries_[piece];
  if (entry.scan_at == kNone) return;
  // A look-up in a tied embedding is not a step of the scan, unless it is the piece the scan
  // expects.
  if (entry.lookup && entry.scan_at != cursor_) return;
  cursor_ = entry.scan_at + 1 == scan_length_ ? 0 : entry.scan_at + 1;
}

uint32_t SlotTable::distance(uint32_t piece) const {
  const uint32_t at = entries_[piece].scan_at;
  return at >= cursor_ ? at - cursor_ : at + scan_length_ - cursor_;
}

bool SlotTable::may_go(uint32_t piece) const {
  const PieceEntry& entry = entries_[piece];
  return entry.state == PieceState::kResident && entry.holds == 0 && !entry.fired && !entry.pinned;
}

uint32_t SlotTable::victim(Class& c) {
  if (c.policy) return c.policy->victim([this](uint32_t piece) { return may_go(piece); });
  uint32_t farthest = kNone;
  for (uint32_t s = c.first; s < c.first + c.count; ++s) {
    const uint32_t piece = slots_[s].piece;
    if (piece == kNone || !may_go(piece)) continue;
    if (farthest == kNone || distance(piece) > distance(farthest)) farthest = piece;
  }
  return farthest;
}

}  // namespace millrace::stream
