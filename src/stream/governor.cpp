#include "stream/governor.h"

#include <algorithm>

namespace millrace::stream {

void Governor::set_range(uint64_t wanted, uint64_t floor) {
  wanted_ = wanted;
  floor_ = std::min(floor, wanted);
  given_up_ = std::min(given_up_, range());
}

Governor::Action Governor::step(Pressure level, double now) {
  Action action;
  if (level != Pressure::kCalm) {
    pressed_ = now;
    // What was given up a moment ago has not helped yet; only a worse level asks for more.
    if (shed_ && now - *shed_ < kRepeat && level <= shed_at_) return action;
    ++(level == Pressure::kCritical ? criticals_ : warnings_);
    if (grown_ && now - *grown_ < kRelapse) {
      calm_ = std::min(calm_ * 2, kMostCalmTime);
      grown_.reset();
    }
    const uint64_t step = level == Pressure::kCritical ? range() : (range() + 7) / 8;
    const uint64_t given_up = std::min(range(), given_up_ + step);
    action.resize = given_up != given_up_;
    action.drop_cache = true;
    given_up_ = given_up;
    shed_ = now;
    shed_at_ = level;
    return action;
  }
  if (pressed_ && given_up_ == 0 && now - *pressed_ >= kMostCalmTime) calm_ = kCalmTime;
  if (given_up_ == 0 || now - pressed_.value_or(now) < calm_) return action;
  if (grown_ && now - *grown_ < kGrow) return action;
  given_up_ -= std::min(given_up_, std::max(given_up_ / 4, range() / 16 + 1));
  grown_ = now;
  action.resize = true;
  return action;
}

}  // namespace millrace::stream
