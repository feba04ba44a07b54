#include "stream/reader_in_place.h"

#include <algorithm>
#include <vector>

#include "format/piece_fill.h"

namespace millrace::stream {
namespace {

// Source bytes of one fill, counted. Every read is tried twice.
class FileBytes : public format::SourceBytes {
 public:
  explicit FileBytes(const std::vector<io::File>& files) : files_(files) {}

  Expected<const std::byte*> read(uint32_t file, uint64_t offset, uint64_t bytes,
                                  std::span<std::byte> buffer) override {
    const io::File& from = files_[file];
    const uint64_t front = from.mode() == io::Mode::kDirect ? offset % io::kAlign : 0;
    const auto to = from.mode() == io::Mode::kDirect
                        ? buffer.first(format::fill_window_bytes(offset, bytes))
                        : buffer.first(bytes);
    auto got = from.read(offset - front, to, front + bytes);
    if (!got) got = from.read(offset - front, to, front + bytes);
    if (!got) return tl::make_unexpected(std::move(got.error()));
    total_ += *got;
    return to.data() + front;
  }

  uint64_t total() const { return total_; }

 private:
  const std::vector<io::File>& files_;
  uint64_t total_ = 0;
};

class InPlaceReader : public PieceReader {
 public:
  InPlaceReader(const format::ModelSource& source, const format::PieceTable& table,
                std::vector<io::File> files, io::Mode mode, uint64_t scratch)
      : source_(source), table_(table), files_(std::move(files)), mode_(mode), scratch_(scratch) {}

  uint64_t scratch_bytes() const override { return scratch_; }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> scratch) override {
    FileBytes bytes(files_);
    Status filled = format::fill_piece(source_, table_.pieces[piece], bytes, scratch, slot);
    if (filled) return bytes.total();
    return with_context(fmt::format("piece '{}'", table_.pieces[piece].name),
                        std::move(filled.error()));
  }

  std::string mode() const override { return std::string(io::name(mode_)); }

 private:
  const format::ModelSource& source_;
  const format::PieceTable& table_;
  std::vector<io::File> files_;
  io::Mode mode_;
  uint64_t scratch_;
};

}  // namespace

Expected<std::unique_ptr<PieceReader>> make_in_place_reader(const format::ModelSource& source,
                                                            const format::PieceTable& table,
                                                            const InPlaceReaderOptions& options) {
  uint64_t scratch = 0;
  for (const format::Piece& piece : table.pieces) {
    auto bytes = format::fill_scratch_bytes(source, piece);
    if (!bytes)
      return with_context(fmt::format("piece '{}'", piece.name), std::move(bytes.error()));
    scratch = std::max(scratch, *bytes);
  }
  std::vector<io::File> files;
  for (const format::SourceFile& from : source.files) {
    MILLRACE_ASSIGN(io::File file, io::File::open(from.path, options.mode, options.hook));
    if (file.size() != from.size) {
      return fail(Code::kCorrupt, "{}: has {} bytes, had {} when it was opened", from.path,
                  file.size(), from.size);
    }
    files.push_back(std::move(file));
  }
  return std::make_unique<InPlaceReader>(source, table, std::move(files), options.mode, scratch);
}

}  // namespace millrace::stream
