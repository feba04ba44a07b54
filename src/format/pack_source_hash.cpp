// The hash of every whole source file, computed along with packing.
#include "format/pack_source_hash.h"

#include <algorithm>

namespace millrace::format {
namespace {

// A gap this long is read on the way (a norm between two matrices); a longer one waits for its
// turn.
constexpr uint64_t kMaxGap = uint64_t{1} << 20;
// The most that waits in the page cache: the experts of a large layer. More would push out others'.
constexpr uint64_t kMaxKept = uint64_t{1} << 30;
// Interleaved matrices are read twice in a row: dropping stays this far behind.
constexpr uint64_t kLag = uint64_t{64} << 20;

}  // namespace

SourceHasher::SourceHasher(std::span<const InFile> files)
    : files_(files), states_(files.size()), block_(kIoBlock) {}

Status SourceHasher::read_to(uint32_t file, uint64_t end) {
  State& state = states_[file];
  while (state.at < end) {
    const auto block = block_.first(std::min(kIoBlock, end - state.at));
    MILLRACE_TRY(files_[file].read(state.at, block));
    state.hasher->update(block);
    state.at += block.size();
  }
  return {};
}

void SourceHasher::keep(uint32_t file, uint64_t begin, uint64_t end) {
  if (kept_ + (end - begin) > kMaxKept) {
    files_[file].drop(begin, end - begin);
    return;
  }
  // Views of one tensor may come twice; the longer one counts.
  uint64_t& known = states_[file].early[begin];
  if (end <= known) return;
  kept_ += end - std::max(known, begin);
  known = end;
}

void SourceHasher::drop_behind(uint32_t file) {
  State& state = states_[file];
  if (state.at < state.dropped + 2 * kLag) return;
  files_[file].drop(state.dropped, state.at - kLag - state.dropped);
  state.dropped = state.at - kLag;
}

Status SourceHasher::offer(const Extent& extent, std::span<const std::byte> bytes) {
  State& state = states_[extent.file];
  const uint64_t end = extent.offset + extent.bytes;
  if (end <= state.at) return {};
  if (extent.offset > state.at) {
    if (extent.offset - state.at > std::min(kMaxGap, extent.bytes)) {
      keep(extent.file, extent.offset, end);
      return {};
    }
    MILLRACE_TRY(read_to(extent.file, extent.offset));
  }
  state.hasher->update(bytes.subspan(state.at - extent.offset));
  state.at = end;
  // What came early and follows now.
  while (!state.early.empty() && state.early.begin()->first <= state.at) {
    const auto [begin, early_end] = *state.early.begin();
    state.early.erase(state.early.begin());
    kept_ -= early_end - begin;
    MILLRACE_TRY(read_to(extent.file, early_end));
    drop_behind(extent.file);
  }
  drop_behind(extent.file);
  return {};
}

Expected<Hash128> SourceHasher::finish(uint32_t file,
                                       const std::function<bool(uint64_t bytes)>& step) {
  State& state = states_[file];
  const uint64_t size = files_[file].size();
  while (state.at < size) {
    const uint64_t part = std::min(kIoBlock, size - state.at);
    MILLRACE_TRY(read_to(file, state.at + part));
    drop_behind(file);
    if (!step(part)) return fail(Code::kCancelled, "cancelled");
  }
  files_[file].drop(state.dropped, size - state.dropped);
  return state.hasher->digest();
}

}  // namespace millrace::format
