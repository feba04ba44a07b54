#include "decode/stop_text.h"

#include <algorithm>

namespace millrace::decode {

std::string StopText::push(std::string_view text) {
  if (stopped_) return {};
  held_.append(text);
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) cut = std::min(cut, held_.find(stop));
  }
  if (cut != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, cut);
    held_.clear();
    return out;
  }
  // Keep the longest tail that is the beginning of a stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.empty() ? 0 : stop.size() - 1, held_.size()); n > keep; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) {
        keep = n;
        break;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopText::flush() {
  std::string out = std::move(held_);
  held_.clear();
  return out;
}

}  // namespace millrace::decode
