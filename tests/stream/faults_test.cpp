// What disks do on a bad day, to both backends and both ways of reading: what can be survived is,
// and what cannot is one error that names piece, file and offset, and touches no other piece.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "io/faults.h"
#include "io/uring.h"
#include "stream/choose_backend.h"
#include "stream/reader_packed.h"

namespace millrace::stream {
namespace {

namespace fs = std::filesystem;
using io::Fault;
using std::chrono::milliseconds;

struct Way {
  BackendKind backend;
  io::Mode mode;
};

std::string name_of(const Way& way) {
  return fmt::format("{}_{}", way.backend == BackendKind::kUring ? "uring" : "pread",
                     io::name(way.mode));
}

// Pieces of random bytes in two files, and a mirror of both.
class Faults : public testing::TestWithParam<Way> {
 protected:
  static constexpr uint32_t kPieces = 24;
  static constexpr uint64_t kBytes = uint64_t{80} << 10;

  void SetUp() override {
    folder_ = fs::current_path() / fmt::format("millrace-faults-{}", getpid());
    fs::create_directories(folder_ / "model");
    std::mt19937_64 random(3);
    packed_.path = (folder_ / "model").string();
    for (uint32_t f = 0; f < 2; ++f) {
      packed_.files.push_back((folder_ / "model" / fmt::format("weights-{}.bin", f)).string());
      std::ofstream out(packed_.files.back(), std::ios::binary);
      for (uint32_t p = f; p < kPieces; p += 2) {
        std::string bytes(kBytes, '\0');
        for (char& c : bytes) c = static_cast<char>(random());
        out << bytes;
        contents_[p] = std::move(bytes);
      }
      packed_.file_bytes.push_back(kPieces / 2 * kBytes);
    }
    for (uint32_t p = 0; p < kPieces; ++p) {
      const XXH128_hash_t hash = XXH3_128bits(contents_[p].data(), kBytes);
      format::Piece piece;
      piece.name = fmt::format("piece{}", p);
      piece.bytes = kBytes;
      piece.file = p % 2;
      piece.offset = p / 2 * kBytes;
      piece.hash[0] = hash.low64;
      piece.hash[1] = hash.high64;
      table_.pieces.push_back(piece);
    }
    std::ofstream(folder_ / "model" / "manifest.json") << "the manifest";
    fs::copy(folder_ / "model", folder_ / "mirror");
    memory_ = std::move(*io::AlignedBuffer::allocate(kPieces * kBytes));
    if (const std::string why = io::why_no_io_uring();
        GetParam().backend == BackendKind::kUring && !why.empty())
      GTEST_SKIP() << why;
    if (const std::string why = io::why_not_direct(packed_.files[0]);
        GetParam().mode == io::Mode::kDirect && !why.empty())
      GTEST_SKIP() << why;
  }
  void TearDown() override {
    backend_.reset();
    fs::remove_all(folder_);
  }

  void open(unsigned depth = 4, bool mirrored = false, bool verify = true) {
    backend_.reset();
    std::vector<std::string> mirrors;
    if (mirrored) mirrors.push_back((folder_ / "mirror").string());
    auto reader = make_packed_reader(packed_, table_, {GetParam().mode, verify, hook_, mirrors});
    ASSERT_TRUE(reader) << reader.error().message;
    reader_ = std::move(*reader);
    ChosenBackend chosen =
        choose_backend(*reader_, {.kind = GetParam().backend, .depth = depth, .capacity = kPieces});
    backend_ = std::move(chosen.backend);
    const bool uring = backend_->describe().starts_with("io_uring");
    ASSERT_EQ(uring, GetParam().backend == BackendKind::kUring) << chosen.reason;
  }

