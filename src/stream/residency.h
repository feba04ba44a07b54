// Residency: which pieces are pinned and how the arena is cut into slots. Pure arithmetic, no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/piece.h"

namespace millrace::stream {

// What one pass needs of the experts: at least this many slots must be held together.
struct Demand {
  uint32_t experts_per_token = 0;  // top-k; 0 for dense models
  bool tied_head = false;          // embedding pieces are scanned as the head too
};

// Slots of one size. Pieces of a class share them; pinned pieces have one each for good.
struct SlotClass {
  format::PieceKind kind = format::PieceKind::kMixer;
  uint64_t slot_bytes = 0;  // multiple of 4096
  uint32_t pieces = 0;
  uint32_t pinned = 0;  // pieces with a slot of their own
  uint32_t shared = 0;  // slots for the rest
};

struct ResidencyPlan {
  std::vector<SlotClass> classes;
  std::vector<uint32_t> class_of;  // by piece
  std::vector<uint8_t> pinned;     // by piece
  std::vector<uint32_t>
      scan;  // pieces read once in every pass, in order (all but experts and an untied embedding)
  uint32_t experts_per_token = 0;   // of the demand
  uint64_t arena_bytes = 0;         // <= budget
  uint64_t smallest_budget = 0;     // least arena that runs
  uint64_t comfortable_budget = 0;  // all but experts pinned, and 40 % of the experts
  uint64_t full_budget = 0;         // everything resident

  uint64_t slots_bytes(size_t c) const {
    return (uint64_t{classes[c].pinned} + classes[c].shared) * classes[c].slot_bytes;
  }
  // The piece that stands for most of the bytes that are read again and again; UINT32_MAX: none are.
  uint32_t streamed_piece() const;
};

// Order of spending: the working set first (one slot of each scanned class, top-k expert slots), a second slot to read
// ahead for each scanned class, then scanned classes pinned, smallest class first (the one that does not fit whole is
// pinned in part, spread evenly over the scan), then experts and an untied embedding get all the rest in equal shares
// of their pieces. Fails with kNoMemory and the smallest budget that works.
Expected<ResidencyPlan> plan_residency(const format::PieceTable& table, uint64_t budget,
                                       const Demand& demand);

// Of each class the plan that gives it fewer slots; both must be of one table and demand. It runs, as
// they do.
ResidencyPlan lesser_plan(const ResidencyPlan& now, const ResidencyPlan& wanted);

}  // namespace millrace::stream
