// pack: a source becomes a packed folder.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "format/pack_journal.h"
#include "format/pack_pipeline.h"
#include "format/pack_plan.h"
#include "format/pack_source_hash.h"

namespace millrace::format {
namespace {

constexpr std::string_view kPartial = ".partial";
constexpr uint64_t kSpareDisk = uint64_t{16} << 20;

bool is_packed_name(std::string_view name) { return is_reserved_name(name) || is_side_name(name); }

class Packer {
 public:
  Packer(const PackJob& job, const PackTuning& tuning)
      : job_(job), tuning_(tuning), out_(trimmed_path(job.out)) {}

  Expected<PackResult> run() {
    MILLRACE_ASSIGN(plan_, make_pack_plan(job_, tuning_));
    MILLRACE_ASSIGN(side_names_, find_side_files(*job_.source));
    MILLRACE_ASSIGN(out_state_, check_out(out_, job_.overwrite, is_packed_name));
    for (const SourceFile& file : job_.source->files) {
      MILLRACE_ASSIGN(InFile in, InFile::open(file.path, true, false));
      if (in.size() != file.size) return changed(file);
      files_.push_back(std::move(in));
    }
    MILLRACE_ASSIGN(BuildFolder folder, BuildFolder::lock(out_, kPartial));
    folder_ = &folder;
    if (Status begun = begin(); !begun) {
      if (empty_) folder.discard();  // nothing in it is worth resuming
      return tl::make_unexpected(std::move(begun.error()));
    }
    if (Status made = make(); !made) {
      Error error = std::move(made.error());
      if (error.code == Code::kIo)
        error.message += fmt::format("; {} is kept, pack again to resume", folder.path());
      return tl::make_unexpected(std::move(error));
    }
    // Somebody may have made OUT meanwhile.
    MILLRACE_ASSIGN(out_state_, check_out(out_, job_.overwrite, is_packed_name));
    MILLRACE_TRY(folder.publish(out_, out_state_ == OutState::kReplace, is_packed_name));
    // In a whole folder the journal means nothing: being killed before this line does no harm.
    const std::string journal = out_ + "/" + std::string(kJournalName);
    if (std::remove(journal.c_str()) != 0 && errno != ENOENT) {
      return io_error(journal, "remove", errno);
    }
    return PackResult{plan_.manifest.table.pieces.size(), plan_.total, resumed_};
  }

 private:
  tl::unexpected<Error> changed(const SourceFile& file) const {
    return fail(Code::kInvalid, "{}: changed since it was opened; pack again", file.path);
  }

  void tell(uint64_t done, std::string_view what) const {
    if (job_.progress) job_.progress(done, plan_.total, what);
  }

  Status check_cancelled() const {
    if (!job_.cancelled || !job_.cancelled()) return {};
    return fail(Code::kCancelled, "cancelled; {} is kept, pack again to resume", folder_->path());
  }

  // Which source this is, without reading all of it: names, sizes, times of change, headers.
  Expected<Hash128> source_id() const {
    Hasher hasher;
    const AlignedBuffer block(kIoBlock);
    for (size_t i = 0; i < files_.size(); ++i) {
      const SourceFile& file = job_.source->files[i];
      hasher.field(file.name);
      hasher.field(file.size);
      hasher.field(static_cast<uint64_t>(files_[i].mtime_ns()));
      MILLRACE_TRY(hash_range(files_[i], 0, file.data_begin, block.first(kIoBlock), &hasher));
    }
    return hasher.digest();
  }

  Status make() {
    MILLRACE_TRY(write_items());
    MILLRACE_TRY(hash_sources());
    return write_rest();
  }

