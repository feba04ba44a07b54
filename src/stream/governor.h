// How much of its weights' memory a model gives up while memory is short, and when it takes it back.
// Pure arithmetic on levels and times.
#pragma once

#include <cstdint>
#include <optional>

#include "stream/pressure.h"

namespace millrace::stream {

class Governor {
 public:
  // The arena may lie between `floor` (what a shortage leaves) and `wanted` (what the budget gives).
  void set_range(uint64_t wanted, uint64_t floor);

  struct Action {
    bool resize = false;      // allowed() has changed
    bool drop_cache = false;  // of the model's files
  };
  // A warning takes an eighth of the range at a time, at most every two seconds; a critical level all
  // of it. After a calm time a quarter of what was given up comes back, again and again; a warning
  // soon after that doubles the calm time that is asked for.
  Action step(Pressure level, double now);

  uint64_t allowed() const { return wanted_ - given_up_; }
  // The step was not made: the arena still has these bytes.
  void resize_failed(uint64_t bytes) { given_up_ = wanted_ - std::min(wanted_, bytes); }
  uint64_t given_up() const { return given_up_; }
  uint64_t warnings() const { return warnings_; }
  uint64_t criticals() const { return criticals_; }

  static constexpr double kRepeat = 2;     // seconds between two steps down
  static constexpr double kCalmTime = 30;  // without pressure before the first step up
  static constexpr double kMostCalmTime = 480;
  static constexpr double kGrow = 10;     // between two steps up
  static constexpr double kRelapse = 60;  // after a step up: it was too early

 private:
  uint64_t range() const { return wanted_ - floor_; }
  uint64_t wanted_ = 0, floor_ = 0, given_up_ = 0;
  uint64_t warnings_ = 0, criticals_ = 0;
  std::optional<double> shed_, pressed_, grown_;  // when, last
  Pressure shed_at_ = Pressure::kCalm;
  double calm_ = kCalmTime;
};

}  // namespace millrace::stream
