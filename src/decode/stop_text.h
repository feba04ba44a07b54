// Holds back text that could become a stop string, and cuts at the first one that does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::decode {

class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Text that is safe to show after `text` arrived; sets stopped() when a stop string is complete.
  std::string push(std::string_view text);
  // What was held back, at the end of the output.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace millrace::decode
