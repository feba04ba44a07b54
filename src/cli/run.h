// What `run` was asked to do; shared with its chat mode.
#pragma once

#include <string>

#include "cli/cli.h"
#include "cli/prompt.h"
#include "millrace/millrace.h"

namespace millrace::cli {

struct RunOptions {
  EngineOptions engine;
  Request request;  // sampling, limits, stop strings; the prompt is filled in later
  bool chat = false;
  std::string system;       // chat: system message
  bool has_prompt = false;  // one of the three prompt flags was given
  std::string prompt_text;  // from --prompt
  std::string prompt_file;
  std::string prompt_ids;
  bool metrics = false, json = false, explain = false;
};

// Talks on a terminal until end of input or /exit. Returns the exit code.
int chat_session(const Cli& cli, const RunOptions& options, Engine& engine);

}  // namespace millrace::cli
