#include "cli/prompt.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "cli/interrupt.h"

namespace millrace::cli {

Expected<std::string> read_text_file(const std::string& flag, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return fail(Code::kInvalid, "{}: '{}' is a folder", flag, path);
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return fail(Code::kNotFound, "{}: '{}' cannot be opened: {}", flag, path, std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return fail(Code::kIo, "{}: '{}' cannot be read", flag, path);
  return text;
}

// read(2), not iostreams: an interrupted read has to end it.
Expected<std::string> read_stdin() {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got == 0) return text;
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
    } else if (interrupted()) {
      return fail(Code::kCancelled, "while reading standard input");
    } else if (errno != EINTR) {
      return fail(Code::kIo, "standard input cannot be read");
    }
  }
}

Expected<std::vector<Token>> chat_prompt(const Model& model, const std::vector<Message>& messages) {
  nlohmann::json list = nlohmann::json::array();
  for (const Message& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  const std::string json = list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  MILLRACE_ASSIGN(const std::string rendered, model.apply_chat_template(json));
  // The template writes the special tokens itself.
  return model.tokenize(rendered, /*add_special=*/false, /*parse_special=*/true);
}

}  // namespace millrace::cli
