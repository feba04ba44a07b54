// millrace unpack: give the source files of a packed model back.

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
The files are written byte for byte as they were before 'millrace pack', and each is checked
against the hash that was recorded then.

  millrace unpack packed/ source-again/)";

struct Options {
  PackOptions unpack;
  bool json = false;
};

int run(const Cli& cli, Options options) {
  watch_interrupts(OnInterrupt::kExitSoon);
  Progress progress(cli.terminal, cli.quiet, "unpacking", Unit::kBytes);
  options.unpack.progress = [&](uint64_t done, uint64_t total, std::string_view what) {
    progress.update(done, total, what);
  };
  options.unpack.cancelled = [] { return interrupted(); };
  const auto report = unpack(options.unpack);
  progress.finish();
  if (!report) return cli.report(report.error());
  if (options.json)
    return cli.print_json(
        {{"out", options.unpack.out}, {"bytes", report->bytes}, {"seconds", report->seconds}});
  spdlog::info("{}: {} written and checked against the hashes of the source, {}",
               options.unpack.out, format_size(static_cast<double>(report->bytes)),
               format_seconds(report->seconds));
  return kOk;
}

}  // namespace

void add_unpack(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("unpack", "Give the source files of a packed model back");
  auto options = std::make_shared<Options>();
  app.add_option("PACKED", options->unpack.source, "A packed folder")->required()->type_name("");
  app.add_option("OUT", options->unpack.out, "The folder to write")->required()->type_name("");
  app.add_flag("--overwrite", options->unpack.overwrite, "Replace OUT if it is there");
  app.add_flag("--json", options->json, "Report as JSON on standard output");
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
