// millrace run: generate text with a model.

#include "cli/run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

#include "base/status.h"
#include "cli/answer.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/size.h"

namespace millrace::cli {
namespace {

constexpr uint32_t kMostTokens = 1u << 24;

constexpr const char* kFooter = R"(
Where the prompt comes from: one of the three prompt flags, or standard input when it is not a
terminal. --chat sends it as a user message through the model's chat template; on a terminal and
without a prompt it opens a conversation.

  millrace run packed/ --prompt "Once upon a time" -n 100
  millrace run packed/ --budget 2G --metrics --prompt-file notes.txt
  echo "Write a haiku" | millrace run packed/ --chat
  millrace run packed/ --prompt-ids 1,2,3 --json

The same model, prompt and seed give the same tokens whatever --budget, --memory, --threads,
--prefill-chunk and --io are. --activations and --kv change the arithmetic: with another value of
these the tokens may be others.)";

Expected<std::string> prompt_text(const RunOptions& options) {
  if (!options.prompt_file.empty()) return read_text_file("--prompt-file", options.prompt_file);
  if (options.has_prompt) return options.prompt_text;
  return read_stdin();
}

Status fill_prompt(const RunOptions& options, const std::string& text, const Model& model,
                   Request* request) {
  if (!options.prompt_ids.empty()) return {};  // parsed before anything was loaded
  if (!options.chat) {
    request->prompt = text;
    return {};
  }
  std::vector<Message> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system});
  messages.push_back({"user", text});
  MILLRACE_ASSIGN(request->prompt_ids, chat_prompt(model, messages));
  return {};
}

// With --json who reads standard output learns of it, too.
int failed(const Cli& cli, const RunOptions& options, const Error& error) {
  if (options.json) (void)cli.print_json({{"error", error.message}});
  return cli.report(error);
}

int run_once(const Cli& cli, const RunOptions& options, const std::string& text, Engine& engine) {
  Request request = options.request;
  if (auto filled = fill_prompt(options, text, engine.model(), &request); !filled)
    return failed(cli, options, filled.error());
  auto answer = generate_answer(cli, engine, std::move(request), !options.json);
  if (!answer) return failed(cli, options, answer.error());

  if (options.json) {
    if (const int code = cli.print_json(answer_json(engine, *answer)); code != kOk) return code;
  } else if (!answer->ends_line || answer->completion.text.empty()) {
    put("\n");
  }
  if (options.metrics) std::fputs(answer_report(engine, *answer).c_str(), stderr);
  return answer->completion.finish == FinishReason::kCancelled ? kInterrupted : kOk;
}

std::string summary(const Engine& engine) {
  const ModelInfo& info = engine.model().info();
  const Plan& plan = engine.plan();
  auto choices = engine.choices();
  return fmt::format("{}, {}, {}; {} of {} weights in memory; reads {}", info.name,
                     info.architecture, info.format,
                     format_size(static_cast<double>(std::min(plan.budget, plan.total_bytes))),
                     format_size(static_cast<double>(plan.total_bytes)), choices["io"]);
}

int run(const Cli& cli, RunOptions options) {
  const bool talk = options.chat && !options.has_prompt && cli.terminal.in_tty;
  if (talk && options.json)
    usage_error("--json", "needs a prompt; a conversation has no one answer");
  if (!options.chat && !options.has_prompt && cli.terminal.in_tty)
    usage_error("--prompt", "missing: give a prompt, a file, ids, or --chat for a conversation");
  if (!options.system.empty() && !options.chat) usage_error("--system", "needs --chat");
  if (options.chat && !options.prompt_ids.empty())
    usage_error("--prompt-ids", "ids are not text: they cannot go through the chat template");
  if (options.request.sampling.top_p <= 0)
    usage_error("--top-p", "must be above 0: with 0 no token is left");
  if (!options.prompt_ids.empty())
    options.request.prompt_ids = parse_ids("--prompt-ids", options.prompt_ids);

  watch_interrupts(OnInterrupt::kExitSoon);
  std::string text;
  if (!talk && options.prompt_ids.empty()) {
    auto got = prompt_text(options);
    if (!got) return cli.report(got.error());
    text = std::move(*got);
  }
  options.engine.log = [](std::string_view line) { spdlog::debug("{}", line); };
  options.engine.warn = [](std::string_view line) { spdlog::warn("{}", line); };
  auto engine = Engine::open(options.engine);
  if (!engine) return failed(cli, options, engine.error());
  // The whole list is for --explain; the line that matters most is always there.
  spdlog::info("{}", summary(**engine));
  if (options.explain) {
    std::fputs("what was chosen on this machine:\n", stderr);
    std::fputs(choices_report(**engine).c_str(), stderr);
  }
  const int code =
      talk ? chat_session(cli, options, **engine) : run_once(cli, options, text, **engine);
  if (auto traced = (*engine)->finish_trace(); !traced) return cli.report(traced.error());
  return code;
}

