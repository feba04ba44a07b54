#include "cli/peer.h"

#include <sys/wait.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/status.h"

namespace millrace::cli {
namespace {

constexpr size_t kMostOutput = 1 << 20;

bool is_test(std::string_view word) {
  if (word.size() < 3 || (!word.starts_with("pp") && !word.starts_with("tg"))) return false;
  for (const char c : word.substr(2))
    if (c < '0' || c > '9') return false;
  return true;
}

// Words of a line; bars, colons and equal signs part words too.
std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  const auto parts = [](char c) {
    return c == '|' || c == ':' || c == '=' || c == ',' ||
           std::isspace(static_cast<unsigned char>(c)) != 0;
  };
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && !parts(line[i])) continue;
    if (i > begin) words.push_back(line.substr(begin, i - begin));
    begin = i + 1;
  }
  return words;
}

void add_json(const nlohmann::json& value, Speeds* speeds) {
  if (value.is_array()) {
    for (const auto& part : value) add_json(part, speeds);
    return;
  }
  const auto number = [&value](const char* key) {
    return value.contains(key) && value[key].is_number() ? value[key].get<double>() : 0.0;
  };
  if (!value.is_object() || number("avg_ts") <= 0) return;
  const auto prompt = static_cast<uint64_t>(number("n_prompt")),
             generated = static_cast<uint64_t>(number("n_gen"));
  // A test of both at once has no counterpart here.
  if (prompt > 0 && generated == 0) (*speeds)["pp" + std::to_string(prompt)] = number("avg_ts");
  if (generated > 0 && prompt == 0) (*speeds)["tg" + std::to_string(generated)] = number("avg_ts");
}

void add_line(std::string_view line, Speeds* speeds) {
  const auto words = words_of(line);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_test(words[i])) continue;
    for (size_t j = i + 1; j < words.size(); ++j) {
      double value = 0;
      const char* end = words[j].data() + words[j].size();
      const auto [after, error] = std::from_chars(words[j].data(), end, value);
      if (error != std::errc{} || after != end || !(value > 0)) continue;
      (*speeds)[std::string(words[i])] = value;
      return;
    }
  }
}

}  // namespace

Speeds parse_speeds(std::string_view text) {
  Speeds speeds;
  // An array over several lines, if there is one.
  if (const size_t open = text.find('['); open != std::string_view::npos) {
    const size_t close = text.rfind(']');
    if (close != std::string_view::npos && close > open)
      add_json(nlohmann::json::parse(text.substr(open, close - open + 1), nullptr, false), &speeds);
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const size_t first = line.find_first_not_of(" \t");
    if (first != std::string_view::npos && line[first] == '{') {
      add_json(nlohmann::json::parse(line, nullptr, false), &speeds);
    } else {
      add_line(line, &speeds);
    }
    begin = end + 1;
  }
  return speeds;
}

Expected<PeerRun> run_peer(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "re");
  if (!pipe) return fail(Code::kIo, "cannot start '{}'", command);
  PeerRun run;
  std::array<char, 4096> part;
  for (size_t n; (n = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    if (run.output.size() < kMostOutput) run.output.append(part.data(), n);
  const int status = pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return run;
}

}  // namespace millrace::cli
