// unpack: the source files again, byte for byte, proven by the hashes taken when they were packed.
#include <algorithm>
#include <memory>

#include "format/manifest.h"
#include "format/pack_coverage.h"
#include "format/pack_plan.h"
#include "format/packed.h"

namespace millrace::format {
namespace {

constexpr std::string_view kPartial = ".unpack-partial";
constexpr uint64_t kChunk = uint64_t{4} << 20;

class Unpacker {
 public:
  Unpacker(const PackedModel& packed, const PieceTable& table, const PackJob& job)
      : packed_(packed),
        table_(table),
        job_(job),
        out_(trimmed_path(job.out)),
        written_(packed.source) {}

  Expected<PackResult> run() {
    MILLRACE_ASSIGN(manifest_, open_manifest(packed_.path));
    if (manifest_.files.size() != packed_.source.files.size()) {
      return fail(Code::kInternal, "{}: changed since it was opened", packed_.path);
    }
    const auto is_ours = [this](std::string_view name) { return is_output(name); };
    MILLRACE_TRY(check_out(out_, job_.overwrite, is_ours));
    MILLRACE_ASSIGN(BuildFolder folder, BuildFolder::lock(out_, kPartial));
    path_ = folder.path();
    MILLRACE_ASSIGN(const auto names, folder.entries());
    for (const std::string& name : names) {
      if (is_output(name)) continue;
      return fail(Code::kInvalid, "{}: holds '{}', which unpack did not write; remove it", path_,
                  name);
    }
    auto result = write(folder);
    if (!result) folder.discard();  // there is no resuming, so nothing is left behind
    return result;
  }

 private:
  Expected<PackResult> write(BuildFolder& folder) {
    MILLRACE_TRY(folder.clear());
    MILLRACE_TRY(create_files());
    MILLRACE_TRY(write_ranges());
    for (const Piece& piece : table_.pieces) MILLRACE_TRY(write_piece(piece));
    MILLRACE_TRY(check_hashes());
    for (const SideFile& side : manifest_.side_files) {
      MILLRACE_ASSIGN(const SideFile copy, copy_side_file(packed_.path + "/" + side.name, false,
                                                          path_ + "/" + side.name, side.name));
      if (copy.hash != side.hash) {
        return fail(Code::kCorrupt, "{}/{}: hash mismatch", packed_.path, side.name);
      }
    }
    const auto is_ours = [this](std::string_view name) { return is_output(name); };
    MILLRACE_ASSIGN(const OutState state, check_out(out_, job_.overwrite, is_ours));
    MILLRACE_TRY(folder.publish(out_, state == OutState::kReplace, is_ours));
    return PackResult{table_.pieces.size(), total_, false};
  }

  bool is_output(std::string_view name) const {
    return manifest_.side_file(name) != nullptr ||
           std::ranges::any_of(manifest_.files,
                               [&](const auto& file) { return file.name == name; });
  }

  Status step(uint64_t bytes, std::string_view what) {
    done_ += bytes;
    if (job_.progress) job_.progress(std::min(done_, total_), total_, what);
    if (!job_.cancelled || !job_.cancelled()) return {};
    return fail(Code::kCancelled, "cancelled");
  }

  Status create_files() {
    uint64_t need = 0;
    for (const ManifestFile& file : manifest_.files) need += file.bytes;
    for (const SideFile& file : manifest_.side_files) need += file.bytes;
    MILLRACE_ASSIGN(const uint64_t available, free_disk(path_));
    if (need > available) {
      return fail(Code::kIo, "{}: unpacking needs {} bytes of disk, {} are free", out_, need,
                  available);
    }
    for (const ManifestFile& file : manifest_.files) {
      MILLRACE_ASSIGN(OutFile out, OutFile::open(path_ + "/" + file.name, file.bytes));
      outputs_.push_back(std::move(out));
    }
    for (const std::string& file : packed_.files) {
      MILLRACE_ASSIGN(InFile in, InFile::open(file, true, true));
      weights_.push_back(std::move(in));
    }
    total_ = manifest_.source_bin_bytes;
    for (const Piece& piece : table_.pieces) total_ += piece.bytes;
    // Which tensors the pieces carry whole: the rest comes from source.bin.
    Coverage coverage(packed_.source);
    for (const Piece& piece : table_.pieces) {
      for (const PieceTensor& tensor : piece.tensors) {
        MILLRACE_TRY(coverage.add(tensor.view));
      }
    }
    for (uint32_t i = 0; i < packed_.source.tensors.size(); ++i) {
      carried_.push_back(coverage.carried(i));
    }
    return {};
  }