  // Resumes from the journal, or starts with an empty folder. Leaves the disk checked and reserved.
  Status begin() {
    MILLRACE_ASSIGN(const Hash128 source, source_id());
    MILLRACE_ASSIGN(const auto names, folder_->entries());
    const bool journaled = std::ranges::find(names, kJournalName) != names.end();
    const bool leftover = std::ranges::find(names, kManifestName) != names.end();
    for (const std::string& name : names) {
      // A finished pack that was exchanged away, or ours: anything else is not ours to remove.
      if (is_packed_name(name) && (journaled || leftover)) continue;
      return fail(Code::kInvalid, "{}: holds '{}' and is no unfinished pack; remove it",
                  folder_->path(), name);
    }
    if (journaled) {
      auto state = Journal::load(folder_->path());
      if (!state) {
        tell(0, "starting over: the journal of the unfinished pack is damaged");
      } else if (state->source != source) {
        tell(0, "starting over: the unfinished pack is of another source");
      } else if (state->table != plan_.table_id || state->items.size() > plan_.items.size()) {
        tell(0, "starting over: the unfinished pack has another piece table");
      } else {
        state_ = std::move(*state);
        resumed_ = true;
      }
    }
    if (!resumed_) {
      MILLRACE_TRY(folder_->clear());
      empty_ = true;
    }
    MILLRACE_TRY(check_disk());
    if (resumed_) {
      MILLRACE_ASSIGN(journal_, Journal::resume(folder_->path(), state_));
    } else {
      MILLRACE_ASSIGN(journal_, Journal::create(folder_->path(), source, plan_.table_id));
    }
    // All of them now: a disk that is too full shows before the work.
    for (uint32_t i = 0; i < plan_.out_bytes.size(); ++i) {
      MILLRACE_TRY(OutFile::open(path_of(i), plan_.out_bytes[i]));
    }
    return sync_folder(folder_->path());
  }

  Status check_disk() const {
    uint64_t need = plan_.total + kSpareDisk;
    for (const std::string& name : side_names_) {
      const std::string path = side_path(name);
      MILLRACE_ASSIGN(const InFile file, InFile::open(path, true, false));
      need += file.size();
    }
    MILLRACE_ASSIGN(const uint64_t available, free_disk(folder_->path()));
    MILLRACE_ASSIGN(const uint64_t held, held_disk(folder_->path()));
    if (need <= available + held) return {};
    return fail(Code::kIo, "{}: packing needs {} bytes of disk, {} are free: {} are missing", out_,
                need, available, need - available - held);
  }

  std::string path_of(uint32_t out) const { return folder_->path() + "/" + out_name(out); }

  std::string side_path(const std::string& name) const {
    const bool gguf = job_.source->kind == SourceKind::kGguf;
    return (gguf ? parent_folder(job_.source->path) : job_.source->path) + "/" + name;
  }

  Status write_items() {
    hashes_ = state_.items;
    journaled_ = hashes_.size();
    const auto from = std::ranges::lower_bound(plan_.chunks, static_cast<uint32_t>(journaled_), {},
                                               &PackChunk::item);
    PackPipeline pipeline(*job_.source, files_, plan_.chunks,
                          static_cast<uint64_t>(from - plan_.chunks.begin()));
    hasher_ = std::make_unique<SourceHasher>(files_);
    batch_start_ = std::chrono::steady_clock::now();
    uint64_t filled = 0;  // of the current item
    for (size_t i = 0; i < journaled_; ++i) done_ += plan_.items[i].bytes;
    while (!pipeline.done()) {
      MILLRACE_TRY(check_cancelled());
      MILLRACE_ASSIGN(const PackPipeline::Made made, pipeline.next());
      const PackItem& item = plan_.items[made.chunk->item];
      if (filled == 0 && made.chunk->offset == 0) MILLRACE_TRY(open_out(item));
      for (size_t i = 0; i < 3; ++i) {
        if (made.extents[i].bytes == 0) continue;
        MILLRACE_TRY(hasher_->offer(made.extents[i], made.source[i]));
      }
      MILLRACE_TRY(put_zeros(made.chunk->offset - filled));
      MILLRACE_TRY(writer_.append(made.bytes));
      item_hash_.update(made.bytes);
      filled = made.chunk->offset + made.chunk->bytes;
      tell(done_ + filled, plan_.item_name(made.chunk->item));
      if (!made.chunk->last) continue;
      MILLRACE_TRY(put_zeros(item.bytes - filled));
      filled = 0;
      MILLRACE_TRY(end_item(made.chunk->item));
    }
    return commit();
  }

  Status put_zeros(uint64_t bytes) {
    static constexpr std::byte kZeros[kPackAlign] = {};
    for (uint64_t left = bytes; left != 0;) {
      const uint64_t part = std::min<uint64_t>(left, sizeof kZeros);
      item_hash_.update(kZeros, part);
      left -= part;
    }
    return writer_.append_zeros(bytes);
  }

  Status open_out(const PackItem& item) {
    if (file_ && item.out == current_) return {};
    MILLRACE_TRY(commit());
    MILLRACE_ASSIGN(OutFile file, OutFile::open(path_of(item.out), plan_.out_bytes[item.out]));
    file_ = std::make_unique<OutFile>(std::move(file));
    current_ = item.out;
    writer_.attach(file_.get(), item.offset);
    return {};
  }

