#include "io/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/choose.h"
#include "io/faults.h"
#include "io/probe.h"
#include "io/uring.h"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(size_t n) {
  std::string data(n, '\0');
  uint32_t x = 1;
  for (char& c : data) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  return data;
}

// Where direct reads may work (the working folder's disk) and where they may not (memory).
class FileTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = fs::path(GetParam()) / ("millrace-io-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    data_ = bytes_of(5 * kAlign + 1234);
    path_ = (folder_ / "data.bin").string();
    std::ofstream(path_, std::ios::binary) << data_;
    buffer_ = std::move(*AlignedBuffer::allocate(8 * kAlign));
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string text(uint64_t n) const { return {reinterpret_cast<const char*>(buffer_.data()), n}; }
  // Every mode that works here.
  std::vector<Mode> modes() const {
    if (why_not_direct(path_).empty()) return {Mode::kBuffered, Mode::kDirect};
    return {Mode::kBuffered};
  }
  fs::path folder_;
  std::string path_, data_;
  AlignedBuffer buffer_;
};

INSTANTIATE_TEST_SUITE_P(Places, FileTest, testing::Values(fs::current_path().string(), "/dev/shm"),
                         [](const auto& place) { return place.index == 0 ? "disk" : "memory"; });

TEST_P(FileTest, ReadsExactly) {
  for (Mode mode : modes()) {
    const auto file = File::open(path_, mode);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->size(), data_.size());
    EXPECT_EQ(file->mode(), mode);
    ASSERT_EQ(file->read(kAlign, buffer_.span().first(2 * kAlign)).value(), 2 * kAlign);
    EXPECT_EQ(text(2 * kAlign), data_.substr(kAlign, 2 * kAlign));
  }
}

TEST_P(FileTest, TheEndOfTheFile) {
  for (Mode mode : modes()) {
    const auto file = File::open(path_, mode);
    // A window past the end is fine when the bytes that count are there.
    const auto got = file->read(4 * kAlign, buffer_.span().first(4 * kAlign), kAlign + 1234);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(*got, kAlign + 1234);
    EXPECT_EQ(text(*got), data_.substr(4 * kAlign));
    const auto over = file->read(4 * kAlign, buffer_.span().first(4 * kAlign), kAlign + 1235);
    ASSERT_FALSE(over);
    EXPECT_EQ(over.error().code, Code::kIo);
    EXPECT_NE(over.error().message.find(path_), std::string::npos);
    EXPECT_NE(over.error().message.find("offset 16384"), std::string::npos) << over.error().message;
  }
}

TEST_P(FileTest, ShortReadsAreContinued) {
  for (Mode mode : modes()) {
    FaultInjector faults;
    faults.add({.kind = Fault::Kind::kShort});
    const auto file = File::open(path_, mode, &faults);
    ASSERT_TRUE(file->read(0, buffer_.span().first(5 * kAlign)));
    EXPECT_EQ(text(5 * kAlign), data_.substr(0, 5 * kAlign));
    EXPECT_GE(faults.struck(), 2u);
  }
}

TEST_P(FileTest, InjectedErrors) {
  for (Mode mode : modes()) {
    FaultInjector faults;
    const auto file = File::open(path_, mode, &faults);
    faults.add({.kind = Fault::Kind::kError,
                .path = "data.bin",
                .begin = kAlign,
                .end = kAlign + 1,
                .times = 1});
    EXPECT_TRUE(file->read(2 * kAlign, buffer_.span().first(kAlign)));
    const auto broken = file->read(0, buffer_.span().first(2 * kAlign));
    ASSERT_FALSE(broken);
    EXPECT_NE(broken.error().message.find("Input/output error"), std::string::npos)
        << broken.error().message;
    EXPECT_TRUE(file->read(0, buffer_.span().first(2 * kAlign)));

    faults.clear();
    faults.add({.kind = Fault::Kind::kEnd, .times = 1});
    EXPECT_FALSE(file->read(0, buffer_.span().first(kAlign)));

    faults.clear();
    faults.add({.kind = Fault::Kind::kFlip, .begin = 100, .end = 101, .times = 1});
    ASSERT_TRUE(file->read(0, buffer_.span().first(kAlign)));
    std::string expected = data_.substr(0, kAlign);
    expected[100] ^= 0x10;
    EXPECT_EQ(text(kAlign), expected);

    faults.clear();
    faults.add({.kind = Fault::Kind::kSlow, .times = 1, .delay = std::chrono::milliseconds(20)});
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(file->read(0, buffer_.span().first(kAlign)));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  }
}

TEST_P(FileTest, WhatCannotBeOpened) {
  const auto missing = File::open(path_ + ".not", Mode::kBuffered);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_FALSE(File::open(folder_.string(), Mode::kBuffered));
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_FALSE(File::open(fifo, Mode::kBuffered));  // and does not hang
}