  std::span<std::byte> slot(uint32_t piece) const {
    return memory_.span().subspan(piece * kBytes, kBytes);
  }
  void submit(uint32_t piece, Urgency urgency = Urgency::kDemand) {
    std::memset(slot(piece).data(), 0xee, kBytes);
    backend_->submit({piece, slot(piece), urgency});
  }
  // Waits for one result and checks its bytes.
  ReadResult reap() {
    ReadResult result;
    EXPECT_TRUE(backend_->reap(&result, true));
    if (result.status) {
      EXPECT_EQ(std::memcmp(slot(result.piece).data(), contents_[result.piece].data(), kBytes), 0)
          << "piece " << result.piece;
    }
    return result;
  }
  // Reads every piece; the errors, by piece.
  std::map<uint32_t, Error> read_all() {
    std::map<uint32_t, Error> errors;
    for (uint32_t p = 0; p < kPieces; ++p) submit(p);
    for (uint32_t n = 0; n < kPieces; ++n) {
      const ReadResult result = reap();
      if (!result.status) errors[result.piece] = result.status.error();
    }
    return errors;
  }
  // A fault at the first byte of a piece.
  Fault at(uint32_t piece, Fault::Kind kind, uint32_t times = UINT32_MAX) const {
    Fault fault;
    fault.kind = kind;
    fault.path = "model/" + fs::path(packed_.files[piece % 2]).filename().string();
    fault.begin = table_.pieces[piece].offset;
    fault.end = fault.begin + 1;
    fault.times = times;
    return fault;
  }

  fs::path folder_;
  format::PackedModel packed_;
  format::PieceTable table_;
  std::map<uint32_t, std::string> contents_;
  io::AlignedBuffer memory_;
  io::FaultInjector faults_;
  io::ReadHook* hook_ = &faults_;
  std::unique_ptr<PieceReader> reader_;
  std::unique_ptr<ReadBackend> backend_;
};

INSTANTIATE_TEST_SUITE_P(Ways, Faults,
                         testing::Values(Way{BackendKind::kPread, io::Mode::kDirect},
                                         Way{BackendKind::kPread, io::Mode::kBuffered},
                                         Way{BackendKind::kUring, io::Mode::kDirect},
                                         Way{BackendKind::kUring, io::Mode::kBuffered}),
                         [](const auto& way) { return name_of(way.param); });

TEST_P(Faults, EveryPieceAtEveryDepth) {
  for (const unsigned depth : {1u, 2u, 7u, 24u, 64u}) {
    open(depth);
    for (int round = 0; round < 3; ++round) EXPECT_TRUE(read_all().empty());
    EXPECT_EQ(backend_->reads(), 3u * kPieces);
    EXPECT_EQ(backend_->bytes_read(), 3 * kPieces * kBytes);
  }
}

TEST_P(Faults, OneIsSurvivedTwoAreAnError) {
  open();
  for (const auto kind : {Fault::Kind::kError, Fault::Kind::kEnd, Fault::Kind::kFlip}) {
    faults_.clear();
    const uint64_t before = faults_.struck();
    faults_.add(at(5, kind, 1));
    EXPECT_TRUE(read_all().empty());
    EXPECT_EQ(faults_.struck(), before + 1);

    faults_.add(at(5, kind, 2));
    faults_.add(at(8, kind, 2));
    const auto errors = read_all();
    EXPECT_EQ(faults_.struck(), before + 5);
    ASSERT_EQ(errors.size(), 2u);
    for (const uint32_t piece : {5u, 8u}) {
      const Error& error = errors.at(piece);
      EXPECT_EQ(error.code, kind == Fault::Kind::kFlip ? Code::kCorrupt : Code::kIo);
      for (const std::string& part :
           {fmt::format("'piece{}'", piece), fmt::format("weights-{}.bin", piece % 2),
            fmt::format("offset {}", table_.pieces[piece].offset)})
        EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
    }
    EXPECT_TRUE(read_all().empty());  // and it lives on
  }
}

TEST_P(Faults, ShortReadsAreContinued) {
  open();
  faults_.add({.kind = Fault::Kind::kShort});
  EXPECT_TRUE(read_all().empty());
  EXPECT_GE(faults_.struck(), 2u * kPieces);
}

TEST_P(Faults, ASlowReadHoldsNoOtherBack) {
  open(2);
  Fault slow = at(0, Fault::Kind::kSlow, 1);
  slow.delay = milliseconds(400);
  faults_.add(slow);
  for (uint32_t p = 0; p < kPieces; ++p) submit(p);
  for (uint32_t n = 1; n < kPieces; ++n) EXPECT_NE(reap().piece, 0u);
  EXPECT_EQ(reap().piece, 0u);
}

TEST_P(Faults, DemandComesFirstAndTheQueuedCanBeCancelled) {
  open(1);
  Fault slow = at(0, Fault::Kind::kSlow, 1);
  slow.delay = milliseconds(200);
  faults_.add(slow);
  submit(0);
  std::this_thread::sleep_for(milliseconds(50));  // it is with the disk now
  for (const uint32_t p : {1u, 2u, 3u, 4u}) submit(p, Urgency::kAhead);
  submit(5);
  submit(6);
  backend_->promote(3);
  backend_->promote(0);  // in flight: nothing to do
  EXPECT_TRUE(backend_->cancel(2));
  EXPECT_TRUE(backend_->cancel(6));
  EXPECT_FALSE(backend_->cancel(0));
  std::vector<uint32_t> order;
  for (int n = 0; n < 5; ++n) order.push_back(reap().piece);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 5, 3, 1, 4}));
  ReadResult none;
  EXPECT_FALSE(backend_->reap(&none, false));
}

