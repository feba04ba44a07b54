// millrace tokenize: text to token ids and back.

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/prompt.h"

namespace millrace::cli {
namespace {

constexpr const char* kFooter = R"(
Prints one token a line: its id, and its text as JSON. Without a text flag the text is read from
standard input.

  millrace tokenize packed/ --text "Hello, world"
  millrace tokenize packed/ --ids 1,2,3            back to text
  millrace tokenize packed/ --text "Hi" --chat     as 'run --chat' would send it)";

struct Options {
  std::string model, text, file, ids;
  bool has_text = false, plain = false, chat = false, json = false;
};

int print_tokens(const Cli& cli, const Options& options, const Model& model,
                 const std::vector<Token>& ids) {
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  std::string lines;
  for (const Token id : ids) {
    const auto piece = model.detokenize({id});
    if (!piece) return cli.report(piece.error());
    pieces.push_back(*piece);
    // A token may hold part of a character: those bytes show as U+FFFD.
    lines += fmt::format(
        "{:>8}  {}\n", id,
        nlohmann::json(*piece).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  if (options.json)
    return cli.print_json({{"ids", ids}, {"count", ids.size()}, {"pieces", pieces}});
  return cli.print(lines);
}

int print_text(const Cli& cli, const Options& options, const Model& model) {
  const auto text = model.detokenize(parse_ids("--ids", options.ids));
  if (!text) return cli.report(text.error());
  if (options.json) return cli.print_json({{"text", *text}});
  return cli.print(*text + "\n");
}

int run(const Cli& cli, const Options& options) {
  if (!options.ids.empty()) parse_ids("--ids", options.ids);  // a wrong flag before a slow open
  watch_interrupts(OnInterrupt::kExitSoon);
  Expected<std::string> text = options.text;
  if (!options.file.empty()) text = read_text_file("--file", options.file);
  if (options.ids.empty() && !options.has_text) text = read_stdin();
  if (!text) return cli.report(text.error());

  const auto model = Model::open(options.model);
  if (!model) return cli.report(model.error());
  if (!options.ids.empty()) return print_text(cli, options, **model);
  const auto ids = options.chat ? chat_prompt(**model, {{"user", *text}})
                                : (*model)->tokenize(*text, !options.plain, !options.plain);
  if (!ids) return cli.report(ids.error());
  return print_tokens(cli, options, **model, *ids);
}

}  // namespace

void add_tokenize(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("tokenize", "Show text as a model's tokens, or the reverse");
  auto options = std::make_shared<Options>();
  add_model(app, options->model);
  auto* text = app.add_option_function<std::string>(
      "--text",
      [options](const std::string& given) {
        options->has_text = true;
        options->text = given;
      },
      "The text");
  text->type_name("TEXT");
  auto* file = app.add_option_function<std::string>(
      "--file",
      [options](const std::string& path) {
        if (path.empty()) usage_error("--file", "the file name is empty");
        options->has_text = true;
        options->file = path;
      },
      "Read the text from a file");
  file->type_name("FILE")->excludes(text);
  auto* ids = app.add_option("--ids", options->ids, "Token ids to turn into text");
  ids->type_name("IDS")->excludes(text)->excludes(file);
  app.add_flag("--plain", options->plain,
               "Add no special tokens, and read none in the text: it is only text");
  app.add_flag("--chat", options->chat, "As one user message through the chat template")
      ->excludes("--plain")
      ->excludes(ids);
  app.add_flag("--json", options->json, "One JSON object");
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
