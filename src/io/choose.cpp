#include "io/choose.h"

#include <fmt/format.h>

namespace millrace::io {
namespace {

double gib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

ModeChoice choose_mode(Request request, const ModeFacts& facts, const std::string& path) {
  if (request == Request::kBuffered) return {Mode::kBuffered, "buffered: as requested"};
  std::string why;
  if (request == Request::kDirect) {
    why = "as requested";
  } else if (facts.ceiling) {
    why = "a memory ceiling is set, and cached pages would count against it";
  } else if (facts.weights > facts.available) {
    why = fmt::format("{:.1f} GiB of weights do not fit in {:.1f} GiB of free memory",
                      gib(facts.weights), gib(facts.available));
  } else {
    return {Mode::kBuffered,
            fmt::format("buffered: {:.1f} GiB of weights fit in {:.1f} GiB of free memory",
                        gib(facts.weights), gib(facts.available))};
  }
  const std::string obstacle = why_not_direct(path);
  if (obstacle.empty()) return {Mode::kDirect, "direct: " + why};
  return {Mode::kBuffered,
          fmt::format("buffered, although direct was chosen ({}): {}", why, obstacle)};
}

}  // namespace millrace::io