TEST_P(Faults, EndsWithReadsInFlightAndQueued) {
  for (int round = 0; round < 10; ++round) {
    open(3);
    faults_.clear();
    Fault slow{.kind = Fault::Kind::kSlow};
    slow.delay = milliseconds(2);
    faults_.add(slow);
    for (uint32_t p = 0; p < kPieces; ++p) submit(p);
    if (round % 2) reap();
    backend_.reset();
  }
}

TEST_P(Faults, HashesAreCheckedOnceUnlessEveryReadIsVerified) {
  open(4, false, false);
  EXPECT_TRUE(read_all().empty());
  faults_.add(at(3, Fault::Kind::kFlip));
  submit(3);
  ReadResult result;
  ASSERT_TRUE(backend_->reap(&result, true));
  EXPECT_TRUE(result.status);
  open(4, false, true);
  EXPECT_EQ(read_all().count(3), 1u);
}

TEST_P(Faults, AFileThatShrinks) {
  open();
  EXPECT_TRUE(read_all().empty());
  fs::resize_file(packed_.files[1], (kPieces / 2 - 1) * kBytes + 4096);
  const auto errors = read_all();
  ASSERT_EQ(errors.size(), 1u);
  const std::string& message = errors.at(kPieces - 1).message;
  EXPECT_NE(message.find("weights-1.bin: has"), std::string::npos) << message;
  EXPECT_NE(message.find(fmt::format("'piece{}'", kPieces - 1)), std::string::npos) << message;
  EXPECT_NE(message.find(fmt::format("offset {}", table_.pieces[kPieces - 1].offset)),
            std::string::npos)
      << message;
}

TEST_P(Faults, AFileThatIsReplacedOrGone) {
  open();
  // A stale handle: opened again, it is read again.
  Fault stale = at(4, Fault::Kind::kError, 1);
  stale.error = ESTALE;
  faults_.add(stale);
  EXPECT_TRUE(read_all().empty());
  EXPECT_EQ(faults_.struck(), 1u);
  // Gone under its name: what is open can still be read, until it has to be opened again.
  fs::rename(packed_.files[0], packed_.files[0] + ".away");
  EXPECT_TRUE(read_all().empty());
  stale.times = 2;
  faults_.add(stale);
  submit(4);
  const ReadResult result = reap();
  ASSERT_FALSE(result.status);
  const std::string& message = result.status.error().message;
  EXPECT_NE(message.find("weights-0.bin: open: No such file"), std::string::npos) << message;
  EXPECT_NE(message.find("'piece4'"), std::string::npos) << message;
  EXPECT_NE(message.find(fmt::format("offset {}", table_.pieces[4].offset)), std::string::npos);
  fs::rename(packed_.files[0] + ".away", packed_.files[0]);
  EXPECT_TRUE(read_all().empty());
}

