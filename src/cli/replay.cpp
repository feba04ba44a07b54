// millrace replay: what other policies would have done with the experts that a run used.

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/size.h"

namespace millrace::cli {
namespace {

constexpr const char* kFooter = R"(
Hit rates of policies at several numbers of resident experts, beside the best that any policy could
reach if it knew the future (belady).

  millrace run packed/ --trace trace.txt --prompt-file book.txt -n 500
  millrace replay trace.txt
  millrace replay trace.txt --policy lru,lfu --resident 10,20,50 --skip 100
  millrace replay trace.txt --policy all --slots 1000,2000)";

struct Options {
  ReplayOptions replay;
  bool json = false;
};

std::string describe(const ReplayReport& report, uint32_t skipped) {
  std::string text = fmt::format(
      "{}: {} layers, {} of {} experts a row, {} each, {} steps{}\n\n", report.model, report.layers,
      report.used, report.experts, format_size(static_cast<double>(report.expert_bytes)),
      report.steps, skipped == 0 ? "" : fmt::format(", the first {} not counted", skipped));
  text += fmt::format("  {:>9} {:>7} {:>10} {:<8} {:>8} {:>12}\n", "resident", "slots", "memory",
                      "policy", "hits", "of belady");
  double best = 0;
  for (const ReplayRow& row : report.rows) {
    const double rate =
        row.uses == 0 ? 0 : static_cast<double>(row.hits) / static_cast<double>(row.uses);
    if (row.policy == "belady") best = rate;
    text +=
        fmt::format("  {:>7.1f} % {:>7} {:>10} {:<8} {:>6.2f} % {:>10.1f} %\n", 100 * row.share,
                    row.slots, format_size(static_cast<double>(row.slots * report.expert_bytes)),
                    row.policy, 100 * rate, best > 0 ? 100 * rate / best : 0);
  }
  return text;
}

nlohmann::ordered_json as_json(const ReplayReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ReplayRow& row : report.rows)
    rows.push_back({{"policy", row.policy},
                    {"share", row.share},
                    {"slots", row.slots},
                    {"uses", row.uses},
                    {"hits", row.hits}});
  return {{"model", report.model}, {"layers", report.layers}, {"experts", report.experts},
          {"used", report.used},   {"steps", report.steps},   {"expert_bytes", report.expert_bytes},
          {"rows", rows}};
}

std::vector<std::string> parse_policies(const std::string& text) {
  std::vector<std::string> names;
  const auto known = policies();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    if (name == "all") {
      names = known;
    } else if (std::find(known.begin(), known.end(), name) != known.end()) {
      names.push_back(name);
    } else {
      usage_error("--policy",
                  fmt::format("'{}' is not one of {}, all", name, fmt::join(known, ", ")));
    }
    begin = end + 1;
  }
  return names;
}

std::vector<double> parse_shares(const std::string& text) {
  std::vector<double> shares;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    double percent = 0;
    const auto [after, error] = std::from_chars(text.data() + begin, text.data() + end, percent);
    if (error != std::errc{} || after != text.data() + end || !(percent > 0 && percent <= 100))
      usage_error("--resident",
                  fmt::format("'{}' is not a list of percentages such as 5,15,40", text));
    shares.push_back(percent / 100);
    begin = end + 1;
  }
  return shares;
}

std::vector<uint32_t> parse_slots(const std::string& text) {
  std::vector<uint32_t> slots;
  for (const Token n : parse_ids("--slots", text, "numbers")) {
    if (n == 0) usage_error("--slots", "0 slots hold nothing");
    slots.push_back(static_cast<uint32_t>(n));
  }
  return slots;
}

int run(const Cli& cli, const Options& options) {
  watch_interrupts(OnInterrupt::kExitSoon);
  const auto report = replay(options.replay);
  if (!report) return cli.report(report.error());
  return options.json ? cli.print_json(as_json(*report))
                      : cli.print(describe(*report, options.replay.skip_steps));
}

}  // namespace

void add_replay(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("replay", "Compare caching policies on a recorded trace");
  auto options = std::make_shared<Options>();
  app.add_option("TRACE", options->replay.trace, "A file that 'run --trace' wrote")
      ->required()
      ->type_name("");
  app.add_option_function<std::string>(
         "--policy",
         [options](const std::string& text) { options->replay.policies = parse_policies(text); },
         "Policies to compare")
      ->type_name("NAME,...")
      ->default_str("all");
  app.add_option_function<std::string>(
         "--resident",
         [options](const std::string& text) { options->replay.shares = parse_shares(text); },
         "Percent of the experts that are in memory")
      ->type_name("P,P,...")
      ->default_str("5,15,40");
  app.add_option_function<std::string>(
         "--slots",
         [options](const std::string& text) { options->replay.slots = parse_slots(text); },
         "Numbers of experts that are in memory, of all layers together")
      ->type_name("N,N,...");
  add_number(app, "--skip", options->replay.skip_steps, 0u, UINT32_MAX,
             "Passes over the model that warm up and are not counted");
  app.add_flag("--json", options->json, "One JSON object");
  app.footer(kFooter);
  app.callback([&cli, options] {
    if (options->replay.shares.empty() && options->replay.slots.empty())
      options->replay.shares = {0.05, 0.15, 0.4};
    cli.exit_code = run(cli, *options);
  });
}

}  // namespace millrace::cli
