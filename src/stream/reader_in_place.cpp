#include "stream/reader_in_place.h"

#include <algorithm>
#include <vector>

#include "format/piece_fill.h"
#include "format/source_readers.h"
#include "stream/copies.h"

namespace millrace::stream {
namespace {

// Source bytes of one fill, counted.
class FileBytes : public format::SourceBytes {
 public:
  explicit FileBytes(Copies& copies) : copies_(copies) {}

  Expected<const std::byte*> read(uint32_t file, uint64_t offset, uint64_t bytes,
                                  std::span<std::byte> buffer) override {
    for (unsigned left = copies_.tries();; --left) {
      auto at = read_once(file, offset, bytes, buffer);
      if (at || left <= 1) return at;
    }
  }

  uint64_t total() const { return total_; }

 private:
  Expected<const std::byte*> read_once(uint32_t file, uint64_t offset, uint64_t bytes,
                                       std::span<std::byte> buffer) {
    MILLRACE_ASSIGN(const Copies::Lease lease, copies_.begin(file, bytes, offset + bytes));
    const bool direct = lease.file->mode() == io::Mode::kDirect;
    const uint64_t front = direct ? offset % io::kAlign : 0;
    const auto to = buffer.first(direct ? format::fill_window_bytes(offset, bytes) : bytes);
    auto got = lease.file->read(offset - front, to, front + bytes);
    copies_.end(lease, got ? nullptr : &got.error());
    if (!got) return tl::make_unexpected(std::move(got.error()));
    total_ += *got;
    return to.data() + front;
  }

  Copies& copies_;
  uint64_t total_ = 0;
};

class InPlaceReader : public PieceReader {
 public:
  InPlaceReader(const format::ModelSource& source, const format::PieceTable& table,
                std::unique_ptr<Copies> copies, io::Mode mode, uint64_t scratch)
      : source_(source),
        table_(table),
        copies_(std::move(copies)),
        mode_(mode),
        scratch_(scratch) {}

  uint64_t scratch_bytes() const override { return scratch_; }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> scratch) override {
    FileBytes bytes(*copies_);
    Status filled = format::fill_piece(source_, table_.pieces[piece], bytes, scratch, slot);
    if (filled) return bytes.total();
    return with_context(fmt::format("piece '{}'", table_.pieces[piece].name),
                        std::move(filled.error()));
  }

  std::string mode() const override { return std::string(io::name(mode_)); }
  uint32_t devices() const override { return copies_->devices(); }
  std::vector<std::string> notes() override { return copies_->notes(); }

 private:
  const format::ModelSource& source_;
  const format::PieceTable& table_;
  std::unique_ptr<Copies> copies_;
  io::Mode mode_;
  uint64_t scratch_;
};

// Source files carry no hashes: a mirror's header, which names and places all tensors, must be the
// same. (Copies::open has compared the sizes.)
Status check_header(const format::SourceFile& file, const std::string& mirror) {
  MILLRACE_ASSIGN(const format::HeadFile ours, format::HeadFile::open(file.path));
  MILLRACE_ASSIGN(const format::HeadFile theirs, format::HeadFile::open(mirror));
  std::string a, b;
  MILLRACE_TRY(ours.read_to(file.data_begin, a));
  MILLRACE_TRY(theirs.read_to(file.data_begin, b));
  if (a == b) return {};
  return fail(Code::kInvalid, "{}: its header differs from that of {}: it is no mirror of it",
              mirror, file.path);
}

// Two models of one base can have the same header. Source files have no hashes; bytes from all over
// the file tell such models apart (a damaged copy of the right one may still pass).
Status check_samples(const format::SourceFile& file, const std::string& mirror) {
  constexpr uint64_t kSamples = 256, kBytes = 4096;
  MILLRACE_ASSIGN(const io::File ours, io::File::open(file.path, io::Mode::kBuffered));
  MILLRACE_ASSIGN(const io::File theirs, io::File::open(mirror, io::Mode::kBuffered));
  std::vector<std::byte> a(kBytes), b(kBytes);
  const uint64_t data = ours.size() - std::min(file.data_begin, ours.size());
  for (uint64_t i = 0; i < kSamples; ++i) {
    const uint64_t at = file.data_begin + data / kSamples * i;
    const uint64_t least = std::min(kBytes, ours.size() - at);
    MILLRACE_TRY(ours.read(at, std::span(a).first(least)));
    MILLRACE_TRY(theirs.read(at, std::span(b).first(least)));
    if (std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(least), b.begin())) continue;
    return fail(Code::kInvalid, "{}: differs from {} at offset {}: it is no mirror of it", mirror,
                file.path, at);
  }
  return {};
}

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
  std::vector<std::vector<std::string>> paths(1);
  for (const format::SourceFile& from : source.files) paths[0].push_back(from.path);
  for (const std::string& folder : options.mirrors) {
    auto& copy = paths.emplace_back();
    for (const std::string& path : paths[0]) copy.push_back(folder + path.substr(path.rfind('/')));
  }
  MILLRACE_ASSIGN(auto copies, Copies::open(paths, options.mode, options.hook));
  for (uint32_t i = 0; i < source.files.size(); ++i) {
    if (copies->file(i).size() == source.files[i].size) continue;
    return fail(Code::kCorrupt, "{}: has {} bytes, had {} when it was opened", source.files[i].path,
                copies->file(i).size(), source.files[i].size);
  }
  for (uint32_t c = 1; c < paths.size(); ++c) {
    for (uint32_t i = 0; i < source.files.size(); ++i) {
      MILLRACE_TRY(check_header(source.files[i], paths[c][i]));
      MILLRACE_TRY(check_samples(source.files[i], paths[c][i]));
    }
  }
  return std::make_unique<InPlaceReader>(source, table, std::move(copies), options.mode, scratch);
}

}  // namespace millrace::stream
