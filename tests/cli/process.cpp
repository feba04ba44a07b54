#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace millrace::test {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// In the child. Must not throw: the child would go on as a second test program.
[[noreturn]] void exec(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Pipe {
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  void close_end(int end) {
    if (ends[end] >= 0) ::close(ends[end]);
    ends[end] = -1;
  }
  int ends[2] = {-1, -1};
};

// Reads what is there; closes the pipe at its end.
void drain(Pipe& from, std::string* to) {
  char buffer[65536];
  const ssize_t got = ::read(from.ends[0], buffer, sizeof buffer);
  if (got > 0) {
    to->append(buffer, static_cast<size_t>(got));
  } else {
    from.close_end(0);
  }
}

}  // namespace

std::string binary() {
  const char* path = std::getenv("MILLRACE_BINARY");
  if (path == nullptr || *path == '\0') throw std::runtime_error("MILLRACE_BINARY is not set");
  return path;
}

std::string source_path(const std::string& name) {
  return std::string(MILLRACE_SOURCE_DIR) + "/" + name;
}

std::string id_list(const nlohmann::json& ids) {
  std::string text;
  for (const auto& id : ids) {
    if (!text.empty()) text += ',';
    text += id.dump();
  }
  return text;
}

Outcome millrace(const std::vector<std::string>& arguments, const RunAs& as) {
  const std::string program = binary();
  Pipe in, out, err;
  const auto start = Clock::now();
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    ::dup2(in.ends[0], STDIN_FILENO);
    ::dup2(out.ends[1], STDOUT_FILENO);
    ::dup2(err.ends[1], STDERR_FILENO);
    exec(program, arguments);
  }
  in.close_end(0);
  out.close_end(1);
  err.close_end(1);
  // The inputs of these tests are smaller than a pipe holds.
  [[maybe_unused]] const auto written = ::write(in.ends[1], as.input.data(), as.input.size());
  in.close_end(1);

  Outcome outcome;
  int interrupts_left = as.interrupt_after > 0 || as.after_output ? as.interrupts : 0;
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    pollfd waiting[2] = {{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    ::poll(waiting, 2, 5);
    if (waiting[0].revents != 0) drain(out, &outcome.out);
    if (waiting[1].revents != 0) drain(err, &outcome.err);
    const bool due = as.after_output ? !outcome.out.empty() : since(start) >= as.interrupt_after;
    if (interrupts_left > 0 && due) {
      ::kill(child, SIGINT);
      --interrupts_left;
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  outcome.exit_code = exit_code_of(status);
  outcome.seconds = since(start);
  return outcome;
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "millrace-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

TerminalSession::TerminalSession(const std::vector<std::string>& arguments) {
  const std::string program = binary();
  child_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
  if (child_ < 0) throw std::runtime_error("no terminal");
  if (child_ == 0) {
    ::setenv("TERM", "xterm", 1);
    exec(program, arguments);
  }
}

TerminalSession::~TerminalSession() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  ::close(terminal_);
}

void TerminalSession::type(const std::string& text) {
  [[maybe_unused]] const auto written = ::write(terminal_, text.data(), text.size());
}

bool TerminalSession::expect(const std::string& text, double seconds) {
  const auto start = Clock::now();
  for (;;) {
    if (const size_t at = screen_.find(text, seen_); at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    if (since(start) > seconds) return false;
    pollfd waiting = {terminal_, POLLIN, 0};
    if (::poll(&waiting, 1, 50) <= 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(terminal_, buffer, sizeof buffer);
    if (got <= 0) return screen_.find(text, seen_) != std::string::npos;
    screen_.append(buffer, static_cast<size_t>(got));
  }
}

int TerminalSession::wait(double seconds) {
  const auto start = Clock::now();
  while (since(start) < seconds) {
    int status = 0;
    if (::waitpid(child_, &status, WNOHANG) == child_) {
      child_ = -1;
      return exit_code_of(status);
    }
    expect("\x01never\x01", 0.05);  // keep reading, or the program may block on its output
  }
  return -1;
}

}  // namespace millrace::test
