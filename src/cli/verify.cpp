// millrace verify: check every hash of a packed model.

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
Reads the whole folder and compares each piece with the hash in its manifest. The first piece that
differs is named with its file and offset, and the exit code is 1.

  millrace verify packed/)";

struct Options {
  std::string path;
  bool json = false;
};

int run(const Cli& cli, const Options& options) {
  watch_interrupts(OnInterrupt::kExitSoon);
  Progress progress(cli.terminal, cli.quiet, "verifying", Unit::kBytes);
  const auto report =
      verify(options.path, [&](uint64_t done, uint64_t total, std::string_view what) {
        progress.update(done, total, what);
      });
  progress.finish();
  if (!report) return cli.report(report.error());
  if (options.json)
    return cli.print_json({{"ok", true}, {"pieces", report->pieces}, {"bytes", report->bytes}});
  return cli.print(fmt::format("{}: {} pieces, {}, all as recorded\n", options.path, report->pieces,
                               format_size(static_cast<double>(report->bytes))));
}

}  // namespace

void add_verify(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("verify", "Check every hash of a packed model");
  auto options = std::make_shared<Options>();
  app.add_option("PACKED", options->path, "A packed folder")->required()->type_name("");
  app.add_flag("--json", options->json, "Report as JSON on standard output");
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