TEST_P(Faults, AMirrorServesWhenTheOtherFails) {
  for (const auto kind : {Fault::Kind::kError, Fault::Kind::kFlip, Fault::Kind::kEnd}) {
    open(4, true);
    faults_.clear();
    Fault broken{.kind = kind, .path = "model/"};
    faults_.add(broken);
    EXPECT_TRUE(read_all().empty());
    const auto notes = reader_->notes();
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_NE(notes[0].find("model: no longer read"), std::string::npos) << notes[0];
    const uint64_t struck = faults_.struck();
    EXPECT_TRUE(read_all().empty());
    EXPECT_EQ(faults_.struck(), struck);  // it was not asked again
    // The last one is never dropped: when it fails, too, its errors are errors.
    Fault too{.kind = Fault::Kind::kError, .path = "mirror/", .begin = 0, .end = 1};
    faults_.add(too);
    const auto errors = read_all();
    ASSERT_EQ(errors.size(), 2u);  // the first piece of each file, and no other
    EXPECT_TRUE(errors.contains(0) && errors.contains(1));
    faults_.clear();
    EXPECT_TRUE(read_all().empty());
  }
}

// What was dropped is not lost: when the last copy fails, the others are opened and asked again.
TEST_P(Faults, AMirrorComesBackWhenTheLastOneFails) {
  open(4, true);
  faults_.add({.kind = Fault::Kind::kError, .path = "model/"});
  EXPECT_TRUE(read_all().empty());
  ASSERT_EQ(reader_->notes().size(), 1u);
  // The model's disk is back, and the mirror's goes for good.
  faults_.clear();
  faults_.add({.kind = Fault::Kind::kError, .path = "mirror/"});
  EXPECT_TRUE(read_all().empty());
  const auto notes = reader_->notes();
  ASSERT_GE(notes.size(), 1u);
  EXPECT_NE(notes[0].find("model: asked again"), std::string::npos) << notes[0];
  // And the other way about, now that both were opened again.
  faults_.clear();
  faults_.add({.kind = Fault::Kind::kError, .path = "model/"});
  EXPECT_TRUE(read_all().empty());
}

// One bad read of each copy: the last one has its second try, as a model without mirrors has.
TEST_P(Faults, TheLastCopyHasItsSecondTry) {
  open(1, true);
  faults_.add(at(5, Fault::Kind::kError, 1));
  Fault other = at(5, Fault::Kind::kError, 1);
  other.path = "mirror/weights-1";
  faults_.add(other);
  submit(5);
  const ReadResult result = reap();
  EXPECT_TRUE(result.status) << result.status.error().message;
  EXPECT_EQ(faults_.struck(), 2u);
}

TEST_P(Faults, FilesInThePageCacheAreNamed) {
  open(1, true);
  const bool direct = GetParam().mode == io::Mode::kDirect;
  EXPECT_EQ(reader_->buffered_files().size(), direct ? 0u : 4u);
  for (size_t i = 0; i < reader_->buffered_files().size(); ++i)
    EXPECT_EQ(reader_->buffered_files()[i].find("/mirror/") != std::string::npos, i >= 2);
}

// Reads of each copy, and how long one of them takes.
class TwoDisks : public io::ReadHook {
 public:
  milliseconds model{6}, mirror{6};
  std::atomic<uint32_t> of_model{0}, of_mirror{0};
  int64_t finished(const std::string& path, uint64_t, std::span<std::byte>, int64_t got,
                   std::chrono::microseconds* delay) override {
    const bool second = path.find("/mirror/") != std::string::npos;
    ++(second ? of_mirror : of_model);
    *delay = second ? mirror : model;
    return got;
  }
};

TEST_P(Faults, MirrorsShareTheReads) {
  TwoDisks disks;
  hook_ = &disks;
  open(6, true);
  for (int round = 0; round < 4; ++round) EXPECT_TRUE(read_all().empty());
  EXPECT_EQ(disks.of_model + disks.of_mirror, 4u * kPieces);
  EXPECT_GT(disks.of_model, kPieces / 2);  // equal disks: both are read a good deal
  EXPECT_GT(disks.of_mirror, kPieces / 2);
  disks.mirror = milliseconds(60);  // one becomes slow: it is given less
  EXPECT_TRUE(read_all().empty());
  disks.of_model = disks.of_mirror = 0;
  for (int round = 0; round < 4; ++round) EXPECT_TRUE(read_all().empty());
  EXPECT_LT(2 * disks.of_mirror, disks.of_model);
  backend_.reset();
}

