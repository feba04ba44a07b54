// What the commands share: the global flags, how results become exit codes, and the list of
// commands.
//
// A command is one file with one add_<name>(): it declares its flags and stores a callback that
// sets Cli::exit_code. Exit codes: 0 done, 1 error, 2 the command line is wrong, 130 stopped by
// Ctrl-C.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cli/terminal.h"
#include "millrace/status.h"

namespace CLI {
class App;
}

namespace millrace::cli {

inline constexpr int kOk = 0;
inline constexpr int kError = 1;
inline constexpr int kUsage = 2;
inline constexpr int kInterrupted = 130;

struct Cli {
  Terminal terminal;
  bool verbose = false;
  bool quiet = false;
  int exit_code = kOk;

  // Prints the error on standard error and returns its exit code.
  int report(const Error& error) const;
  // One JSON object on standard output.
  int print_json(const nlohmann::ordered_json& value) const;
  // Text on standard output; an error when it cannot be written.
  int print(std::string_view text) const;
};

// A wrong command line found after parsing: shown like every other usage error, exit code 2.
[[noreturn]] void usage_error(const std::string& flag, const std::string& message);

void add_pack(CLI::App& app, Cli& cli);
void add_verify(CLI::App& app, Cli& cli);
void add_unpack(CLI::App& app, Cli& cli);
void add_plan(CLI::App& app, Cli& cli);
void add_run(CLI::App& app, Cli& cli);
void add_tokenize(CLI::App& app, Cli& cli);
void add_check(CLI::App& app, Cli& cli);
void add_families(CLI::App& app, Cli& cli);
void add_replay(CLI::App& app, Cli& cli);
void add_bench(CLI::App& app, Cli& cli);
void add_doctor(CLI::App& app, Cli& cli);
void add_soak(CLI::App& app, Cli& cli);

}  // namespace millrace::cli
