// Expert prefetch: reads experts that are likely to fire next before their router has spoken, while the
// disk has nothing else to do. It changes what is resident and when, never a result.
//
// Two guesses. Temporal: a layer fires again what it fired for the token before. Router: the next layer's
// router is applied to this layer's input. Whether either pays depends on the disk, the budget and the model:
// the tuner runs steps with and without and keeps what is faster.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/piece.h"

namespace millrace::stream {

enum class PrefetchKind : uint8_t { kOff, kTemporal, kRouter };
inline constexpr int kPrefetchKinds = 3;
std::string_view name(PrefetchKind kind);  // "off", "temporal", "router"

struct PrefetchStats {
  uint64_t issued = 0;     // reads begun
  uint64_t used = 0;       // the piece fired while it was there or on its way
  uint64_t wasted = 0;     // it was given up before it fired
  uint64_t cancelled = 0;  // the read had not begun when something else needed the disk
};

// Chooses a kind by the seconds that steps take: windows of each in turn, medians compared.
class PrefetchTuner {
 public:
  static constexpr uint32_t kWindow = 8;   // steps of a kind before the next one's turn
  static constexpr uint32_t kRounds = 4;   // windows of each kind
  static constexpr uint32_t kKept = 1024;  // steps for which a choice holds
  static constexpr double kGain = 0.97;  // a kind must take less than this share of the time of off

  PrefetchKind kind() const { return kind_; }
  bool decided() const { return decided_; }
  // A step of one or a few rows took so long; `missed`: experts had to be waited for.
  void step(double seconds, bool missed);

 private:
  void restart();
  void decide();
  PrefetchKind kind_ = PrefetchKind::kOff;
  bool decided_ = false;
  uint32_t in_window_ = 0, round_ = 0, kept_ = 0, missed_ = 0;
  std::array<std::vector<double>, kPrefetchKinds> seconds_;
};

// What to read next, and what became of it. Used by the consumer's thread alone.
class Prefetch {
 public:
  // `choice`: "auto", or a kind.
  static Expected<Prefetch> create(const format::PieceTable& table, std::string_view choice);

  PrefetchKind kind() const { return automatic_ ? tuner_.kind() : kind_; }
  bool automatic() const { return automatic_; }
  void step(uint32_t rows, double seconds, bool missed);

  // A layer's experts fired; `absent` tells whether a piece is neither resident nor being read.
  void fired(std::span<const uint32_t> pieces);
  void count_use(uint32_t piece, bool absent);
  // The router's guess for the layer after this one, likeliest first.
  void suggest(std::span<const uint32_t> pieces);
  std::span<const uint32_t> suggested() const { return suggested_; }
  void forget() { suggested_.clear(); }

  void issued(uint32_t piece);
  void cancelled(uint32_t piece);
  bool pending(uint32_t piece) const { return marked_[piece] != 0; }
  const PrefetchStats& stats() const { return stats_; }

 private:
  explicit Prefetch(const format::PieceTable& table);
  // More pieces in a pass than this say nothing of the next token.
  static constexpr size_t kMostFired = 64;

  bool automatic_ = false;
  PrefetchKind kind_ = PrefetchKind::kOff;
  PrefetchTuner tuner_;
  std::vector<int> layer_of_;                // by piece
  std::vector<int> next_layer_;              // by layer: the next one with experts
  std::vector<std::vector<uint32_t>> last_;  // by layer: what fired
  std::vector<uint32_t> suggested_;          // absent or not, likeliest first
  std::vector<uint8_t> marked_;              // issued and not yet used, by piece
  PrefetchStats stats_;
};

}  // namespace millrace::stream