// A mirror that gives wrong bytes for what it was not asked for at first.
class LateDamage : public io::ReadHook {
 public:
  std::atomic<bool> damaged{false};
  int64_t finished(const std::string& path, uint64_t offset, std::span<std::byte> to, int64_t got,
                   std::chrono::microseconds* delay) override {
    *delay = milliseconds(2);
    if (path.find("/mirror/") == std::string::npos || got <= 0) return got;
    std::lock_guard lock(mutex_);
    const std::string place = path + std::to_string(offset);
    if (!damaged) {
      seen_.insert(place);
    } else if (!seen_.contains(place)) {
      to[0] ^= std::byte{1};
    }
    return got;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

TEST_P(Faults, EachCopyIsHashedForItself) {
  LateDamage damage;
  hook_ = &damage;
  open(6, true, false);
  EXPECT_TRUE(read_all().empty());
  EXPECT_TRUE(reader_->notes().empty());
  damage.damaged = true;
  std::vector<std::string> notes;
  for (int round = 0; round < 20 && notes.empty(); ++round) {
    EXPECT_TRUE(read_all().empty());  // and their bytes are right
    notes = reader_->notes();
  }
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("mirror: no longer read"), std::string::npos) << notes[0];
  backend_.reset();
}

// Where nothing could be measured, what was asked for holds.
TEST_P(Faults, AskedDepthHoldsWithoutAMeasurement) {
  for (const std::string& file : packed_.files) fs::resize_file(file, uint64_t{300} << 20);
  auto reader = make_packed_reader(packed_, table_, {GetParam().mode, false, nullptr, {}});
  ASSERT_TRUE(reader) << reader.error().message;
  const ChosenBackend chosen = choose_backend(
      **reader, {.kind = BackendKind::kAuto, .depth = 5, .capacity = 64, .read_bytes = kBytes});
  EXPECT_NE(chosen.backend->describe().find("5 reads in flight"), std::string::npos)
      << chosen.backend->describe();
  const bool direct = GetParam().mode == io::Mode::kDirect;
  EXPECT_EQ(chosen.reason.find("not measured") != std::string::npos, direct) << chosen.reason;
}

TEST_P(Faults, WhatIsNoMirrorIsRefused) {
  const auto message = [&] {
    auto reader = make_packed_reader(
        packed_, table_, {GetParam().mode, false, nullptr, {(folder_ / "mirror").string()}});
    return reader ? std::string("(no error)") : reader.error().message;
  };
  EXPECT_EQ(message(), "(no error)");
  fs::resize_file(folder_ / "mirror" / "weights-1.bin", 4096);
  EXPECT_NE(message().find("mirror/weights-1.bin: has 4096 bytes"), std::string::npos) << message();
  fs::remove(folder_ / "mirror" / "weights-1.bin");
  EXPECT_NE(message().find("mirror/weights-1.bin"), std::string::npos) << message();
  std::ofstream(folder_ / "mirror" / "manifest.json") << "another";
  EXPECT_NE(message().find("no mirror"), std::string::npos) << message();
}

// The choice says what it rests on.
TEST(ChooseBackend, InPlaceAndWithoutStreamingItIsThePool) {
  class Made : public PieceReader {
   public:
    uint64_t scratch_bytes() const override { return 4096; }
    Expected<uint64_t> read(uint32_t, std::span<std::byte>, std::span<std::byte>) override {
      return 0;
    }
    uint64_t largest_read(uint32_t) const override { return 4096; }
    void watch(ReadWatch*) override {}
    std::string mode() const override { return "direct"; }
  } made;
  ChosenBackend chosen = choose_backend(made, {.depth = 3, .capacity = 8, .read_bytes = 4096});
  EXPECT_EQ(chosen.backend->describe(), "pread pool, 3 reads in flight");
  EXPECT_NE(chosen.reason.find("rearranged"), std::string::npos) << chosen.reason;
  chosen = choose_backend(made, {.kind = BackendKind::kUring, .depth = 3, .capacity = 8});
  EXPECT_EQ(chosen.backend->describe(), "pread pool, 3 reads in flight");
  EXPECT_NE(chosen.reason.find("although io_uring was asked for"), std::string::npos)
      << chosen.reason;
}

}  // namespace
}  // namespace millrace::stream
