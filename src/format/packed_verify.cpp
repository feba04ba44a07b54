// verify: every byte of a packed folder against its hash.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "format/manifest.h"
#include "format/packed.h"

namespace millrace::format {
namespace {

struct Part {
  std::string what;  // for messages: "piece 'layers.0.mixer'"
  const InFile* file = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Hash128 hash;
};

// A few threads read parts in order; the error of the first wrong part is the one that is told.
class Checker {
 public:
  explicit Checker(std::vector<Part> parts) : parts_(std::move(parts)) {
    for (const Part& part : parts_) total_ += part.bytes;
  }

  Status run(const std::function<void(uint64_t, uint64_t, std::string_view)>& progress) {
    std::vector<std::thread> threads;
    const unsigned count = std::clamp(std::thread::hardware_concurrency(), 1u, 4u);
    running_ = count;
    for (unsigned i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
    {
      // Progress is told from the caller's thread alone.
      std::unique_lock lock(mutex_);
      uint64_t told = UINT64_MAX;
      while (running_ != 0 || told != done_) {
        changed_.wait(lock, [&] { return running_ == 0 || told != done_; });
        if (told == done_) break;
        told = done_;
        const std::string what = last_;
        lock.unlock();
        if (progress) progress(told, total_, what);
        lock.lock();
      }
    }
    for (std::thread& thread : threads) thread.join();
    if (wrong_ < parts_.size()) return tl::make_unexpected(std::move(error_));
    return {};
  }

  uint64_t total() const { return total_; }

 private:
  void work() {
    const AlignedBuffer block(kIoBlock);
    while (true) {
      const size_t i = next_.fetch_add(1);
      // Parts behind a wrong one need no look; those before it are under way already.
      if (i >= parts_.size() || i > wrong_.load()) break;
      const Part& part = parts_[i];
      Hasher hasher;
      Status status =
          hash_range(*part.file, part.offset, part.bytes, block.first(kIoBlock), &hasher);
      if (status && hasher.digest() != part.hash) {
        status = fail(Code::kCorrupt, "hash mismatch");
      }
      const std::lock_guard lock(mutex_);
      if (!status && i < wrong_.load()) {
        wrong_ = i;
        error_ = with_context(fmt::format("{}: {} at offset {} ({} bytes)", part.file->path(),
                                          part.what, part.offset, part.bytes),
                              std::move(status.error()))
                     .value();
      }
      done_ += part.bytes;
      last_ = part.what;
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_all();
  }

  const std::vector<Part> parts_;
  uint64_t total_ = 0;
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> wrong_ = SIZE_MAX;
  std::mutex mutex_;
  std::condition_variable changed_;
  Error error_;
  unsigned running_ = 0;
  uint64_t done_ = 0;
  std::string last_;
};

}  // namespace

Expected<VerifyResult> verify_packed(
    const std::string& path,
    const std::function<void(uint64_t, uint64_t, std::string_view)>& progress) {
  // Reads the headers of the source, too, and names of tensors: what is whole can also be opened.
  MILLRACE_ASSIGN(const PackedModel packed, open_packed(path));
  MILLRACE_ASSIGN(const Manifest manifest, open_manifest(packed.path));
  std::vector<InFile> files;
  files.reserve(1 + manifest.side_files.size() + packed.files.size());
  std::vector<Part> parts;
  const auto open = [&](const std::string& name, bool link = false) -> Expected<const InFile*> {
    MILLRACE_ASSIGN(InFile file, InFile::open(packed.path + "/" + name, link, true));
    files.push_back(std::move(file));
    return &files.back();
  };
  for (const SideFile& side : manifest.side_files) {
    MILLRACE_ASSIGN(const InFile* file, open(side.name));
    parts.push_back({"side file", file, 0, side.bytes, side.hash});
  }
  MILLRACE_ASSIGN(const InFile* bin, open(std::string(kSourceBinName)));
  for (const ManifestRange& range : manifest.ranges) {
    parts.push_back({fmt::format("bytes of '{}' from {}", manifest.files[range.range.file].name,
                                 range.range.offset),
                     bin, range.at, padded(range.range.bytes), range.hash});
  }
  std::vector<const InFile*> weights;
  for (uint32_t i = 0; i < packed.files.size(); ++i) {
    MILLRACE_ASSIGN(const InFile* file, open(weights_name(i), true));
    weights.push_back(file);
  }
  for (const Piece& piece : manifest.table.pieces) {
    parts.push_back({fmt::format("piece '{}'", piece.name),
                     weights[piece.file],
                     piece.offset,
                     piece.bytes,
                     {piece.hash[0], piece.hash[1]}});
  }
  Checker checker(std::move(parts));
  MILLRACE_TRY(checker.run(progress));
  return VerifyResult{manifest.table.pieces.size(), checker.total()};
}

}  // namespace millrace::format
