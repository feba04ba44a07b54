// One answer: the text as it is made, prefill progress before it, and the numbers behind it.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "millrace/millrace.h"

namespace millrace::cli {

struct Answer {
  Engine::Completion completion;
  IoReport before;       // counters when the request was submitted
  IoReport first_token;  // when prefill was over
  IoReport after;
  bool ends_line = true;  // the text printed so far ends with a newline
};

// Generates; with `stream`, text goes to standard output as it comes. Ctrl-C ends it after the
// current step with FinishReason::kCancelled.
Expected<Answer> generate_answer(const Cli& cli, Engine& engine, Request request, bool stream);

// What was read, hit and held, for people (standard error) and for programs.
std::string answer_report(const Engine& engine, const Answer& answer);
nlohmann::ordered_json answer_json(const Engine& engine, const Answer& answer);

// The ceiling and what is held of it by whom.
nlohmann::ordered_json memory_json(const MemoryReport& memory);

// The choices the engine made on this machine, one a line.
std::string choices_report(const Engine& engine);

}  // namespace millrace::cli
