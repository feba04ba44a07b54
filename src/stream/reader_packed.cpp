#include "stream/reader_packed.h"

#include <xxhash.h>

#include <atomic>
#include <vector>

namespace millrace::stream {
namespace {

class PackedReader : public PieceReader {
 public:
  PackedReader(std::vector<io::File> files, const format::PieceTable& table,
               const PackedReaderOptions& options)
      : files_(std::move(files)),
        table_(table),
        options_(options),
        verified_(table.pieces.size()) {}

  uint64_t scratch_bytes() const override { return 0; }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte>) override {
    uint64_t bytes = 0;
    Status first = read_once(piece, slot, &bytes);
    if (first) return bytes;
    Status second = read_once(piece, slot, &bytes);
    if (second) return bytes;
    return tl::make_unexpected(std::move(second.error()));
  }

  std::string mode() const override { return std::string(io::name(options_.mode)); }

 private:
  // Adds what it read to `bytes`.
  Status read_once(uint32_t index, std::span<std::byte> slot, uint64_t* bytes) {
    const format::Piece& piece = table_.pieces[index];
    const io::File& file = files_[piece.file];
    const std::span<std::byte> to = slot.first(piece.bytes);
    auto got = file.read(piece.offset, to);
    if (!got) return with_context(fmt::format("piece '{}'", piece.name), std::move(got.error()));
    *bytes += *got;
    // A flag may be seen late by another thread; it then checks once more.
    if (!options_.verify_always && verified_[index].load(std::memory_order_relaxed)) return {};
    const XXH128_hash_t hash = XXH3_128bits(to.data(), to.size());
    if (hash.low64 != piece.hash[0] || hash.high64 != piece.hash[1]) {
      return fail(Code::kCorrupt, "{}: piece '{}' at offset {} ({} bytes) does not match its hash",
                  file.path(), piece.name, piece.offset, piece.bytes);
    }
    verified_[index].store(true, std::memory_order_relaxed);
    return {};
  }

  std::vector<io::File> files_;
  const format::PieceTable& table_;
  PackedReaderOptions options_;
  std::vector<std::atomic<bool>> verified_;
};

}  // namespace

Expected<std::unique_ptr<PieceReader>> make_packed_reader(const format::PackedModel& packed,
                                                          const format::PieceTable& table,
                                                          const PackedReaderOptions& options) {
  std::vector<io::File> files;
  for (const std::string& path : packed.files) {
    MILLRACE_ASSIGN(io::File file, io::File::open(path, options.mode, options.hook));
    files.push_back(std::move(file));
  }
  for (const format::Piece& piece : table.pieces) {
    if (piece.file >= files.size() || piece.offset % io::kAlign != 0 ||
        piece.bytes % io::kAlign != 0 || piece.offset > files[piece.file].size() ||
        piece.bytes > files[piece.file].size() - piece.offset) {
      return fail(Code::kCorrupt, "{}: piece '{}' lies outside the packed files", packed.path,
                  piece.name);
    }
  }
  return std::make_unique<PackedReader>(std::move(files), table, options);
}

}  // namespace millrace::stream