TEST_P(FileTest, ModeIsChosenWithAReason) {
  const bool direct = why_not_direct(path_).empty();
  const auto buffered = choose_mode(Request::kAuto, {10, 100, false}, path_);
  EXPECT_EQ(buffered.mode, Mode::kBuffered);
  EXPECT_NE(buffered.reason.find("fit"), std::string::npos);
  const auto large =
      choose_mode(Request::kAuto, {uint64_t{20} << 30, uint64_t{4} << 30, false}, path_);
  EXPECT_EQ(large.mode, direct ? Mode::kDirect : Mode::kBuffered);
  EXPECT_NE(large.reason.find("20.0 GiB of weights do not fit in 4.0 GiB"), std::string::npos)
      << large.reason;
  const auto capped = choose_mode(Request::kAuto, {10, 100, true}, path_);
  EXPECT_EQ(capped.mode, direct ? Mode::kDirect : Mode::kBuffered);
  EXPECT_NE(capped.reason.find("ceiling"), std::string::npos);
  EXPECT_EQ(choose_mode(Request::kBuffered, {10, 1, true}, path_).mode, Mode::kBuffered);
  const auto forced = choose_mode(Request::kDirect, {10, 100, false}, path_);
  EXPECT_EQ(forced.mode, direct ? Mode::kDirect : Mode::kBuffered);
  if (!direct) {
    EXPECT_NE(forced.reason.find("although direct"), std::string::npos) << forced.reason;
  }
}

TEST_P(FileTest, Probe) {
  const std::string big = (folder_ / "big.bin").string();
  std::ofstream(big, std::ios::binary) << bytes_of(9 << 20);
  const auto begin = std::chrono::steady_clock::now();
  const auto result = probe_file(big, {0.7});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  EXPECT_GT(result->buffered.bytes_per_second(), 0);
  if (why_not_direct(big).empty()) {
    ASSERT_NE(result->best_direct(), nullptr);
    EXPECT_GT(result->best_direct()->bytes_per_second(), 0);
    const auto has = [&](Via via) {
      return std::ranges::any_of(result->rates, [&](const ReadRate& r) { return r.via == via; });
    };
    EXPECT_TRUE(has(Via::kPread));
    EXPECT_EQ(has(Via::kUring), result->uring_obstacle.empty());
    for (const ReadRate& rate : result->rates) EXPECT_GE(rate.bytes, rate.request);
  } else {
    EXPECT_FALSE(result->direct_obstacle.empty());
    EXPECT_TRUE(result->rates.empty());
  }
  EXPECT_TRUE(probe_file(path_));  // smaller than every request
  EXPECT_FALSE(probe_file(path_ + ".not"));
}

TEST(Probe, Memory) { EXPECT_GT(probe_memory(2, 4 << 20), 1e8); }

TEST(Probe, TheWayIsPicked) {
  const auto rate = [](Via via, unsigned depth, uint64_t bytes, double cpu) {
    return ReadRate{Mode::kDirect, via, 1 << 20, depth, bytes, 1.0, cpu};
  };
  EXPECT_EQ(pick({}), nullptr);
  // The least depth that is nearly as fast as the best.
  std::vector<ReadRate> rates = {rate(Via::kPread, 2, 500, 1), rate(Via::kPread, 4, 960, 1),
                                 rate(Via::kPread, 8, 1000, 1)};
  EXPECT_EQ(pick(rates)->depth, 4u);
  // Clearly faster wins whatever it costs.
  rates.push_back(rate(Via::kUring, 8, 1200, 9));
  EXPECT_EQ(pick(rates)->via, Via::kUring);
  // As fast: the cheaper one.
  rates.back() = rate(Via::kUring, 8, 950, 0.5);
  EXPECT_EQ(pick(rates)->via, Via::kUring);
  rates.back() = rate(Via::kUring, 8, 1050, 3);
  EXPECT_EQ(pick(rates)->via, Via::kPread);
}

// The answer is the system's own: what cannot be set up is never promised, and what is promised
// can be made.
TEST(Probe, IoUringSaysYesOrWhyNot) {
  const std::string why = why_no_io_uring();
  std::array<uint32_t, 64> parameters{};  // struct io_uring_params, all zero, and more
  const long ring = ::syscall(SYS_io_uring_setup, 2, parameters.data());
  if (ring >= 0) ::close(static_cast<int>(ring));
  EXPECT_TRUE(ring >= 0 || !why.empty());
  EXPECT_TRUE(why.empty() || why.find("uring") != std::string::npos) << why;
  EXPECT_TRUE(!why.empty() || Uring::create(4));
}

}  // namespace
}  // namespace millrace::io
