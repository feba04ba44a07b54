// Readers over real files: pieces filled from a source in place equal those of a packed file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/numeric.h"
#include "format/piece_fill.h"
#include "io/faults.h"
#include "stream/reader_in_place.h"
#include "stream/reader_packed.h"
#include "stream/store.h"

namespace millrace::stream {
namespace {

namespace fs = std::filesystem;
using format::PieceKind;
using format::SourceType;
using format::WeightFormat;

// A source file whose tensors lie at odd offsets, and pieces over it of every kind of view.
class ReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("millrace-reader-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    source_.path = folder_.string();
    const uint32_t norm = tensor("norm", SourceType::kF32, {96}, 4 * 96);
    const uint32_t gate_up = tensor("gate_up", SourceType::kBF16, {3, 80, 64}, 3 * 80 * 64 * 2);
    const uint32_t down = tensor("down", SourceType::kBF16, {3, 64, 40}, 3 * 64 * 40 * 2);
    const uint32_t big = tensor("big", SourceType::kF32, {3001, 1024}, 3001 * 1024 * 4);
    const uint32_t wide = tensor("wide", SourceType::kBF16, {4096, 1024}, 4096 * 1024 * 2);
    const uint32_t turned = tensor("turned", SourceType::kF16, {40, 72}, 40 * 72 * 2);
    const uint32_t codes = tensor("codes", SourceType::kU32, {24, 16}, 24 * 16 * 4);
    const uint32_t scales = tensor("scales", SourceType::kBF16, {24, 2}, 24 * 2 * 2);
    const uint32_t biases = tensor("biases", SourceType::kBF16, {24, 2}, 24 * 2 * 2);
    write_source();

    piece("core", PieceKind::kMixer);
    add(vector(norm, 96));
    add(matrix(big, WeightFormat::kF32, 3001, 1024));  // read in parts
    add(affine(codes, scales, biases));
    auto transposed = matrix(turned, WeightFormat::kF16, 72, 40);
    transposed.transposed = true;
    add(transposed);
    for (uint32_t e = 0; e < 3; ++e) {
      piece("expert" + std::to_string(e), PieceKind::kExpert);
      add(interleaved(gate_up, 40, 64, e, 0));
      add(interleaved(gate_up, 40, 64, e, 1));
      auto view = matrix(down, WeightFormat::kBF16, 64, 40);
      view.index = e;
      add(view);
    }
    piece("interleaved",
          PieceKind::kFfn);  // large enough to be read in parts, gate and up together
    add(interleaved(wide, 2048, 1024, 0, 0));
    add(interleaved(wide, 2048, 1024, 0, 1));
    piece("rows", PieceKind::kHead);
    auto rows = matrix(big, WeightFormat::kF32, 1500, 1024);
    rows.row_begin = 1001;
    add(rows);
    for (auto& p : table_.pieces) p.bytes = round_up(p.bytes, 4096);
    write_packed();
  }
  void TearDown() override { fs::remove_all(folder_); }

