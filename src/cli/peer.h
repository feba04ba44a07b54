// Another engine's benchmark, run as a command, and the speeds in what it prints.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "millrace/status.h"

namespace millrace::cli {

// Tokens per second by test: "pp256" (a prompt of 256 tokens), "tg48" (48 tokens one by one).
using Speeds = std::map<std::string, double>;

// Reads, wherever they are in the text:
//   JSON objects with n_prompt, n_gen and avg_ts (an array of them, or one a line);
//   table rows in which one cell is a test ("| pp256 |") and a later one starts with the speed;
//   lines "pp256 150.2" (also with ':' or '=' between).
// Of a test that comes twice, the last value counts. Empty when there is none.
Speeds parse_speeds(std::string_view text);

struct PeerRun {
  std::string output;  // standard output, 1 MiB at most
  int exit_code = 0;
};
// Runs `command` with /bin/sh; its standard error is ours. An error when it cannot be started.
Expected<PeerRun> run_peer(const std::string& command);

}  // namespace millrace::cli
