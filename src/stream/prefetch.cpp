#include "stream/prefetch.h"

#include <algorithm>

namespace millrace::stream {
namespace {

constexpr std::array<std::string_view, kPrefetchKinds> kNames = {"off", "temporal", "router"};
constexpr uint32_t kMostRows = 16;  // of a step whose time tells about decoding

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::string_view name(PrefetchKind kind) { return kNames[static_cast<size_t>(kind)]; }

void PrefetchTuner::restart() {
  for (auto& seconds : seconds_) seconds.clear();
  decided_ = false;
  kind_ = PrefetchKind::kOff;
  in_window_ = round_ = kept_ = missed_ = 0;
}

void PrefetchTuner::decide() {
  const double off = median(seconds_[0]);
  size_t best = 0;
  double least = off * kGain;
  for (size_t k = 1; k < seconds_.size(); ++k) {
    const double value = median(seconds_[k]);
    if (value < least) best = k, least = value;
  }
  kind_ = static_cast<PrefetchKind>(best);
  decided_ = true;
  kept_ = 0;
}

void PrefetchTuner::step(double seconds, bool missed) {
  if (decided_) {
    if (++kept_ >= kKept) restart();
    return;
  }
  // While nothing is missed there is nothing to gain: the trial waits for it.
  if (kind_ == PrefetchKind::kOff && round_ == 0) {
    missed_ = missed ? missed_ + 1 : 0;
    if (missed_ == 0) {
      in_window_ = 0;
      seconds_[0].clear();
      return;
    }
  }
  // The first step of a window still uses what the kind before it left behind.
  if (in_window_ > 0) seconds_[static_cast<size_t>(kind_)].push_back(seconds);
  if (++in_window_ < kWindow) return;
  in_window_ = 0;
  const int next = (static_cast<int>(kind_) + 1) % kPrefetchKinds;
  kind_ = static_cast<PrefetchKind>(next);
  if (next == 0 && ++round_ == kRounds) decide();
}

Prefetch::Prefetch(const format::PieceTable& table) : marked_(table.pieces.size(), 0) {
  int most = 0;
  layer_of_.reserve(table.pieces.size());
  for (const format::Piece& piece : table.pieces) {
    layer_of_.push_back(std::max(piece.layer, 0));
    most = std::max(most, piece.layer);
  }
  const size_t layers = static_cast<size_t>(most) + 1;
  std::vector<uint8_t> has(layers, 0);
  for (size_t p = 0; p < table.pieces.size(); ++p)
    if (table.pieces[p].kind == format::PieceKind::kExpert)
      has[static_cast<size_t>(layer_of_[p])] = 1;
  next_layer_.assign(layers, -1);
  for (size_t l = 0; l < layers; ++l) {
    for (size_t step = 1; step <= layers && next_layer_[l] < 0; ++step)
      if (has[(l + step) % layers]) next_layer_[l] = static_cast<int>((l + step) % layers);
  }
  last_.resize(layers);
  for (auto& last : last_) last.reserve(kMostFired);
  suggested_.reserve(kMostFired);
}

Expected<Prefetch> Prefetch::create(const format::PieceTable& table, std::string_view choice) {
  Prefetch out(table);
  if (choice.empty() || choice == "auto") {
    out.automatic_ = true;
    return out;
  }
  const auto found = std::find(kNames.begin(), kNames.end(), choice);
  if (found == kNames.end())
    return fail(Code::kInvalid, "there is no prefetch '{}'; there are auto, {}", choice,
                fmt::join(kNames, ", "));
  out.kind_ = static_cast<PrefetchKind>(found - kNames.begin());
  return out;
}

void Prefetch::step(uint32_t rows, double seconds, bool missed) {
  if (automatic_ && rows <= kMostRows) tuner_.step(seconds / rows, missed);
}

void Prefetch::fired(std::span<const uint32_t> pieces) {
  if (pieces.empty()) return;
  const auto layer = static_cast<size_t>(layer_of_[pieces.front()]);
  suggested_.clear();
  auto& last = last_[layer];
  last.clear();
  if (pieces.size() <= kMostFired) last.assign(pieces.begin(), pieces.end());
  if (kind() != PrefetchKind::kTemporal || next_layer_[layer] < 0) return;
  const auto& next = last_[static_cast<size_t>(next_layer_[layer])];
  suggested_.assign(next.begin(), next.end());
}

void Prefetch::count_use(uint32_t piece, bool absent) {
  if (!marked_[piece]) return;
  marked_[piece] = 0;
  ++(absent ? stats_.wasted : stats_.used);
}

void Prefetch::suggest(std::span<const uint32_t> pieces) {
  suggested_.assign(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(
                                                         std::min(pieces.size(), kMostFired)));
}

void Prefetch::issued(uint32_t piece) {
  if (marked_[piece]) ++stats_.wasted;  // read before, and given up since
  marked_[piece] = 1;
  ++stats_.issued;
}

void Prefetch::cancelled(uint32_t piece) {
  marked_[piece] = 0;
  --stats_.issued;
  ++stats_.cancelled;
}

}  // namespace millrace::stream
