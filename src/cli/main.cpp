// millrace: the command line. Parses, hands over to one command, turns the outcome into an exit
// code.

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/help.h"
#include "millrace/millrace.h"

namespace millrace::cli {

int Cli::report(const Error& error) const {
  if (error.code == Code::kCancelled) {
    spdlog::warn("stopped: {}", error.message);
    return kInterrupted;
  }
  spdlog::error("{}", error.message);
  return kError;
}

int Cli::print(std::string_view text) const {
  if (put(text)) return kOk;
  spdlog::error("standard output cannot be written");
  return kError;
}

int Cli::print_json(const nlohmann::ordered_json& value) const {
  // Text of a model is not under our control: bytes that are no UTF-8 are replaced, not refused.
  return print(value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void usage_error(const std::string& flag, const std::string& message) {
  throw CLI::ValidationError(flag, message);
}

namespace {

constexpr std::string_view kFooter = R"(
A first session:
  millrace doctor                                 what this machine can do
  millrace plan MODEL --budget 4G                 what a model needs here, before anything is read
  millrace pack MODEL packed/                     once: lay the weights out for fast streaming
  millrace run packed/ --budget 4G --prompt "Hello" -n 64
  millrace run packed/ --chat                     talk to it

MODEL is a packed folder, a Hugging Face folder (safetensors, MLX-quantized too) or a .gguf file.
SIZE is bytes with an optional K, M, G or T; these are powers of 1024 (700M = 700 x 1024 x 1024).
Text and results go to standard output; progress, notes and errors go to standard error.
Exit codes: 0 done, 1 error, 2 wrong command line, 130 stopped by Ctrl-C.

'millrace COMMAND --help' explains a command.)";

void set_up_log(const Cli& cli) {
  auto logger = std::make_shared<spdlog::logger>("millrace",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(cli.verbose ? "millrace [%H:%M:%S.%e] %l: %v" : "millrace: %v");
  logger->set_level(cli.quiet     ? spdlog::level::err
                    : cli.verbose ? spdlog::level::debug
                                  : spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

int run_main(int argc, char** argv) {
  Cli cli;
  cli.terminal = Terminal::detect();

  CLI::App app(
      "Millrace runs language models that are larger than the memory of the machine.\n"
      "It streams weights from disk under a budget that you set; the output is the same\n"
      "bytes whatever the budget.",
      "millrace");
  app.set_version_flag("--version", std::string(version()), "Print the version and leave");
  app.set_help_flag("-h,--help", "Print this help and leave");
  app.add_flag("-v,--verbose", cli.verbose, "Say more on standard error");
  app.add_flag("-q,--quiet", cli.quiet, "Say nothing on standard error but errors")
      ->excludes("--verbose");
  app.footer(std::string(kFooter));
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.fallthrough();  // --quiet and --verbose may stand after the command too
  app.parse_complete_callback([&cli] { set_up_log(cli); });

  add_run(app, cli);
  add_pack(app, cli);
  add_plan(app, cli);
  add_bench(app, cli);
  add_replay(app, cli);
  add_doctor(app, cli);
  add_verify(app, cli);
  add_unpack(app, cli);
  add_tokenize(app, cli);
  add_check(app, cli);
  add_families(app, cli);
  add_soak(app, cli);

  set_up_log(cli);
  if (argc == 1) {
    std::fputs(app.help().c_str(), stderr);
    return kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done) == 0 ? kOk : kError;
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    // A word that is no command is left over, and the parser then only says that one is missing.
    if (const auto rest = app.remaining(); chosen.empty() && !rest.empty()) {
      spdlog::error("there is no command or flag '{}'", rest.front());
    } else {
      spdlog::error("{}", error.what());
    }
    spdlog::error("'millrace{}{} --help' explains what can be given", chosen.empty() ? "" : " ",
                  chosen.empty() ? "" : chosen.front()->get_name());
    return kUsage;
  }
  return cli.exit_code;
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) {
  // The library returns errors as values; what can still arrive here is the end of memory.
  try {
    return millrace::cli::run_main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "millrace: %s\n", error.what());
    return millrace::cli::kError;
  }
}
