// The conversation of `millrace run --chat` on a terminal.

#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "cli/answer.h"
#include "cli/interrupt.h"
#include "cli/run.h"
#include "cli/size.h"

namespace millrace::cli {
namespace {

constexpr std::string_view kHelp =
    "  /reset        forget the conversation\n"
    "  /memory SIZE  another ceiling for the process, as --memory; auto: as it was started\n"
    "  /budget SIZE  another bound for weights, as --budget\n"
    "  /help         this list\n"
    "  /exit         leave (so does Ctrl-D)\n"
    "  Ctrl-C stops an answer; at the prompt, or a second time, it leaves\n";

void note(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// One line from the terminal, without its newline. Nothing at the end of input or on Ctrl-C.
class LineReader {
 public:
  std::optional<std::string> next() {
    for (;;) {
      if (const size_t at = pending_.find('\n'); at != std::string::npos) {
        std::string line = pending_.substr(0, at);
        pending_.erase(0, at + 1);
        return line;
      }
      if (!wait_for_input()) {
        if (pending_.empty()) return std::nullopt;
        return std::exchange(pending_, {});
      }
      char buffer[4096];
      const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (got > 0) {
        pending_.append(buffer, static_cast<size_t>(got));
      } else if (got < 0 && errno == EINTR && !interrupted()) {
        continue;  // the window was resized, or the like
      } else {
        if (pending_.empty()) return std::nullopt;
        return std::exchange(pending_, {});
      }
    }
  }

 private:
  // False on Ctrl-C. The short naps catch one that came just before the wait, or on another thread.
  static bool wait_for_input() {
    constexpr int kNapMs = 100;
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    while (!interrupted() && ::poll(&input, 1, kNapMs) <= 0) {
    }
    return !interrupted();
  }

  std::string pending_;
};

std::vector<Message> opening(const RunOptions& options) {
  if (options.system.empty()) return {};
  return {{"system", options.system}};
}

// "/memory 2G": the rest of a line that begins with this command.
std::optional<std::string> argument_of(const std::string& line, std::string_view command) {
  if (!line.starts_with(command)) return std::nullopt;
  const std::string rest = line.substr(command.size());
  const size_t first = rest.find_first_not_of(" \t");
  if (first == std::string::npos) return std::string();
  if (first == 0) return std::nullopt;  // "/memoryless"
  return rest.substr(first, rest.find_last_not_of(" \t") - first + 1);
}

// "/foo" of a line that begins with such a word; empty for "/home/me: what is there?".
std::string command_of(const std::string& line) {
  const std::string word = line.substr(0, line.find_first_of(" \t"));
  if (word.size() < 2 || word[0] != '/') return "";
  const bool letters =
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyz-_", 1) == std::string::npos;
  return letters ? word : "";
}

// True when the line was a command about memory; what came of it is printed.
bool change_limits(const std::string& line, Engine& engine) {
  const auto memory = argument_of(line, "/memory");
  const auto budget = argument_of(line, "/budget");
  if (!memory && !budget) return false;
  const std::string& text = memory ? *memory : *budget;
  std::optional<uint64_t> bytes;
  if (!text.empty() && text != "auto") {
    const auto size = parse_size(text);
    if (!size) {
      spdlog::error("{}", size.error().message);
      return true;
    }
    bytes = *size;
  }
  if (!text.empty()) {
    const Status asked = memory ? engine.set_memory(bytes) : engine.set_budget(bytes);
    if (!asked) {
      spdlog::error("{}", asked.error().message);
      return true;
    }
    (void)engine.step([](const Event&) {});  // nothing runs: this only brings the limits into force
  }
  const MemoryReport report = engine.memory();
  if (!report.error.empty()) spdlog::error("{}", report.error);
  const auto size = [](uint64_t b) { return format_size(static_cast<double>(b)); };
  note(fmt::format("{} for weights under a ceiling of {}\n", size(report.arena),
                   size(report.ceiling)));
  return true;
}

}  // namespace

int chat_session(const Cli& cli, const RunOptions& options, Engine& engine) {
  if (!engine.model().info().has_chat_template)
    return cli.report(
        {Code::kUnsupported,
         engine.model().info().name + " has no chat template; use --prompt instead of --chat"});
  std::vector<Message> messages = opening(options);
  watch_interrupts(OnInterrupt::kStopAnswer);
  LineReader lines;
  if (!cli.quiet) note("Type a message; /help lists what else can be typed.\n");
  for (;;) {
    clear_interrupt();
    note("\n> ");
    const auto line = lines.next();
    if (!line || *line == "/exit") break;
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    if (*line == "/help") {
      note(kHelp);
      continue;
    }
    if (*line == "/reset") {
      messages = opening(options);
      continue;
    }
    if (change_limits(*line, engine)) continue;
    if (const std::string command = command_of(*line); !command.empty()) {
      note(fmt::format("unknown command {}; /help lists them\n", command));
      continue;
    }
    messages.push_back({"user", *line});
    auto ids = chat_prompt(engine.model(), messages);
    if (!ids) return cli.report(ids.error());
    Request request = options.request;
    request.prompt_ids = std::move(*ids);
    auto answer = generate_answer(cli, engine, std::move(request), /*stream=*/true);
    if (!answer) {
      // A conversation that outgrew the context, for example: say so and let the person go on.
      spdlog::error("{}", answer.error().message);
      messages.pop_back();
      continue;
    }
    if (!answer->ends_line) put("\n");
    messages.push_back({"assistant", answer->completion.text});
    if (options.metrics) note(answer_report(engine, *answer));
  }
  note("\n");
  return interrupted() ? kInterrupted : kOk;
}

}  // namespace millrace::cli
