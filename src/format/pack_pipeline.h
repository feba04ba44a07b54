// Chunks made ahead: a few threads read source bytes and pack them, the caller takes them in order.
#pragma once

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "format/pack_io.h"
#include "format/pack_plan.h"

namespace millrace::format {

class PackPipeline {
 public:
  struct Made {
    const PackChunk* chunk = nullptr;
    std::span<const std::byte> bytes;  // chunk->bytes of them
    std::array<Extent, 3> extents;     // what was read
    std::array<std::span<const std::byte>, 3> source;
  };

  // `files` are those of the source. Chunks before `first` are left out. All must outlive this.
  PackPipeline(const ModelSource& source, std::span<const InFile> files,
               std::span<const PackChunk> chunks, uint64_t first);
  ~PackPipeline();
  PackPipeline(const PackPipeline&) = delete;
  PackPipeline& operator=(const PackPipeline&) = delete;

  bool done() const { return taken_ == chunks_.size(); }
  // The next chunk; its memory is reused after the following call.
  Expected<Made> next();

 private:
  struct Slot {
    AlignedBuffer packed;
    std::array<AlignedBuffer, 3> source;
    Made made;
    Status status;
    bool ready = false;
  };

  void work();
  Status make(const PackChunk& chunk, Slot& slot);
  Status prove(const PackChunk& chunk, const Slot& slot);
  Slot& slot_of(uint64_t chunk) { return slots_[chunk % slots_.size()]; }

  const ModelSource& source_;
  const std::span<const InFile> files_;
  const std::span<const PackChunk> chunks_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  uint64_t claimed_;   // next chunk that a thread starts on
  uint64_t taken_;     // next chunk that the caller gets
  uint64_t reusable_;  // chunks before it are no longer looked at
  bool stop_ = false;
  std::set<std::string> proven_;  // kinds of view whose way back was checked
  std::vector<std::thread> threads_;
};

}  // namespace millrace::format