  Status end_item(uint32_t item) {
    hashes_.push_back(item_hash_.digest());
    item_hash_.reset();
    done_ += plan_.items[item].bytes;
    batch_bytes_ += plan_.items[item].bytes;
    tell(done_, plan_.item_name(item));
    if (tuning_.on_item) MILLRACE_TRY(tuning_.on_item(plan_.item_name(item)));
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - batch_start_;
    if (batch_bytes_ < tuning_.batch_bytes && since.count() < tuning_.batch_seconds) return {};
    return commit();
  }

  // First the data, then the line that says so.
  Status commit() {
    if (!file_) return {};
    MILLRACE_TRY(writer_.flush());
    MILLRACE_TRY(file_->sync());
    MILLRACE_TRY(journal_.add_items(journaled_, std::span(hashes_).subspan(journaled_)));
    journaled_ = hashes_.size();
    batch_bytes_ = 0;
    batch_start_ = std::chrono::steady_clock::now();
    return {};
  }

  Status hash_sources() {
    for (uint32_t i = 0; i < files_.size(); ++i) {
      Hash128& hash = plan_.manifest.files[i].hash;
      if (const auto known = state_.files.find(i); known != state_.files.end()) {
        hash = known->second;
        continue;
      }
      const std::string what = fmt::format("hashing {}", job_.source->files[i].name);
      tell(done_, what);
      auto result = hasher_->finish(i, [&](uint64_t) {
        tell(done_, what);
        return check_cancelled().has_value();
      });
      if (!result) {
        MILLRACE_TRY(check_cancelled());
        return tl::make_unexpected(std::move(result.error()));
      }
      hash = *result;
      MILLRACE_TRY(journal_.add_file(i, hash));
    }
    for (size_t i = 0; i < files_.size(); ++i) {
      const SourceFile& file = job_.source->files[i];
      MILLRACE_ASSIGN(const InFile now, InFile::open(file.path, true, false));
      if (now.size() != file.size || now.mtime_ns() != files_[i].mtime_ns()) return changed(file);
    }
    return {};
  }

  Status write_rest() {
    Manifest& manifest = plan_.manifest;
    const size_t ranges = manifest.ranges.size();
    for (size_t i = 0; i < hashes_.size(); ++i) {
      if (i < ranges) {
        manifest.ranges[i].hash = hashes_[i];
        continue;
      }
      manifest.table.pieces[i - ranges].hash[0] = hashes_[i].low;
      manifest.table.pieces[i - ranges].hash[1] = hashes_[i].high;
    }
    // An earlier attempt may have come this far.
    MILLRACE_ASSIGN(const auto names, folder_->entries());
    for (const std::string& name : names) {
      if (!is_side_name(name) && name != kManifestName) continue;
      const std::string path = folder_->path() + "/" + name;
      if (std::remove(path.c_str()) != 0) return io_error(path, "remove", errno);
    }
    for (const std::string& name : side_names_) {
      MILLRACE_ASSIGN(SideFile file,
                      copy_side_file(side_path(name), true, folder_->path() + "/" + name, name));
      manifest.side_files.push_back(std::move(file));
    }
    MILLRACE_ASSIGN(const std::string text, write_manifest(manifest, job_.source->config.get()));
    return write_small(folder_->path() + "/" + std::string(kManifestName), text);
  }

  const PackJob& job_;
  const PackTuning& tuning_;
  const std::string out_;
  PackPlan plan_;
  std::vector<std::string> side_names_;
  OutState out_state_ = OutState::kFree;
  std::vector<InFile> files_;
  BuildFolder* folder_ = nullptr;
  JournalState state_;
  Journal journal_;
  bool resumed_ = false;
  bool empty_ = false;  // what is in the folder is of this run and not worth keeping

  std::unique_ptr<SourceHasher> hasher_;
  std::unique_ptr<OutFile> file_;
  uint32_t current_ = 0;
  StreamWriter writer_;
  Hasher item_hash_;
  std::vector<Hash128> hashes_;
  size_t journaled_ = 0;
  uint64_t done_ = 0;
  uint64_t batch_bytes_ = 0;
  std::chrono::steady_clock::time_point batch_start_;
};

}  // namespace

Expected<PackResult> pack_model(const PackJob& job, const PackTuning& tuning) {
  return Packer(job, tuning).run();
}

Expected<PackResult> pack_model(const PackJob& job) { return pack_model(job, PackTuning{}); }

}  // namespace millrace::format
