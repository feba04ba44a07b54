// Piece tables of made-up models, and a reader that needs no disk.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>

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

class FakeReader : public PieceReader {
 public:
  explicit FakeReader(const format::PieceTable& table)
      : table_(table), reads_(table.pieces.size()) {}

  uint64_t scratch_bytes() const override { return scratch; }

  Expected<uint64_t> read(uint32_t piece, std::span<std::byte> slot,
                          std::span<std::byte> given) override {
    if (given.size() < scratch) return fail(Code::kInternal, "no scratch");
    // A slot being read holds nothing that anyone may still look at.
    std::memset(slot.data(), 0xee, slot.size());
    uint64_t delay = 0;
    bool broken = false;
    {
      std::lock_guard lock(mutex_);
      if (most_delay_us > 0) delay = random_() % most_delay_us;
      if (const auto fixed = delays_.find(piece); fixed != delays_.end()) delay = fixed->second;
      auto broke = failures_.find(piece);
      if (broke != failures_.end() && broke->second > 0) {
        --broke->second;
        broken = true;
      }
    }
    if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
    if (broken) return fail(Code::kIo, "piece {}: injected", piece);
    for (uint64_t w = 0; w < slot.size() / 8; ++w) {
      const uint64_t value = pattern(piece, w);
      std::memcpy(slot.data() + 8 * w, &value, 8);
    }
    ++reads_[piece];
    return table_.pieces[piece].bytes;
  }

  std::string mode() const override { return "fake"; }

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

 private:
  const format::PieceTable& table_;
  std::vector<std::atomic<uint32_t>> reads_;
  std::mutex mutex_;
  std::map<uint32_t, uint32_t> failures_;
  std::map<uint32_t, uint64_t> delays_;
  std::mt19937_64 random_{7};
};

}  // namespace millrace::stream
