// Which piece lies in which slot, and which one to give up for another. Used by the consumer's
// thread alone.
//
// Scanned pieces give up the one whose next use is farthest: the scan is known, so this is Belady's
// choice. Of experts and an untied embedding a policy chooses.
//
// Slots of a class are the front of its region of the arena, so resize() moves no more than it must
// and what is given up is one range (slots_resize.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stream/arena.h"
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
  uint32_t rows = 1;    // of the pass in which it fired last, that it was used by
  bool lookup = false;  // a tied embedding: looked up at any time, scanned as the head
};

class SlotTable {
 public:
  // Bytes of each class's region when everything is resident.
  static std::vector<uint64_t> regions(const ResidencyPlan& plan);

  // Without any slot until resize(). `arena` has those regions and must outlive the table.
  SlotTable(const format::PieceTable& table, const ResidencyPlan& plan, Arena& arena,
            PolicyKind policy = kDefaultPolicy);

  // Gives every class the slots and the pinned pieces of another plan for the same table. Nothing
  // may be read or handed out. What has to go is chosen as at any other time; what stays and lies
  // behind the new end is copied, `most_moved` bytes in all, the rest of it goes. On error (of the
  // arena, when it grows) no class has grown, and those that the plan makes smaller are as it says.
  Status resize(const ResidencyPlan& plan, uint64_t most_moved);

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
  // A pass of so many rows over a layer begins, in which these pieces fire (policies).
  void began(std::span<const uint32_t> pieces, uint32_t rows);

  // Scan clock: the position expected next.
  uint32_t cursor() const { return cursor_; }
  void used(uint32_t piece);  // moves the cursor behind a scanned piece
  // Steps until a scanned piece's next use.
  uint32_t distance(uint32_t piece) const;

  // Calls visit(piece) for the class's pieces that are being read into shared slots, until it
  // returns true.
  template <class Visit>
  bool any_reading(uint32_t c, Visit visit) const {
    const Class& slots = classes_[c];
    for (uint32_t s = slots.first; s < slots.first + slots.count; ++s) {
      const uint32_t piece = slots_[s].piece;
      if (piece == kNone || entries_[piece].pinned) continue;
      if (entries_[piece].state == PieceState::kReading && visit(piece)) return true;
    }
    return false;
  }

 private:
  struct Class {
    uint32_t first = 0;  // slots: [first, first + count), those of pinned pieces among them
    uint32_t count = 0;
    uint64_t slot_bytes = 0;
    std::vector<uint32_t> pieces;
    std::vector<uint32_t> free;
    // Of random access classes. It knows the pinned pieces, too: a smaller budget may unpin them.
    std::unique_ptr<Policy> policy;
    uint64_t stamp = 0;  // of the last pass over a layer that the policy was told of
  };
  struct Slot {
    std::byte* data = nullptr;
    uint32_t piece = kNone;
  };

  uint32_t victim(Class& c);
  bool may_go(uint32_t piece) const;
  void fit(Class& c, const SlotClass& to, const ResidencyPlan& plan, uint64_t* most_moved);
  std::vector<uint32_t> order(const Class& c) const;
  void vacate(uint32_t piece);

  Arena& arena_;
  std::vector<uint32_t> class_of_;
  std::vector<uint64_t> piece_bytes_;
  std::vector<uint32_t> layer_of_;
  std::vector<PieceEntry> entries_;
  std::vector<Slot> slots_;
  std::vector<Class> classes_;
  uint32_t scan_length_ = 0;
  uint32_t cursor_ = 0;
  uint64_t stamp_ = 0;
};

}  // namespace millrace::stream
