// The ledger's arithmetic. What the machine and its cgroups allow is in memory_limit.cpp.
#include "stream/ledger.h"

#include <cassert>

namespace millrace::stream {
namespace {

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::string_view name(Use use) {
  static constexpr std::string_view kNames[kUses] = {"process",     "weights", "kv",
                                                     "activations", "io",      "drafter"};
  return kNames[static_cast<size_t>(use)];
}

Status Ledger::reserve(Use use, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  uint64_t held = 0;
  for (uint64_t h : held_) held += h;
  if (bytes <= ceiling_ - held) {
    held_[static_cast<size_t>(use)] += bytes;
    return {};
  }
  std::string holders;
  for (int i = 0; i < kUses; ++i) {
    if (held_[i] == 0) continue;
    holders += fmt::format("{}{} {:.1f} MiB", holders.empty() ? "" : ", ",
                           name(static_cast<Use>(i)), mib(held_[i]));
  }
  return fail(
      Code::kNoMemory,
      "memory ceiling of {:.1f} MiB: {} needs {:.1f} MiB, {:.1f} MiB more than is free (held: {})",
      mib(ceiling_), name(use), mib(bytes), mib(bytes - (ceiling_ - held)),
      holders.empty() ? "nothing" : holders);
}

void Ledger::release(Use use, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  assert(bytes <= held_[static_cast<size_t>(use)]);
  held_[static_cast<size_t>(use)] -= bytes;
}

uint64_t Ledger::held(Use use) const {
  std::lock_guard lock(mutex_);
  return held_[static_cast<size_t>(use)];
}

uint64_t Ledger::free() const {
  std::lock_guard lock(mutex_);
  uint64_t free = ceiling_;
  for (uint64_t h : held_) free -= h;
  return free;
}

}  // namespace millrace::stream