  Status write_ranges() {
    MILLRACE_ASSIGN(const InFile bin,
                    InFile::open(packed_.path + "/" + std::string(kSourceBinName), false, true));
    for (const ManifestRange& kept : manifest_.ranges) {
      const SourceRange& range = kept.range;
      Hasher hasher;
      for (uint64_t at = 0; at < padded(range.bytes);) {
        const auto block = block_.first(std::min(kIoBlock, padded(range.bytes) - at));
        MILLRACE_TRY(bin.read(kept.at + at, block));
        hasher.update(block);
        MILLRACE_TRY(outputs_[range.file].write(
            range.offset + at, block.first(std::min<uint64_t>(block.size(), range.bytes - at))));
        at += block.size();
      }
      if (hasher.digest() != kept.hash) {
        return fail(Code::kCorrupt, "{}: bytes of '{}' at offset {}: hash mismatch", bin.path(),
                    manifest_.files[range.file].name, kept.at);
      }
      MILLRACE_TRY(step(padded(range.bytes), manifest_.files[range.file].name));
    }
    return {};
  }

  // Reads [from, to) of the piece into `into` and hashes it.
  Status read_piece(const Piece& piece, uint64_t from, std::span<std::byte> into) {
    const InFile& file = weights_[piece.file];
    Status status = file.read(piece.offset + from, into);
    if (!status) return with_context("piece " + piece.name, std::move(status.error()));
    piece_hash_.update(into);
    file.drop(piece.offset + from, into.size());
    return {};
  }

  Status skip(const Piece& piece, uint64_t from, uint64_t to) {
    while (from < to) {
      const auto block = block_.first(std::min(kIoBlock, to - from));
      MILLRACE_TRY(read_piece(piece, from, block));
      from += block.size();
    }
    return {};
  }

  Status write_piece(const Piece& piece) {
    piece_hash_.reset();
    std::vector<const PieceTensor*> sorted;
    for (const PieceTensor& tensor : piece.tensors) sorted.push_back(&tensor);
    std::ranges::sort(sorted, {}, &PieceTensor::offset);
    uint64_t at = 0;
    for (const PieceTensor* tensor : sorted) {
      MILLRACE_TRY(skip(piece, at, tensor->offset));
      at = tensor->offset;
      for (const WeightView& view : cut_view(tensor->view, kChunk)) {
        const uint64_t bytes = view_bytes(view);
        packed_bytes_.grow(bytes);
        MILLRACE_TRY(read_piece(piece, at, packed_bytes_.first(bytes)));
        MILLRACE_TRY(write_view(view, packed_bytes_.first(bytes)));
        at += bytes;
      }
    }
    MILLRACE_TRY(skip(piece, at, piece.bytes));
    const Hash128 hash = piece_hash_.digest();
    if (hash != Hash128{piece.hash[0], piece.hash[1]}) {
      return fail(Code::kCorrupt, "{}: piece '{}' at offset {}: hash mismatch",
                  weights_[piece.file].path(), piece.name, piece.offset);
    }
    return step(piece.bytes, piece.name);
  }

  Status write_view(const WeightView& view, std::span<const std::byte> from) {
    // What another piece brought already (tied embeddings) need not be written again.
    MILLRACE_ASSIGN(const bool fresh, written_.add(view));
    if (!fresh) return {};
    MILLRACE_ASSIGN(const auto extents, view_extents(packed_.source, view));
    const bool gaps = view.row_step != 1 || view.transposed;
    std::array<std::span<std::byte>, 3> to;
    for (size_t i = 0; i < 3; ++i) {
      if (extents[i].bytes == 0) continue;
      source_bytes_[i].grow(extents[i].bytes);
      to[i] = source_bytes_[i].first(extents[i].bytes);
      // The view fills some of these bytes only: the others may be there already.
      if (gaps) MILLRACE_TRY(outputs_[extents[i].file].read(extents[i].offset, to[i]));
    }
    unpack_view(packed_.source, view, from, to);
    const auto tensors = tensors_of(view);
    for (size_t i = 0; i < 3; ++i) {
      if (extents[i].bytes == 0 || !carried_[tensors[i]]) continue;
      MILLRACE_TRY(outputs_[extents[i].file].write(extents[i].offset, to[i]));
    }
    return {};
  }

  // From the disk, after it is there: the proof that nothing was lost.
  Status check_hashes() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      MILLRACE_TRY(outputs_[i].sync());
      const ManifestFile& file = manifest_.files[i];
      MILLRACE_ASSIGN(const Hash128 hash, hash_file(outputs_[i].path(), false));
      if (hash != file.hash) {
        return fail(Code::kCorrupt, "{}: '{}' does not come back as it was (hash {}, was {})",
                    packed_.path, file.name, to_hex(hash), to_hex(file.hash));
      }
      MILLRACE_TRY(step(0, "checked " + file.name));
    }
    return {};
  }

  const PackedModel& packed_;
  const PieceTable& table_;
  const PackJob& job_;
  const std::string out_;
  Coverage written_;
  std::string path_;
  Manifest manifest_;
  std::vector<OutFile> outputs_;
  std::vector<InFile> weights_;
  std::vector<bool> carried_;
  Hasher piece_hash_;
  const AlignedBuffer block_{kIoBlock};
  AlignedBuffer packed_bytes_;
  std::array<AlignedBuffer, 3> source_bytes_;
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

Expected<PackResult> unpack_model(const PackedModel& packed, const PieceTable& table,
                                  const PackJob& job) {
  return Unpacker(packed, table, job).run();
}

}  // namespace millrace::format
