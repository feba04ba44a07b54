// Runs the program as a user does: arguments, standard input, separate outputs, signals, a
// terminal.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace millrace::test {

struct Outcome {
  int exit_code = -1;  // 128 + n when it died of signal n
  std::string out, err;
  double seconds = 0;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

struct RunAs {
  std::string input{};         // standard input, closed at its end
  double interrupt_after = 0;  // seconds until the first SIGINT; 0: none
  bool after_output = false;   // SIGINT once something was written to standard output
  int interrupts = 1;
};

std::string binary();                              // from MILLRACE_BINARY
std::string source_path(const std::string& name);  // in the repository

// A JSON array of token ids as the flags take it: 1,2,3.
std::string id_list(const nlohmann::json& ids);

// The program with the arguments given.
Outcome millrace(const std::vector<std::string>& arguments, const RunAs& as = {});

// A folder that is removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The program on a terminal of its own.
class TerminalSession {
 public:
  explicit TerminalSession(const std::vector<std::string>& arguments);
  ~TerminalSession();
  void type(const std::string& text);
  // Reads until the output since the last call has `text`; false after `seconds`.
  bool expect(const std::string& text, double seconds = 60);
  int wait(double seconds = 60);  // the exit code, or -1
  const std::string& screen() const { return screen_; }

 private:
  int terminal_ = -1;
  int child_ = -1;
  std::string screen_;
  size_t seen_ = 0;
};

}  // namespace millrace::test
