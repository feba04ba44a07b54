// Cuts a stream of bytes into complete UTF-8. Invalid bytes become U+FFFD, one for each maximal
// part of a character (the practice that Unicode recommends and that Rust and Python follow).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

class Utf8Stream {
 public:
  // Appends to `out` all that is complete now.
  void push(std::string_view bytes, std::string& out);
  void flush(std::string& out);

 private:
  std::string held_;  // the beginning of a character, at most 3 bytes
};

// The offset of the first byte that is not part of valid UTF-8; npos if there is none.
std::size_t find_invalid_utf8(std::string_view text);

}  // namespace millrace
