#include "api/wave.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace {
namespace {

// Beyond this the reads of a pass are small beside its products on any machine, and a pass that
// long can only be stopped between layers.
constexpr uint32_t kMostRows = 4096;
// The requests that are weighed: prompts of the whole context and of a quarter, and this many tokens
// of answer behind each.
constexpr uint32_t kAnswer = 256;

double request_bytes(const Model::Impl& model, const stream::ResidencyPlan& residency,
                     uint32_t context, uint32_t chunk) {
  double bytes = 0;
  for (const uint32_t prompt : {context, std::max(1u, context / 4)}) {
    const uint32_t whole = prompt / chunk, rest = prompt % chunk;
    if (whole > 0) bytes += whole * pass_traffic(model, residency, chunk).read;
    if (rest > 0) bytes += pass_traffic(model, residency, rest).read;
  }
  return bytes + 2.0 * kAnswer * pass_traffic(model, residency, 1).read;
}

std::string gib(double bytes) { return fmt::format("{:.2f} GiB", bytes / (1u << 30)); }

}  // namespace

Traffic pass_traffic(const Model::Impl& model, const stream::ResidencyPlan& residency,
                     uint32_t rows) {
  Traffic traffic;
  for (const uint32_t p : residency.scan) {
    const auto bytes = static_cast<double>(model.table.pieces[p].bytes);
    traffic.touched += bytes;
    if (!residency.pinned[p]) traffic.read += bytes;
  }
  int layer = -1;
  double share = 0;
  for (uint32_t p = 0; p < model.table.pieces.size(); ++p) {
    const auto& piece = model.table.pieces[p];
    if (piece.kind != format::PieceKind::kExpert) continue;
    if (piece.layer != layer) {
      layer = piece.layer;
      const auto& moe = *model.spec.layers[static_cast<size_t>(layer)].ffn.moe;
      share = 1 - std::pow(1 - static_cast<double>(moe.used) / moe.experts, rows);
    }
    const auto& c = residency.classes[residency.class_of[p]];
    const double held =
        std::min(1.0, static_cast<double>(c.pinned + c.shared) / std::max(1u, c.pieces));
    const double fired = share * static_cast<double>(piece.bytes);
    traffic.touched += fired;
    traffic.read += fired * (1 - held);
  }
  return traffic;
}

Wave choose_wave(const Model::Impl& model, const WaveLimits& limits) {
  Wave best{limits.smallest, ""};
  double least = std::numeric_limits<double>::infinity(), at_first = 0, of_best = 0;
  for (uint32_t rows = limits.smallest;;) {
    const uint64_t activations = limits.activations(rows);
    const auto residency = limits.residency(rows);
    if (rows > limits.smallest && (!residency || activations > limits.most_activations)) break;
    if (residency) {
      const double bytes = request_bytes(model, *residency, limits.context, rows);
      if (rows == limits.smallest) at_first = bytes;
      if (bytes < least) {
        least = bytes;
        of_best = pass_traffic(model, *residency, rows).read;
        best.rows = rows;
      }
    }
    const uint32_t most = std::min(limits.context, kMostRows);
    if (rows >= most) break;
    rows = std::min(rows * 2, most);
  }
  if (!(at_first > 0)) {
    best.why = "weights stay in memory";
  } else if (best.rows == limits.context) {
    best.why = fmt::format(
        "the whole context in one pass, which reads the streamed weights once, {}", gib(of_best));
  } else if (best.rows == limits.smallest) {
    best.why = fmt::format(
        "a larger one would read no less: its memory is worth more to weights; "
        "one reads {}",
        gib(of_best));
  } else {
    best.why = fmt::format(
        "each reads the streamed weights once, {}; {} of activations are worth "
        "more than the weights that would fit there",
        gib(of_best), gib(static_cast<double>(limits.activations(best.rows))));
  }
  return best;
}

}  // namespace millrace
