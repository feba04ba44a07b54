// What a person sees while something runs: progress on a terminal, few plain lines in a pipe.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::cli {

struct Terminal {
  bool in_tty = false;   // standard input
  bool out_tty = false;  // standard output
  bool err_tty = false;  // standard error, where progress goes
  bool dumb = false;     // no cursor movement (TERM=dumb)

  static Terminal detect();
  bool can_redraw() const { return err_tty && !dumb; }
};

unsigned terminal_width();  // of standard error, 80 when unknown

// Writes to standard output and flushes, so that a reader sees each piece of text as it is made.
// False when the other end is gone or the disk is full.
bool put(std::string_view text);

enum class Unit { kBytes, kTokens };

// On a terminal: one line that redraws itself, at most ten times a second, erased by finish().
// In a pipe: a line at most every few seconds, and none for work that is over before the first.
class Progress {
 public:
  Progress(const Terminal& terminal, bool quiet, std::string label, Unit unit);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(uint64_t done, uint64_t total, std::string_view what = {});
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string line(uint64_t done, uint64_t total, std::string_view what) const;

  bool redraw_ = false;
  bool quiet_ = false;
  bool drawn_ = false;
  std::string label_;
  Unit unit_;
  Clock::time_point start_;
  Clock::time_point last_;
  uint64_t first_done_ = 0;  // a resumed pack starts late: rates count from here
  bool started_ = false;
};

}  // namespace millrace::cli