  uint32_t tensor(const char* name, SourceType type, std::vector<uint64_t> shape, uint64_t bytes) {
    at_ += 1 + at_ % 7;  // odd offsets, and gaps
    source_.tensors.push_back({name, type, std::move(shape), 0, at_, bytes});
    at_ += bytes;
    return static_cast<uint32_t>(source_.tensors.size() - 1);
  }
  static void write_file(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  void write_source() {
    data_.resize(at_ + 3);
    std::mt19937 random(5);
    for (char& c : data_) c = static_cast<char>(random());
    const std::string path = (folder_ / "source.bin").string();
    write_file(path, data_);
    source_.files.push_back({path, "source.bin", data_.size(), 0});
  }

  static format::WeightView matrix(uint32_t index, WeightFormat format, uint32_t rows,
                                   uint32_t cols) {
    format::WeightView view;
    view.layout.format = format;
    view.layout.rows = rows;
    view.layout.cols = cols;
    view.weight = index;
    return view;
  }
  static format::WeightView vector(uint32_t index, uint32_t cols) {
    auto view = matrix(index, WeightFormat::kF32, 1, cols);
    view.vector = true;
    return view;
  }
  static format::WeightView interleaved(uint32_t index, uint32_t rows, uint32_t cols,
                                        uint32_t expert, uint32_t first) {
    auto view = matrix(index, WeightFormat::kBF16, rows, cols);
    view.index = expert;
    view.row_begin = first;
    view.row_step = 2;
    return view;
  }
  static format::WeightView affine(uint32_t codes, uint32_t scales, uint32_t biases) {
    auto view = matrix(codes, WeightFormat::kAffine, 24, 128);
    view.layout.bits = 4;
    view.layout.group = 64;
    view.layout.scale_type = format::ScaleType::kBF16;
    view.scales = scales;
    view.biases = biases;
    return view;
  }

  void piece(const std::string& name, PieceKind kind) {
    format::Piece piece;
    piece.name = name;
    piece.kind = kind;
    table_.pieces.push_back(piece);
  }
  void add(const format::WeightView& view) {
    format::Piece& to = table_.pieces.back();
    format::PieceTensor part;
    part.view = view;
    part.offset = round_up(to.bytes, 64);
    part.bytes = format::view_bytes(view);
    to.bytes = part.offset + part.bytes;
    to.tensors.push_back(part);
  }

  // The piece by the shortest way: whole extents from memory, whole views.
  std::vector<std::byte> expected(const format::Piece& piece) const {
    std::vector<std::byte> slot(piece.bytes);
    for (const format::PieceTensor& part : piece.tensors) {
      const auto extents = format::view_extents(source_, part.view);
      EXPECT_TRUE(extents) << extents.error().message;
      std::array<std::span<const std::byte>, 3> from;
      for (size_t i = 0; i < 3; ++i) {
        from[i] = {reinterpret_cast<const std::byte*>(data_.data()) + (*extents)[i].offset,
                   (*extents)[i].bytes};
      }
      format::pack_view(source_, part.view, from, std::span(slot).subspan(part.offset, part.bytes));
    }
    return slot;
  }

  void write_packed() {
    packed_.path = folder_.string();
    packed_.files = {(folder_ / "weights-00000.bin").string()};
    std::ofstream out(packed_.files[0], std::ios::binary);
    uint64_t offset = 0;
    for (format::Piece& p : table_.pieces) {
      const auto bytes = expected(p);
      out.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
      const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
      p.hash[0] = hash.low64;
      p.hash[1] = hash.high64;
      p.offset = offset;
      offset += bytes.size();
    }
    packed_.file_bytes = {offset};
  }

  std::vector<io::Mode> modes() const {
    if (io::why_not_direct(packed_.files[0]).empty())
      return {io::Mode::kBuffered, io::Mode::kDirect};
    return {io::Mode::kBuffered};
  }

  // Reads every piece and compares.
  void check_all(PieceReader& reader) {
    auto scratch = io::AlignedBuffer::allocate(round_up(reader.scratch_bytes(), 4096));
    for (uint32_t p = 0; p < table_.pieces.size(); ++p) {
      const format::Piece& piece = table_.pieces[p];
      auto slot = io::AlignedBuffer::allocate(piece.bytes);
      std::memset(slot->data(), 0xee, piece.bytes);
      const auto got = reader.read(p, slot->span(), scratch->span());
      ASSERT_TRUE(got) << got.error().message;
      EXPECT_GE(*got, 1u);
      const auto wanted = expected(piece);
      EXPECT_EQ(std::memcmp(slot->data(), wanted.data(), piece.bytes), 0)
          << piece.name << " " << reader.mode();
    }
  }

  fs::path folder_;
  format::ModelSource source_;
  std::string data_;
  uint64_t at_ = 100;
  format::PieceTable table_;
  format::PackedModel packed_;
};

// What is said about direct reads is what the system does.
TEST_F(ReaderTest, DirectReadsAreTriedWhereTheyWork) {
  const int fd = ::open(packed_.files[0].c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  auto buffer = io::AlignedBuffer::allocate(2 * io::kAlign);
  const bool works = fd >= 0 && ::pread(fd, buffer->data(), io::kAlign, io::kAlign) > 0;
  if (fd >= 0) ::close(fd);
  const std::string why = io::why_not_direct(packed_.files[0]);
  EXPECT_EQ(why.empty(), works) << why;
  EXPECT_EQ(modes().size(), works ? 2u : 1u);
}

TEST_F(ReaderTest, PackedAndInPlaceGiveTheSameBytes) {
  for (io::Mode mode : modes()) {
    auto packed = make_packed_reader(packed_, table_, {mode, false, nullptr});
    ASSERT_TRUE(packed) << packed.error().message;
    EXPECT_EQ((*packed)->mode(), io::name(mode));
    check_all(**packed);
    auto in_place = make_in_place_reader(source_, table_, {mode, nullptr});
    ASSERT_TRUE(in_place) << in_place.error().message;
    EXPECT_LE((*in_place)->scratch_bytes(), (uint64_t{8} << 20) + 8192);
    check_all(**in_place);
  }
}

TEST_F(ReaderTest, SharedBytesAreReadOnce) {
  auto reader = make_in_place_reader(source_, table_, {io::Mode::kBuffered, nullptr});
  ASSERT_TRUE(reader);
  auto scratch = io::AlignedBuffer::allocate((*reader)->scratch_bytes());
  for (uint32_t p = 0; p < table_.pieces.size(); ++p) {
    const format::Piece& piece = table_.pieces[p];
    if (piece.kind != PieceKind::kFfn && piece.kind != PieceKind::kExpert) continue;
    auto slot = io::AlignedBuffer::allocate(piece.bytes);
    const auto got = (*reader)->read(p, slot->span(), scratch->span());
    ASSERT_TRUE(got);
    uint64_t useful = 0;
    for (const auto& part : piece.tensors)
      useful += part.view.layout.rows * part.view.layout.cols * 2;
    EXPECT_LE(*got, useful + useful / 100 + 4096) << piece.name;
  }
}

TEST_F(ReaderTest, OneFailureIsRetriedTwoAreAnError) {
  for (io::Mode mode : modes()) {
    for (const auto kind :
         {io::Fault::Kind::kError, io::Fault::Kind::kEnd, io::Fault::Kind::kFlip}) {
      io::FaultInjector faults;
      auto packed = make_packed_reader(packed_, table_, {mode, true, &faults});
      auto slot = io::AlignedBuffer::allocate(table_.pieces[2].bytes);
      const uint64_t at = table_.pieces[2].offset;
      faults.add({.kind = kind, .begin = at, .end = at + 1, .times = 1});
      EXPECT_TRUE((*packed)->read(2, slot->span(), {}));
      EXPECT_EQ(faults.struck(), 1u);
      faults.add({.kind = kind, .begin = at, .end = at + 1, .times = 2});
      const auto broken = (*packed)->read(2, slot->span(), {});
      ASSERT_FALSE(broken);
      const std::string& message = broken.error().message;
      EXPECT_EQ(broken.error().code, kind == io::Fault::Kind::kFlip ? Code::kCorrupt : Code::kIo)
          << message;
      EXPECT_NE(message.find("expert1"), std::string::npos) << message;
      EXPECT_NE(message.find("weights-00000.bin"), std::string::npos) << message;
      EXPECT_NE(message.find(std::to_string(at)), std::string::npos) << message;
    }
    io::FaultInjector faults;
    auto in_place = make_in_place_reader(source_, table_, {mode, &faults});
    auto slot = io::AlignedBuffer::allocate(table_.pieces[1].bytes);
    auto scratch = io::AlignedBuffer::allocate((*in_place)->scratch_bytes());
    faults.add({.kind = io::Fault::Kind::kError, .times = 1});
    EXPECT_TRUE((*in_place)->read(1, slot->span(), scratch->span()));
    faults.add({.kind = io::Fault::Kind::kError, .times = 2});
    const auto broken = (*in_place)->read(1, slot->span(), scratch->span());
    ASSERT_FALSE(broken);
    EXPECT_NE(broken.error().message.find("expert0"), std::string::npos);
    EXPECT_NE(broken.error().message.find("source.bin"), std::string::npos);
  }
}

// Source files carry no hashes: a file that has to be opened again must be the one that it was.
TEST_F(ReaderTest, AReplacedSourceIsRefused) {
  const std::string path = source_.files[0].path;
  const auto read = [&](PieceReader& reader) {
    auto slot = io::AlignedBuffer::allocate(table_.pieces[1].bytes);
    auto scratch = io::AlignedBuffer::allocate(reader.scratch_bytes());
    const auto got = reader.read(1, slot->span(), scratch->span());
    if (!got) return got.error().message;
    const bool same =
        std::memcmp(slot->data(), expected(table_.pieces[1]).data(), table_.pieces[1].bytes) == 0;
    return std::string(same ? "" : "other bytes");
  };
  for (const bool in_place : {false, true}) {  // renamed over, or written to
    write_file(path, data_);
    io::FaultInjector faults;
    auto reader = make_in_place_reader(source_, table_, {io::Mode::kBuffered, &faults});
    ASSERT_TRUE(reader) << reader.error().message;
    faults.add({.kind = io::Fault::Kind::kError, .times = 1});
    EXPECT_EQ(read(**reader), "");  // the same file is opened again
    EXPECT_EQ(faults.struck(), 1u);

    std::string other = data_;  // another model of the same shape
    for (char& c : other) c = static_cast<char>(~c);
    write_file(in_place ? path : path + ".new", other);
    if (in_place) {
      const auto later = fs::last_write_time(path) + std::chrono::seconds(1);
      fs::last_write_time(path, later);
    } else {
      fs::rename(path + ".new", path);
    }
    faults.add({.kind = io::Fault::Kind::kError, .times = 1});
    for (int i = 0; i < 2; ++i) {
      const std::string message = read(**reader);
      EXPECT_NE(message.find(path + ": was replaced since the model was opened"), std::string::npos)
          << message;
    }
  }
}

TEST_F(ReaderTest, ADamagedFileIsFoundOnFirstLoad) {
  {
    std::fstream file(packed_.files[0], std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(table_.pieces[3].offset + 77));
    file.put('!');
  }
  auto reader = make_packed_reader(packed_, table_, {io::Mode::kBuffered, false, nullptr});
  auto slot = io::AlignedBuffer::allocate(table_.pieces[3].bytes);
  const auto broken = (*reader)->read(3, slot->span(), {});
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, Code::kCorrupt);
  auto other = io::AlignedBuffer::allocate(table_.pieces[2].bytes);
  EXPECT_TRUE((*reader)->read(2, other->span(), {}));
}

TEST_F(ReaderTest, HashesAreCheckedOnceUnlessAlways) {
  io::FaultInjector faults;
  auto once = make_packed_reader(packed_, table_, {io::Mode::kBuffered, false, &faults});
  auto always = make_packed_reader(packed_, table_, {io::Mode::kBuffered, true, &faults});
  auto slot = io::AlignedBuffer::allocate(table_.pieces[2].bytes);
  ASSERT_TRUE((*once)->read(2, slot->span(), {}));
  ASSERT_TRUE((*always)->read(2, slot->span(), {}));
  faults.add({.kind = io::Fault::Kind::kFlip});
  EXPECT_TRUE((*once)->read(2, slot->span(), {}));
  EXPECT_FALSE((*always)->read(2, slot->span(), {}));
}

TEST_F(ReaderTest, RefusedWhenTheyDoNotFit) {
  auto table = table_;
  table.pieces[0].offset = uint64_t{1} << 40;
  EXPECT_FALSE(make_packed_reader(packed_, table, {}));
  table = table_;
  table.pieces[0].tensors[1].view.layout.rows = 3002;
  EXPECT_FALSE(make_in_place_reader(source_, table, {}));
  fs::resize_file(source_.files[0].path, 1000);
  EXPECT_FALSE(make_in_place_reader(source_, table_, {}));
  fs::remove(packed_.files[0]);
  EXPECT_FALSE(make_packed_reader(packed_, table_, {}));
}

// The store over real files: faults reach the consumer, and it lives on.
TEST_F(ReaderTest, StoreOverFilesWithFaults) {
  for (io::Mode mode : modes()) {
    io::FaultInjector faults;
    auto reader = make_packed_reader(packed_, table_, {mode, true, &faults});
    Ledger ledger(uint64_t{1} << 30);
    auto plan = plan_residency(table_, uint64_t{1} << 30, {1, false});
    plan = plan_residency(table_, plan->smallest_budget, {1, false});
    ASSERT_TRUE(plan);
    auto store = PieceStore::create(table_, *plan, **reader, ledger, {});
    ASSERT_TRUE(store);
    std::vector<uint32_t> experts = {1, 2, 3};
    const auto run = [&] {
      (*store)->begin_fired(experts);
      PieceStore::Fired fired;
      for (;;) {
        auto more = (*store)->next_fired(&fired);
        if (!more) return false;
        if (!*more) return true;
        EXPECT_EQ(std::memcmp(fired.data, expected(table_.pieces[fired.piece]).data(),
                              table_.pieces[fired.piece].bytes),
                  0);
        (*store)->release(fired.piece);
      }
    };
    EXPECT_TRUE(run());
    const uint64_t at = table_.pieces[2].offset;
    faults.add({.kind = io::Fault::Kind::kError, .begin = at, .end = at + 1, .times = 2});
    faults.add({.kind = io::Fault::Kind::kSlow, .delay = std::chrono::milliseconds(2)});
    EXPECT_FALSE(run());
    EXPECT_TRUE(run());
    for (uint32_t p : plan->scan) {
      const auto data = (*store)->acquire(p);
      ASSERT_TRUE(data) << data.error().message;
      EXPECT_EQ(std::memcmp(*data, expected(table_.pieces[p]).data(), table_.pieces[p].bytes), 0);
      (*store)->release(p);
    }
  }
}

}  // namespace
}  // namespace millrace::stream
