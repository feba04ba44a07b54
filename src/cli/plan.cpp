// millrace plan: how a model would lie in memory here, and how fast it could be, before it is
// loaded.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/roofs.h"
#include "cli/size.h"
#include "io/choose.h"
#include "stream/ledger.h"

namespace millrace::cli {
namespace {

constexpr const char* kFooter = R"(
Reads headers only. The speed is an estimate from measurements that take about three seconds: how
fast this disk gives weights, and how fast this memory does. --no-probe leaves them out.
The exit code is 1 when the model does not fit under the limits given.

  millrace plan model.gguf
  millrace plan packed/ --memory 2G --context 8192)";

struct Options {
  EngineOptions engine;
  bool no_probe = false, json = false;
};

// How `run` would read this model now.
struct Reading {
  std::string reason;   // "direct: ..."
  bool cached = false;  // the page cache can hold the weights
};

// Tokens per second while decoding, between "disk and compute never overlap" and "they always do".
struct Speed {
  double least = 0, most = 0;
};
Speed predict(const Plan& plan, const Roofs& roofs, const Reading& how) {
  // Weights that fit in free memory are read once from the disk, then from the page cache.
  const double reading = how.cached ? roofs.cached : roofs.disk;
  const double disk = reading > 0 ? plan.bytes_per_token / reading : 0;
  const double memory = roofs.memory > 0 ? plan.touched_per_token / roofs.memory : 0;
  if (disk + memory <= 0) return {};
  return {1 / (disk + memory), 1 / std::max(disk, memory)};
}

Expected<Reading> reading(const Options& options, const Plan& plan) {
  MILLRACE_ASSIGN(const auto limit, stream::memory_limit());
  io::ModeFacts facts;
  facts.weights = plan.total_bytes;
  facts.available = limit.available > plan.budget ? limit.available - plan.budget : 0;
  facts.ceiling = options.engine.memory && *options.engine.memory < limit.bytes;
  const auto request = options.engine.io == IoMode::kDirect     ? io::Request::kDirect
                       : options.engine.io == IoMode::kBuffered ? io::Request::kBuffered
                                                                : io::Request::kAuto;
  const io::ModeChoice choice = io::choose_mode(request, facts, model_file(options.engine.model));
  return Reading{choice.reason,
                 choice.mode == io::Mode::kBuffered && facts.weights <= facts.available};
}

std::string size(uint64_t bytes) { return format_size(static_cast<double>(bytes)); }

std::string describe(const ModelInfo& info, const Plan& plan, const Roofs& roofs,
                     const Reading& how) {
  std::string text =
      fmt::format("{}: {}, {}, {} parameters, {} of weights\n\n", info.name, plan.architecture,
                  plan.format, format_count(plan.parameters), size(plan.total_bytes));
  text += fmt::format("  {:<12} {:>8} {:>12} {:>12}\n", "weights", "pieces", "size", "in memory");
  for (const Plan::Kind& kind : plan.kinds)
    text += fmt::format("  {:<12} {:>8} {:>12} {:>12}{}\n", kind.name, kind.pieces,
                        size(kind.bytes), size(kind.resident_bytes), kind.pinned ? "  pinned" : "");
  const auto row = [&text](std::string_view what, const std::string& value) {
    text += fmt::format("  {:<34} {:>12}\n", what, value);
  };
  text += "\n";
  row("ceiling of the process (--memory)", size(plan.ceiling));
  row("weights in memory (--budget)", size(plan.budget));
  row(fmt::format("KV for {} positions", plan.context), size(plan.kv_bytes));
  row(fmt::format("activations, {} rows a pass", plan.prefill_chunk), size(plan.activation_bytes));
  row("program, tokenizer, tables", size(plan.process_bytes));
  text += "\n";
  row("smallest --budget that runs", size(plan.smallest_budget));
  row("comfortable --budget", size(plan.comfortable_budget));
  row("smallest --memory that runs", size(plan.smallest_memory));
  text += "\n";
  row("read from disk for a token", format_size(plan.bytes_per_token));
  row("read from memory for a token", format_size(plan.touched_per_token));
  text += fmt::format("  reads are {}\n", how.reason);
  if (roofs.measured) {
    const Speed speed = predict(plan, roofs, how);
    row("disk, measured", format_rate(roofs.disk));
    if (how.cached) row("through the page cache, measured", format_rate(roofs.cached));
    row("memory, measured", format_rate(roofs.memory));
    if (speed.most > 0)
      text += fmt::format("  {:<34} about {:.1f} to {:.1f} tok/s\n", "expected while answering",
                          speed.least, speed.most);
  }
  if (!plan.warning.empty()) text += fmt::format("\n{}\n", plan.warning);
  if (!plan.fits) text += fmt::format("\nIt does not fit: {}\n", plan.why);
  return text;
}

nlohmann::ordered_json as_json(const ModelInfo& info, const Options& options, const Plan& plan,
                               const Roofs& roofs, const Reading& how) {
  nlohmann::ordered_json kinds = nlohmann::ordered_json::array();
  for (const Plan::Kind& kind : plan.kinds)
    kinds.push_back({{"name", kind.name},
                     {"pieces", kind.pieces},
                     {"bytes", kind.bytes},
                     {"resident_bytes", kind.resident_bytes},
                     {"pinned", kind.pinned}});
  const auto given = [](const std::optional<uint64_t>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json json = {
      {"model", info.name},
      {"architecture", plan.architecture},
      {"format", plan.format},
      {"parameters", plan.parameters},
      {"total_bytes", plan.total_bytes},
      {"kinds", kinds},
      {"asked",
       {{"memory", given(options.engine.memory)}, {"budget", given(options.engine.budget)}}},
      {"ceiling", plan.ceiling},
      {"budget", plan.budget},
      {"kv_bytes", plan.kv_bytes},
      {"activation_bytes", plan.activation_bytes},
      {"process_bytes", plan.process_bytes},
      {"smallest_budget", plan.smallest_budget},
      {"comfortable_budget", plan.comfortable_budget},
      {"smallest_memory", plan.smallest_memory},
      {"context", plan.context},
      {"prefill_chunk", plan.prefill_chunk},
      {"bytes_per_token", plan.bytes_per_token},
      {"touched_per_token", plan.touched_per_token},
      {"fits", plan.fits},
      {"why", plan.why},
      {"warning", plan.warning},
      {"reading", how.reason},
      {"measured", nullptr},
  };
  if (roofs.measured) {
    const Speed speed = predict(plan, roofs, how);
    json["measured"] = {{"disk_bytes_per_s", roofs.disk},     {"disk_mode", roofs.disk_how},
                        {"cached_bytes_per_s", roofs.cached}, {"memory_bytes_per_s", roofs.memory},
                        {"decode_tps_least", speed.least},    {"decode_tps_most", speed.most}};
  }
  return json;
}

int run(const Cli& cli, const Options& options) {
  watch_interrupts(OnInterrupt::kExitSoon);
  const auto model = Model::open(options.engine.model);
  if (!model) return cli.report(model.error());
  const auto plan = make_plan(**model, options.engine);
  if (!plan) return cli.report(plan.error());
  const auto how = reading(options, *plan);
  if (!how) return cli.report(how.error());

  Roofs roofs;
  if (!options.no_probe) {
    auto measured = measure_roofs(options.engine.model, options.engine.threads);
    // A plan without speeds is still a plan; say why they are missing.
    if (measured) {
      roofs = std::move(*measured);
    } else {
      spdlog::warn("the speed is not predicted: {}", measured.error().message);
    }
  }
  const int printed = options.json
                          ? cli.print_json(as_json((*model)->info(), options, *plan, roofs, *how))
                          : cli.print(describe((*model)->info(), *plan, roofs, *how));
  return plan->fits ? printed : kError;
}

}  // namespace

void add_plan(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("plan", "Show how a model fits here, before it is loaded");
  auto options = std::make_shared<Options>();
  add_model(app, options->engine.model);
  app.add_flag("--no-probe", options->no_probe, "Do not measure disk and memory");
  app.add_flag("--json", options->json, "One JSON object");
  add_engine_flags(app, options->engine);
  app.footer(kFooter);
  options->engine.warn = [](std::string_view line) { spdlog::warn("{}", line); };
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
