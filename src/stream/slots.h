// Which piece lies in which slot, and which one to give up for another. Used by the consumer's
// thread alone.
//
// Scanned pieces give up the one whose next use is farthest: the scan is known, so this is Belady's
// choice. Of experts and an untied embedding a policy chooses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stream/policy.h"
#include "stream/residency.h"

namespace millrace::stream {

enum class PieceState : uint8_t { kAbsent, kReading, kResident };

struct PieceEntry {
  uint32_t slot = kNone;     // while reading or resident; pinned pieces keep theirs
  uint32_t scan_at = kNone;  // position in the scan
  uint32_t holds = 0;        // handed out and not yet released
  PieceState state = PieceState::kAbsent;
  bool pinned = false;
  bool fired = false;   // fired and not yet handed out: never given up
  bool lookup = false;  // a tied embedding: looked up at any time, scanned as the head
};

class SlotTable {
 public:
  SlotTable(const format::PieceTable& table, const ResidencyPlan& plan, std::byte* arena,
            PolicyKind policy = kDefaultPolicy);

  PieceEntry& operator[](uint32_t piece) { return entries_[piece]; }
  const PieceEntry& operator[](uint32_t piece) const { return entries_[piece]; }
  // The piece's bytes in its slot.
  std::span<std::byte> bytes(uint32_t piece) const;

  // Finds room for an absent piece: its own slot, a free one, or the one of a piece given up for
  // it. A piece needed no later than `piece` is kept when `ahead` (reading ahead must do no harm).
  // False: no room.
  bool place(uint32_t piece, bool ahead);
  void arrived(uint32_t piece);  // reading -> resident
  void drop(uint32_t piece);     // reading or resident -> absent; the slot is free again
  void touch(uint32_t piece);    // used just now

  // Scan clock: the position expected next.
  uint32_t cursor() const { return cursor_; }
  void used(uint32_t piece);  // moves the cursor behind a scanned piece
  // Steps until a scanned piece's next use.
  uint32_t distance(uint32_t piece) const;

  uint32_t slots_of_class(uint32_t c) const { return classes_[c].count; }
  // Calls visit(piece) for the class's pieces that are being read into shared slots, until it
  // returns true.
  template <class Visit>
  bool any_reading(uint32_t c, Visit visit) const {
    const Class& slots = classes_[c];
    for (uint32_t s = slots.first; s < slots.first + slots.count; ++s) {
      const uint32_t piece = slots_[s].piece;
      if (piece != kNone && entries_[piece].state == PieceState::kReading && visit(piece))
        return true;
    }
    return false;
  }

 private:
  struct Class {
    uint32_t first = 0;  // shared slots: [first, first + count)
    uint32_t count = 0;
    bool scanned = false;
    std::vector<uint32_t> free;
    std::unique_ptr<Policy> policy;  // of random access classes
  };
  struct Slot {
    std::byte* data = nullptr;
    uint32_t piece = kNone;
  };

  uint32_t victim(Class& c);
  bool may_go(uint32_t piece) const;

  std::vector<uint32_t> class_of_;
  std::vector<uint64_t> piece_bytes_;
  std::vector<PieceEntry> entries_;
  std::vector<Slot> slots_;
  std::vector<Class> classes_;
  uint32_t scan_length_ = 0;
  uint32_t cursor_ = 0;
};

}  // namespace millrace::stream
