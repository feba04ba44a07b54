// Piece tables of made-up models, and a reader that needs no disk.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/status.h"
#include "format/piece.h"
#include "stream/reader.h"

namespace millrace::stream {

inline constexpr uint64_t kKiB4 = 4096;

struct Shape {
  uint32_t layers = 4;
  uint32_t experts = 0;     // 0: dense
  uint32_t embeddings = 3;  // row ranges
  uint32_t heads = 3;       // 0 when tied
  uint64_t mixer = 2 * kKiB4;
  uint64_t ffn = 5 * kKiB4;  // dense FFN or router
  uint64_t expert = 3 * kKiB4;
  bool mixed = false;  // every other layer has experts and FFNs of another size
};

inline format::PieceTable make_table(const Shape& shape) {
  using format::PieceKind;
  format::PieceTable table;
  const auto add = [&](PieceKind kind, int layer, int expert, uint64_t bytes) {
    format::Piece piece;
    piece.name = fmt::format("p{}", table.pieces.size());
    piece.kind = kind;
    piece.layer = layer;
    piece.expert = expert;
    piece.bytes = bytes;
    table.pieces.push_back(piece);
  };
  for (uint32_t i = 0; i < shape.embeddings; ++i) add(PieceKind::kEmbedding, -1, -1, 4 * kKiB4);
  for (uint32_t l = 0; l < shape.layers; ++l) {
    const uint64_t more = shape.mixed && l % 2 == 1 ? kKiB4 : 0;
    const int layer = static_cast<int>(l);
    add(PieceKind::kMixer, layer, -1, shape.mixer);
    add(shape.experts != 0 ? PieceKind::kRouter : PieceKind::kFfn, layer, -1, shape.ffn + more);
    for (uint32_t e = 0; e < shape.experts; ++e) {
      add(PieceKind::kExpert, layer, static_cast<int>(e), shape.expert + more);
    }
  }
  add(PieceKind::kFinal, -1, -1, kKiB4);
  for (uint32_t i = 0; i < shape.heads; ++i) add(PieceKind::kHead, -1, -1, 4 * kKiB4);
  return table;
}

inline uint32_t find_expert(const format::PieceTable& table, uint32_t layer, uint32_t expert) {
  for (uint32_t p = 0; p < table.pieces.size(); ++p) {
    if (table.pieces[p].layer == static_cast<int>(layer) &&
        table.pieces[p].expert == static_cast<int>(expert))
      return p;
  }
  return UINT32_MAX;
}

inline uint64_t pattern(uint32_t piece, uint64_t word) {
  uint64_t x = (uint64_t{piece} << 32 | word) * 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

// True when the slot holds exactly this piece.
inline bool holds_pattern(uint32_t piece, const std::byte* data, uint64_t bytes) {
  for (uint64_t w = 0; w < bytes / 8; ++w) {
    uint64_t value;
    std::memcpy(&value, data + 8 * w, 8);
    if (value != pattern(piece, w)) return false;
  }
  return true;
}

// Pieces are made up by read(); for a backend that reads by itself (`as_files`) they lie in a file
// in memory, and a hook on its reads does the same delays and failures.
class FakeReader : public PieceReader, public WholePieces, public io::ReadHook {
 public:
  explicit FakeReader(const format::PieceTable& table, bool as_files = false)
      : table_(table), reads_(table.pieces.size()), as_files_(as_files) {
    if (as_files) write_file();
  }
  ~FakeReader() override {
    if (memory_ >= 0) ::close(memory_);
  }

  uint64_t scratch_bytes() const override { return scratch; }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> given) override {
    if (given.size() < scratch) return fail(Code::kInternal, "no scratch");
    // A slot being read holds nothing that anyone may still look at.
    std::memset(slot.data(), 0xee, slot.size());
    const uint64_t begun = watch_ ? watch_->begin(piece) : 0;
    const uint64_t us = delay_of(piece);
    if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    const bool broken = breaks(piece, true);
    if (watch_) watch_->end(piece, table_.pieces[piece].bytes, begun, !broken);
    if (broken) return fail(Code::kIo, "piece {}: injected", piece);
    fill(piece, slot);
    ++reads_[piece];
    return table_.pieces[piece].bytes;
  }
  uint64_t largest_read(uint32_t piece) const override { return table_.pieces[piece].bytes; }

  // In `split` steps; its last one is the one that fails.
  uint32_t steps(uint32_t) const override { return split; }
  Expected<uint64_t> read_step(uint32_t piece, uint32_t step, std::span<std::byte> slot,
                               std::span<std::byte> given, const Landed& landed) override {
    if (split == 1) return PieceReader::read_step(piece, step, slot, given, landed);
    const uint64_t words = table_.pieces[piece].bytes / 8;
    const uint64_t begin = words * step / split, end = words * (step + 1) / split;
    const auto part = slot.subspan(8 * begin, 8 * (end - begin));
    std::memset(part.data(), 0xee, part.size());
    const uint32_t together = ++under_way_;
    for (uint32_t seen = most_together; seen < together;)
      if (most_together.compare_exchange_weak(seen, together)) break;
    const uint64_t begun = watch_ ? watch_->begin(piece) : 0;
    const uint64_t us = delay_of(piece);
    if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
    const bool broken = step + 1 == split && breaks(piece, true);
    if (watch_) watch_->end(piece, part.size(), begun, !broken);
    --under_way_;
    if (broken) return fail(Code::kIo, "piece {}: injected", piece);
    landed();
    for (uint64_t w = begin; w < end; ++w) {
      const uint64_t value = pattern(piece, w);
      std::memcpy(slot.data() + 8 * w, &value, 8);
    }
    if (step + 1 == split) ++reads_[piece];
    return part.size();
  }
  void watch(ReadWatch* watch) override {
    watch_ = watch;
    if (copies_) copies_->watch(watch);
  }

  std::string mode() const override { return "fake"; }
  WholePieces* whole() override { return as_files_ ? this : nullptr; }
  Copies& copies() override { return *copies_; }

  Expected<Place> begin(uint32_t piece) override {
    const uint64_t bytes = table_.pieces[piece].bytes;
    MILLRACE_ASSIGN(auto lease, copies_->begin(0, piece, bytes, offsets_[piece] + bytes));
    return Place{std::move(lease), offsets_[piece], bytes};
  }
  Status landed(uint32_t, const Place& place, Status read) override {
    copies_->end(place.lease, read ? nullptr : &read.error());
    if (!read) return with_context("injected", std::move(read.error()));
    return read;
  }
  Status check(uint32_t piece, const Place&, std::span<const std::byte>) override {
    ++reads_[piece];
    return {};
  }
  int64_t finished(const std::string&, uint64_t offset, std::span<std::byte> to, int64_t got,
                   std::chrono::microseconds* delay) override {
    const auto piece = static_cast<uint32_t>(
        std::upper_bound(offsets_.begin(), offsets_.end(), offset) - offsets_.begin() - 1);
    *delay = std::chrono::microseconds(delay_of(piece));
    // Both tries of the read that is to fail.
    if (!breaks(piece, ++tries_[piece] % 2 == 0)) {
      tries_[piece] = 0;
      return got;
    }
    std::memset(to.data(), 0xee, to.size());
    return -EIO;
  }

  void fail_next(uint32_t piece, uint32_t times) {
    std::lock_guard lock(mutex_);
    failures_[piece] = times;
  }
  void delay(uint32_t piece, uint64_t us) {
    std::lock_guard lock(mutex_);
    delays_[piece] = us;
  }
  uint32_t reads(uint32_t piece) const { return reads_[piece]; }

  uint64_t scratch = 0;
  uint64_t most_delay_us = 0;
  uint32_t split = 1;
  std::atomic<uint32_t> most_together{0};  // steps

 private:
  static void fill(uint32_t piece, std::span<std::byte> slot) {
    for (uint64_t w = 0; w < slot.size() / 8; ++w) {
      const uint64_t value = pattern(piece, w);
      std::memcpy(slot.data() + 8 * w, &value, 8);
    }
  }
  void write_file() {
    memory_ = ::memfd_create("pieces", MFD_CLOEXEC);
    uint64_t at = 0;
    for (uint32_t p = 0; p < table_.pieces.size(); ++p) {
      std::vector<std::byte> bytes(table_.pieces[p].bytes);
      fill(p, bytes);
      offsets_.push_back(at);
      if (::pwrite(memory_, bytes.data(), bytes.size(), static_cast<off_t>(at)) !=
          static_cast<ssize_t>(bytes.size()))
        std::abort();
      at += bytes.size();
    }
    tries_.resize(table_.pieces.size());
    auto made =
        Copies::open({{fmt::format("/proc/self/fd/{}", memory_)}}, io::Mode::kBuffered, this);
    if (!made) std::abort();
    copies_ = std::move(*made);
  }
  uint64_t delay_of(uint32_t piece) {
    std::lock_guard lock(mutex_);
    if (const auto fixed = delays_.find(piece); fixed != delays_.end()) return fixed->second;
    return most_delay_us > 0 ? random_() % most_delay_us : 0;
  }
  bool breaks(uint32_t piece, bool last) {
    std::lock_guard lock(mutex_);
    const auto broke = failures_.find(piece);
    if (broke == failures_.end() || broke->second == 0) return false;
    if (last) --broke->second;
    return true;
  }

  const format::PieceTable& table_;
  std::vector<std::atomic<uint32_t>> reads_;
  std::mutex mutex_;
  std::map<uint32_t, uint32_t> failures_;
  std::map<uint32_t, uint64_t> delays_;
  std::mt19937_64 random_{7};
  const bool as_files_;
  int memory_ = -1;
  std::vector<uint64_t> offsets_;
  std::vector<uint32_t> tries_;
  std::unique_ptr<Copies> copies_;
  ReadWatch* watch_ = nullptr;
  std::atomic<uint32_t> under_way_{0};
};

}  // namespace millrace::stream
