#include "stream/choose_backend.h"

#include <algorithm>
#include <array>

#include "base/numeric.h"
#include "io/probe.h"
#include "io/uring.h"

namespace millrace::stream {
namespace {

constexpr unsigned kUnmeasuredDepth = 4;
// Never fewer than when nothing is measured: what a host has in its cache comes at any depth, what it has
// to fetch does not.
constexpr std::array<unsigned, 4> kDepths = {kUnmeasuredDepth, 8, 16, 32};
constexpr double kSeconds = 0.3;
// What a probe reads at a time: of larger pieces a part, so that it is done within its time.
constexpr uint64_t kMostRequest = uint64_t{8} << 20;
// Below this a run is over before a measurement has paid for itself.
constexpr uint64_t kLeastFile = uint64_t{256} << 20;

std::string describe(const io::ReadRate& rate) {
  return fmt::format("{} {} deep {:.0f} MB/s", io::name(rate.via), rate.depth,
                     rate.bytes_per_second() / 1e6);
}

struct Measured {
  BackendKind kind = BackendKind::kPread;
  unsigned depth = kUnmeasuredDepth;
  std::string reason;
  std::vector<io::ReadRate> rates;
};

// What does not need to be measured, or cannot be. Empty: measure.
std::string why_not_measured(PieceReader& reader, const BackendFacts& facts) {
  WholePieces* const pieces = reader.whole();
  if (pieces == nullptr)
    return "source files are rearranged while they are read: by threads, as many as have a buffer";
  if (facts.read_bytes == 0) return "nothing is read again once it is loaded";
  const io::File& file = pieces->copies().file(0);
  if (file.mode() != io::Mode::kDirect)
    return "reads through the page cache are copies, which take threads";
  if (file.size() < kLeastFile) return "the model is too small for a measurement to pay";
  return {};
}

Measured measure(PieceReader& reader, const BackendFacts& facts, const std::string& no_uring) {
  Measured out;
  const bool pread = facts.kind != BackendKind::kUring;
  const bool uring = facts.kind != BackendKind::kPread && no_uring.empty();
  const uint64_t request = std::min(round_up(facts.read_bytes, io::kAlign), kMostRequest);
  io::CurveLimits limits;
  const unsigned asked[] = {facts.depth};
  limits.depths = facts.depth != 0 ? std::span<const unsigned>(asked) : kDepths;
  limits.pread = pread;
  limits.uring = uring;
  limits.seconds = kSeconds;
  limits.memory = facts.arena;
  // A file of its own: a probe is not to meet faults that are injected for the model.
  auto file = io::File::open(reader.whole()->copies().file(0).path(), io::Mode::kDirect);
  if (!file) {
    out.reason = fmt::format("not measured: {}", file.error().message);
    return out;
  }
  const auto rates = io::probe_curve(*file, request, limits);
  if (!rates) {
    out.reason = fmt::format("not measured: {}", rates.error().message);
    return out;
  }
  out.rates = *rates;
  const io::ReadRate* best = io::pick(*rates);
  if (best == nullptr) {
    out.reason = "not measured: the budget has no room for it";
    return out;
  }
  out.kind = best->via == io::Via::kUring ? BackendKind::kUring : BackendKind::kPread;
  out.depth = best->depth;
  out.reason = fmt::format("measured with reads of {:.1f} MiB: {}",
                           static_cast<double>(request) / (1 << 20), describe(*best));
  // The best of the other way, for comparison.
  const io::ReadRate* other = nullptr;
  for (const io::ReadRate& rate : *rates) {
    if (rate.via == best->via) continue;
    if (other == nullptr || rate.bytes_per_second() > other->bytes_per_second()) other = &rate;
  }
  if (other != nullptr) {
    const double ratio = best->bytes_per_second() / other->bytes_per_second();
    out.reason += fmt::format(", {}{}", describe(*other),
                              ratio < 1.1 ? " (as fast; less processor time decides)" : "");
  }
  return out;
}

}  // namespace

ChosenBackend choose_backend(PieceReader& reader, const BackendFacts& facts) {
  const std::string no_uring = io::why_no_io_uring();
  Measured choice;
  choice.kind = facts.kind == BackendKind::kUring ? BackendKind::kUring : BackendKind::kPread;
  if (facts.depth != 0) choice.depth = facts.depth;
  if (facts.depth == 0 && facts.buffers != 0) choice.depth = facts.buffers;
  const bool settled = facts.kind != BackendKind::kAuto && facts.depth != 0;
  const std::string why = why_not_measured(reader, facts);
  if (settled) {
    choice.reason = "as requested";
  } else if (!why.empty()) {
    choice.reason = facts.kind == BackendKind::kAuto ? why : fmt::format("as requested; {}", why);
  } else {
    const BackendKind asked = choice.kind;
    choice = measure(reader, facts, no_uring);
    if (facts.depth != 0) choice.depth = facts.depth;
    if (facts.kind != BackendKind::kAuto) {
      choice.kind = asked;
      choice.reason = fmt::format("as requested; {}", choice.reason);
    }
  }

  ChosenBackend out;
  // Each disk gets as many; but where each read takes a buffer, their number is settled.
  const bool each_disk = facts.depth == 0 && facts.buffers == 0;
  out.depth = choice.depth * (each_disk ? std::max(1u, reader.devices()) : 1);
  if (facts.buffers == 0) out.depth = std::min(out.depth, std::max(1u, facts.capacity));
  out.reason = choice.reason;
  out.known.depth = out.depth;
  out.known.read_bytes = facts.read_bytes;
  out.known.rates = std::move(choice.rates);
  if (facts.kind != BackendKind::kPread && !no_uring.empty())
    out.reason += fmt::format("; no io_uring: {}", no_uring);
  if (choice.kind == BackendKind::kUring) {
    auto uring = make_uring_backend(reader, facts.watch, out.depth, facts.capacity);
    if (uring) {
      out.backend = std::move(*uring);
      out.known.uring = true;
      return out;
    }
    out.reason = fmt::format("although io_uring was {}: {}",
                             facts.kind == BackendKind::kUring ? "asked for" : "chosen",
                             uring.error().message);
    if (facts.kind == BackendKind::kUring)
      out.known.fallback = fmt::format("io_uring was asked for, and a pool of threads reads: {}",
                                       uring.error().message);
  }
  out.backend = make_pread_pool(reader, facts.watch, out.depth, facts.capacity);
  return out;
}

}  // namespace millrace::stream
