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
  const uint64_t held = total();
  if (bytes <= ceiling_ - held) {
    held_[static_cast<size_t>(use)] += bytes;
    return {};
  }
  return fail(
      Code::kNoMemory,
      "memory ceiling of {:.1f} MiB: {} needs {:.1f} MiB, {:.1f} MiB more than is free (held: {})",
      mib(ceiling_), name(use), mib(bytes), mib(bytes - (ceiling_ - held)), holders());
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

uint64_t Ledger::held() const {
  std::lock_guard lock(mutex_);
  return total();
}

uint64_t Ledger::free() const {
  std::lock_guard lock(mutex_);
  return ceiling_ - total();
}

uint64_t Ledger::ceiling() const {
  std::lock_guard lock(mutex_);
  return ceiling_;
}

Status Ledger::set_ceiling(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (total() > bytes) {
    return fail(Code::kNoMemory,
                "a memory ceiling of {:.1f} MiB is below the {:.1f} MiB in use ({})", mib(bytes),
                mib(total()), holders());
  }
  ceiling_ = bytes;
  return {};
}

uint64_t Ledger::total() const {
  uint64_t total = 0;
  for (uint64_t h : held_) total += h;
  return total;
}

std::string Ledger::holders() const {
  std::string text;
  for (int i = 0; i < kUses; ++i) {
    if (held_[i] == 0) continue;
    text += fmt::format("{}{} {:.1f} MiB", text.empty() ? "" : ", ", name(static_cast<Use>(i)),
                        mib(held_[i]));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace millrace::stream
