#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cli/size.h"

namespace millrace::cli {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kRedrawEvery = milliseconds(100);
constexpr auto kLineEvery = seconds(5);
constexpr unsigned kBarCells = 24;
constexpr std::string_view kEraseLine = "\r\x1b[K";

void to_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::string amount(Unit unit, uint64_t done, uint64_t total) {
  if (unit == Unit::kTokens) return fmt::format("{} / {} tokens", done, total);
  return fmt::format("{} / {}", format_size(static_cast<double>(done)),
                     format_size(static_cast<double>(total)));
}

std::string rate(Unit unit, double per_second) {
  return unit == Unit::kTokens ? fmt::format("{:.1f} tok/s", per_second) : format_rate(per_second);
}

}  // namespace

Terminal Terminal::detect() {
  Terminal terminal;
  terminal.in_tty = ::isatty(STDIN_FILENO) != 0;
  terminal.out_tty = ::isatty(STDOUT_FILENO) != 0;
  terminal.err_tty = ::isatty(STDERR_FILENO) != 0;
  const char* term = std::getenv("TERM");
  terminal.dumb = term == nullptr || std::string_view(term) == "dumb";
  return terminal;
}

unsigned terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool put(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return std::fflush(stdout) == 0 && written;
}

Progress::Progress(const Terminal& terminal, bool quiet, std::string label, Unit unit)
    : redraw_(terminal.can_redraw()),
      quiet_(quiet),
      label_(std::move(label)),
      unit_(unit),
      start_(Clock::now()),
      last_(start_) {}

void Progress::update(uint64_t done, uint64_t total, std::string_view what) {
  if (quiet_ || total == 0) return;
  const auto now = Clock::now();
  if (!started_) {
    started_ = true;
    first_done_ = done;
  }
  if (redraw_) {
    // Work that takes no time shows nothing.
    if (now - last_ < kRedrawEvery) return;
    std::string text = line(done, total, what);
    const size_t width = terminal_width();
    if (text.size() >= width) text.resize(width - 1);
    to_stderr(fmt::format("{}{}", kEraseLine, text));
    drawn_ = true;
  } else {
    if (now - last_ < kLineEvery) return;
    to_stderr(line(done, total, what) + "\n");
  }
  last_ = now;
}

void Progress::finish() {
  if (drawn_) to_stderr(kEraseLine);
  drawn_ = false;
}

std::string Progress::line(uint64_t done, uint64_t total, std::string_view what) const {
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const double elapsed = duration<double>(Clock::now() - start_).count();
  const double speed =
      elapsed > 0 && done > first_done_ ? static_cast<double>(done - first_done_) / elapsed : 0.0;
  std::string text = label_;
  if (redraw_) {
    const auto full = static_cast<unsigned>(share * kBarCells);
    text += fmt::format(" [{:#<{}}{:.<{}}]", "", full, "", kBarCells - full);
  }
  text += fmt::format(" {:3.0f} %  {}", share * 100, amount(unit_, done, total));
  if (speed > 0) {
    text += fmt::format("  {}", rate(unit_, speed));
    text += fmt::format("  {} left", format_seconds(static_cast<double>(total - done) / speed));
  }
  if (!what.empty()) text += fmt::format("  {}", what);
  return text;
}

}  // namespace millrace::cli
