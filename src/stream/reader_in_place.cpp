#include "stream/reader_in_place.h"

#include <algorithm>
#include <vector>

#include "format/piece_fill.h"
#include "format/source_readers.h"
#include "stream/copies.h"

namespace millrace::stream {
namespace {

class InPlaceReader : public PieceReader {
 public:
  // Steps and the largest read of a piece.
  struct Shape {
    uint32_t steps = 1;
    uint32_t largest_read = 0;
  };
  InPlaceReader(const format::ModelSource& source, const format::PieceTable& table,
                std::unique_ptr<Copies> copies, io::Mode mode, uint64_t scratch,
                std::vector<Shape> shapes)
      : source_(source),
        table_(table),
        copies_(std::move(copies)),
        mode_(mode),
        scratch_(scratch),
        shapes_(std::move(shapes)) {}

  uint64_t scratch_bytes() const override { return scratch_; }
  uint32_t steps(uint32_t piece) const override { return shapes_[piece].steps; }
  uint64_t largest_read(uint32_t piece) const override { return shapes_[piece].largest_read; }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> scratch) override {
    uint64_t total = 0;
    for (uint32_t step = 0; step < steps(piece); ++step) {
      MILLRACE_ASSIGN(const uint64_t bytes, read_step(piece, step, slot, scratch, [] {}));
      total += bytes;
    }
    return total;
  }

  Expected<uint64_t> read_step(uint32_t piece, uint32_t step, std::span<std::byte> slot,
                               std::span<std::byte> scratch, const Landed& landed) override {
    // Planned anew each time: plans of all pieces would be megabytes.
    auto fill = format::PieceFill::plan(source_, table_.pieces[piece]);
    if (!fill) return named(piece, std::move(fill.error()));
    uint64_t total = 0;
    for (const auto& read : fill->reads(step)) {
      auto bytes = fetch(piece, read, scratch.subspan(read.window));
      if (!bytes) return named(piece, std::move(bytes.error()));
      total += *bytes;
    }
    landed();
    fill->pack(step, scratch, slot);
    return total;
  }

  std::string mode() const override { return std::string(io::name(mode_)); }
  void watch(ReadWatch* watch) override { copies_->watch(watch); }
  uint32_t devices() const override { return copies_->devices(); }
  std::vector<std::string> buffered_files() const override { return copies_->buffered(); }
  std::vector<std::string> notes() override { return copies_->notes(); }

 private:
  tl::unexpected<Error> named(uint32_t piece, Error error) const {
    return with_context(fmt::format("piece '{}'", table_.pieces[piece].name), std::move(error));
  }

  // Reads into `window`; returns the bytes that came from the disk.
  Expected<uint64_t> fetch(uint32_t piece, const format::PieceFill::Read& read,
                           std::span<std::byte> window) {
    for (unsigned left = copies_->tries();; --left) {
      auto got = fetch_once(piece, read, window);
      if (got || left <= 1) return got;
    }
  }

  Expected<uint64_t> fetch_once(uint32_t piece, const format::PieceFill::Read& read,
                                std::span<std::byte> window) {
    MILLRACE_ASSIGN(const Copies::Lease lease,
                    copies_->begin(read.file, piece, read.bytes, read.offset + read.bytes));
    const bool direct = lease.file->mode() == io::Mode::kDirect;
    const uint64_t front = read.offset % io::kAlign;
    auto got =
        direct ? lease.file->read(read.offset - front,
                                  window.first(format::fill_window_bytes(read.offset, read.bytes)),
                                  front + read.bytes)
               : lease.file->read(read.offset, window.subspan(front, read.bytes));
    copies_->end(lease, got ? nullptr : &got.error());
    return got;
  }

  const format::ModelSource& source_;
  const format::PieceTable& table_;
  std::unique_ptr<Copies> copies_;
  io::Mode mode_;
  uint64_t scratch_;
  std::vector<Shape> shapes_;  // [pieces]
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
  std::vector<InPlaceReader::Shape> shapes;
  shapes.reserve(table.pieces.size());
  for (const format::Piece& piece : table.pieces) {
    auto fill = format::PieceFill::plan(source, piece);
    if (!fill) return with_context(fmt::format("piece '{}'", piece.name), std::move(fill.error()));
    scratch = std::max(scratch, fill->scratch_bytes());
    shapes.push_back({fill->steps(), static_cast<uint32_t>(fill->largest_read())});
  }
  std::vector<std::vector<std::string>> paths(1);
  for (const format::SourceFile& from : source.files) paths[0].push_back(from.path);
  for (const std::string& folder : options.mirrors) {
    auto& copy = paths.emplace_back();
    for (const std::string& path : paths[0]) copy.push_back(folder + path.substr(path.rfind('/')));
  }
  MILLRACE_ASSIGN(auto copies,
                  Copies::open(paths, options.mode, options.hook, Copies::Check::kIdentity));
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
  return std::make_unique<InPlaceReader>(source, table, std::move(copies), options.mode, scratch,
                                         std::move(shapes));
}

}  // namespace millrace::stream