void add_prompt_flags(CLI::App& app, RunOptions& options) {
  constexpr const char* kGroup = "Prompt";
  auto* prompt = app.add_option_function<std::string>(
      "-p,--prompt",
      [&options](const std::string& text) {
        options.has_prompt = true;
        options.prompt_text = text;
      },
      "The prompt");
  prompt->type_name("TEXT")->group(kGroup);
  auto* file = app.add_option_function<std::string>(
      "-f,--prompt-file",
      [&options](const std::string& path) {
        if (path.empty()) usage_error("--prompt-file", "the file name is empty");
        options.has_prompt = true;
        options.prompt_file = path;
      },
      "Read the prompt from a file");
  file->type_name("FILE")->group(kGroup)->excludes(prompt);
  auto* ids = app.add_option_function<std::string>(
      "--prompt-ids",
      [&options](const std::string& list) {
        parse_ids("--prompt-ids", list);
        options.has_prompt = true;
        options.prompt_ids = list;
      },
      "The prompt as token ids");
  ids->type_name("IDS")->group(kGroup)->excludes(prompt)->excludes(file);
  app.add_flag("--chat", options.chat, "Talk through the model's chat template")->group(kGroup);
  app.add_option("--system", options.system, "System message of a chat")
      ->type_name("TEXT")
      ->group(kGroup);
}

void add_answer_flags(CLI::App& app, RunOptions& options) {
  constexpr const char* kGroup = "Answer";
  SamplingParams& sampling = options.request.sampling;
  add_number(app, "-n,--max-tokens", options.request.max_tokens, 1u, kMostTokens,
             "Most tokens to generate")
      ->group(kGroup);
  add_number(app, "--temperature", sampling.temperature, 0.0f, 100.0f,
             "0: always the most likely token; higher: more variety")
      ->group(kGroup);
  add_number(app, "--top-p", sampling.top_p, 0.0f, 1.0f,
             "Sample among the most likely tokens that make up this share")
      ->group(kGroup);
  add_number(app, "--top-k", sampling.top_k, 0u, kMostTokens,
             "Sample among this many most likely tokens; 0: all")
      ->group(kGroup);
  add_number(app, "--min-p", sampling.min_p, 0.0f, 1.0f,
             "Drop tokens less likely than this share of the most likely one")
      ->group(kGroup);
  add_number(app, "--seed", sampling.seed, uint64_t{0}, UINT64_MAX,
             "Seed of sampling; the same seed gives the same text")
      ->group(kGroup);
  app.add_option("--stop", options.request.stop, "End the answer before this text; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(kGroup);
  app.add_flag("--ignore-eos", options.request.ignore_eos, "Go on after the model's end token")
      ->group(kGroup);
}

}  // namespace

void add_run(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("run", "Generate text with a model");
  auto options = std::make_shared<RunOptions>();
  add_model(app, options->engine.model);
  add_prompt_flags(app, *options);
  add_answer_flags(app, *options);
  add_engine_flags(app, options->engine);
  constexpr const char* kGroup = "Output";
  app.add_option("--trace", options->engine.trace,
                 "Record which experts fire, for 'millrace replay'")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--io-trace", options->engine.io_trace, "Record every read of weights")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_flag("--metrics", options->metrics,
               "At the end: what was read, hit and held, and how fast")
      ->group(kGroup);
  app.add_flag("--json", options->json, "One JSON object on standard output instead of text")
      ->group(kGroup);
  app.add_flag("--explain", options->explain, "Print what was chosen on this machine and why")
      ->group(kGroup);
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
