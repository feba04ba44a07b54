// millrace pack: lay a model out for streaming.

#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/size.h"
#include "millrace/millrace.h"

namespace millrace::cli {
namespace {

constexpr const char* kFooter = R"(
Packing rearranges the weights into a few large files that can be read straight into place. It is
lossless: 'millrace unpack' gives the source back byte for byte. OUT appears only when it is whole;
a pack that was stopped goes on where it was when the same command is given again.

  millrace pack Qwen3-30B-A3B/ packed/
  millrace pack model.gguf packed/ && millrace verify packed/)";

struct Options {
  PackOptions pack;
  bool json = false;
};

int run(const Cli& cli, Options options) {
  watch_interrupts(OnInterrupt::kExitSoon);
  Progress progress(cli.terminal, cli.quiet, "packing", Unit::kBytes);
  options.pack.progress = [&](uint64_t done, uint64_t total, std::string_view what) {
    progress.update(done, total, what);
  };
  options.pack.cancelled = [] { return interrupted(); };
  const auto report = pack(options.pack);
  progress.finish();
  if (!report) {
    if (report.error().code == Code::kCancelled) spdlog::warn("the same command goes on from here");
    return cli.report(report.error());
  }
  if (options.json)
    return cli.print_json({{"out", options.pack.out},
                           {"pieces", report->pieces},
                           {"bytes", report->bytes},
                           {"seconds", report->seconds},
                           {"resumed", report->resumed}});
  const auto bytes = static_cast<double>(report->bytes);
  spdlog::info("{}: {} in {} pieces, {} ({}){}", options.pack.out, format_size(bytes),
               report->pieces, format_seconds(report->seconds),
               format_rate(report->seconds > 0 ? bytes / report->seconds : 0),
               report->resumed ? "; went on with an earlier pack" : "");
  return kOk;
}

}  // namespace

void add_pack(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("pack", "Lay a model out on disk for fast streaming");
  auto options = std::make_shared<Options>();
  app.add_option("SOURCE", options->pack.source, "A Hugging Face folder or a .gguf file")
      ->required()
      ->type_name("");
  app.add_option("OUT", options->pack.out, "The folder to write")->required()->type_name("");
  app.add_flag("--overwrite", options->pack.overwrite, "Replace OUT if it is there");
  app.add_flag("--json", options->json, "Report as JSON on standard output");
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
