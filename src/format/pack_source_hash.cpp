// The hash of every whole source file, computed along with packing.
#include "format/pack_source_hash.h"

#include <algorithm>

namespace millrace::format {
namespace {

// A gap this long is read on the way (a norm between two matrices); a longer one waits for its turn.
constexpr uint64_t kMaxGap = uint64_t{1} << 20;

}  // namespace

SourceHasher::SourceHasher(std::span<const InFile> files)
    : files_(files), states_(files.size()), block_(kIoBlock) {}

Status SourceHasher::offer(const Extent& extent, std::span<const std::byte> bytes) {
  State& state = states_[extent.file];
  const uint64_t end = extent.offset + extent.bytes;
  if (end <= state.at) return {};
  if (extent.offset > state.at) {
    const uint64_t gap = extent.offset - state.at;
    if (gap > std::min(kMaxGap, extent.bytes)) return {};
    MILLRACE_TRY(hash_range(files_[extent.file], state.at, gap, block_.first(kIoBlock),
                            state.hasher.get()));
    state.at = extent.offset;
  }
  state.hasher->update(bytes.subspan(state.at - extent.offset));
  state.at = end;
  return {};
}

Expected<Hash128> SourceHasher::finish(uint32_t file,
                                       const std::function<bool(uint64_t bytes)>& step) {
  State& state = states_[file];
  while (state.at < files_[file].size()) {
    // The first read is cut at a block boundary, so that the others can pass the page cache.
    const uint64_t part =
        std::min(kIoBlock - state.at % kIoBlock, files_[file].size() - state.at);
    MILLRACE_TRY(hash_range(files_[file], state.at, part, block_.first(kIoBlock),
                            state.hasher.get()));
    state.at += part;
    if (!step(part)) return fail(Code::kCancelled, "cancelled");
  }
  return state.hasher->digest();
}

}  // namespace millrace::format
