#include "stream/reader_packed.h"

#include <xxhash.h>

#include <atomic>
#include <vector>

#include "format/pack_folder.h"
#include "format/pack_io.h"

namespace millrace::stream {
namespace {

constexpr uint64_t kMostManifest = uint64_t{1} << 30;

class PackedReader : public PieceReader, public WholePieces {
 public:
  PackedReader(std::unique_ptr<Copies> copies, const format::PieceTable& table,
               const PackedReaderOptions& options)
      : copies_(std::move(copies)),
        table_(table),
        options_(options),
        verified_(table.pieces.size() * copies_->copies()) {}

  uint64_t scratch_bytes() const override { return 0; }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> scratch) override {
    return read_step(piece, 0, slot, scratch, [] {});
  }
  Expected<uint64_t> read_step(uint32_t piece, uint32_t, std::span<std::byte> slot,
                               std::span<std::byte>, const Landed& there) override {
    for (unsigned left = copies_->tries();; --left) {
      Status status = read_once(piece, slot, there);
      if (status) return table_.pieces[piece].bytes;
      if (left <= 1) return tl::make_unexpected(std::move(status.error()));
    }
  }

  uint64_t largest_read(uint32_t piece) const override { return table_.pieces[piece].bytes; }
  void watch(ReadWatch* watch) override { copies_->watch(watch); }
  std::string mode() const override { return std::string(io::name(options_.mode)); }
  WholePieces* whole() override { return this; }
  uint32_t devices() const override { return copies_->devices(); }
  std::vector<std::string> buffered_files() const override { return copies_->buffered(); }
  std::vector<std::string> notes() override { return copies_->notes(); }
  Copies& copies() override { return *copies_; }

  Expected<Place> begin(uint32_t index) override {
    const format::Piece& piece = table_.pieces[index];
    auto lease = copies_->begin(piece.file, index, piece.bytes, piece.offset + piece.bytes);
    if (!lease) return named(index, lease.error());
    return Place{std::move(*lease), piece.offset, piece.bytes};
  }

  Status landed(uint32_t index, const Place& place, Status read) override {
    if (!read) read = named(index, std::move(read.error()));
    copies_->end(place.lease, read ? nullptr : &read.error());
    return read;
  }
  Status check(uint32_t index, const Place& place, std::span<const std::byte> slot) override {
    Status status = check_hash(index, place.lease, slot);
    if (!status) copies_->reject(place.lease, status.error());
    return status;
  }

 private:
  tl::unexpected<Error> named(uint32_t index, Error error) const {
    return with_context(fmt::format("piece '{}'", table_.pieces[index].name), std::move(error));
  }

  Status read_once(uint32_t index, std::span<std::byte> slot, const Landed& there) {
    MILLRACE_ASSIGN(const Place place, begin(index));
    auto got = place.lease.file->read(place.offset, slot.first(place.bytes));
    Status status;
    if (!got) status = tl::make_unexpected(std::move(got.error()));
    MILLRACE_TRY(landed(index, place, std::move(status)));
    there();
    return check(index, place, slot);
  }

  // At the first read of each copy, and at every read of a file that had to be opened again: it may be
  // another one. A flag may be seen late by another thread; it then checks once more.
  Status check_hash(uint32_t index, const Copies::Lease& lease, std::span<const std::byte> slot) {
    const io::File& file = *lease.file;
    const format::Piece& piece = table_.pieces[index];
    auto& verified = verified_[uint64_t{lease.copy} * table_.pieces.size() + index];
    const bool opened_once = lease.place >= 0;
    if (!options_.verify_always && opened_once && verified.load(std::memory_order_relaxed))
      return {};
    const XXH128_hash_t hash = XXH3_128bits(slot.data(), piece.bytes);
    if (hash.low64 != piece.hash[0] || hash.high64 != piece.hash[1]) {
      return fail(Code::kCorrupt, "{}: piece '{}' at offset {} ({} bytes) does not match its hash",
                  file.path(), piece.name, piece.offset, piece.bytes);
    }
    verified.store(true, std::memory_order_relaxed);
    return {};
  }

  std::unique_ptr<Copies> copies_;
  const format::PieceTable& table_;
  PackedReaderOptions options_;
  std::vector<std::atomic<bool>> verified_;  // [copies, pieces]
};

// The weights files of the model and of each mirror. A mirror must be a copy of the whole folder:
// its manifest says so byte by byte.
Expected<std::vector<std::vector<std::string>>> copies_of(const format::PackedModel& packed,
                                                          const std::vector<std::string>& mirrors) {
  std::vector<std::vector<std::string>> copies = {packed.files};
  for (const std::string& folder : mirrors) {
    MILLRACE_ASSIGN(const std::string ours,
                    format::read_small(fmt::format("{}/{}", packed.path, format::kManifestName),
                                       kMostManifest));
    auto theirs =
        format::read_small(fmt::format("{}/{}", folder, format::kManifestName), kMostManifest);
    if (!theirs) {
      return with_context(
          fmt::format("mirror '{}' is not a copy of the packed folder {}", folder, packed.path),
          std::move(theirs.error()));
    }
    if (ours != *theirs) {
      return fail(Code::kInvalid, "{}/{}: differs from that of {}: it is no mirror of it", folder,
                  format::kManifestName, packed.path);
    }
    std::vector<std::string> files;
    for (const std::string& path : packed.files) {
      files.push_back(folder + path.substr(path.rfind('/')));
    }
    copies.push_back(std::move(files));
  }
  return copies;
}

}  // namespace

Expected<std::unique_ptr<PieceReader>> make_packed_reader(const format::PackedModel& packed,
                                                          const format::PieceTable& table,
                                                          const PackedReaderOptions& options) {
  MILLRACE_ASSIGN(auto paths, copies_of(packed, options.mirrors));
  MILLRACE_ASSIGN(auto copies, Copies::open(paths, options.mode, options.hook));
  for (const format::Piece& piece : table.pieces) {
    if (piece.file >= copies->files() || piece.offset % io::kAlign != 0 ||
        piece.bytes % io::kAlign != 0 || piece.offset > copies->file(piece.file).size() ||
        piece.bytes > copies->file(piece.file).size() - piece.offset) {
      return fail(Code::kCorrupt, "{}: piece '{}' lies outside the packed files", packed.path,
                  piece.name);
    }
  }
  return std::make_unique<PackedReader>(std::move(copies), table, options);
}

}  // namespace millrace::stream
