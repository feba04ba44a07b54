// millrace bench: how fast a model runs here, in tests that another engine can be held against.
//
// Every repetition runs all tests once, then the other engine, so that a busy machine disturbs all
// alike; what is printed are medians with the least and the most.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "cli/bench_prompts.h"
#include "cli/bench_streaming.h"
#include "cli/interrupt.h"
#include "cli/medians.h"
#include "cli/options.h"
#include "cli/peer.h"
#include "cli/roofs.h"
#include "cli/size.h"
#include "cli/table.h"
#include "io/probe.h"

namespace millrace::cli {
namespace {

constexpr const char* kFooter = R"(
Tests: ppN is a prompt of N tokens, tgN is N tokens one by one, rows N is one pass over N rows with
logits, as speculation verifies a draft; its cost is against a pass over one row.

--compare runs another engine's benchmark between ours and prints the ratio for each test that it
reports too: JSON as llama-bench -o json prints it, a table with a cell "pp256", or lines such as
"pp256 150.2". In CMD, {model}, {threads}, {prompt} and {gen} are replaced.

  millrace bench model.gguf
  millrace bench packed/ --memory 4G --prompt 256,1024 --gen 48 --depth 0,4096
  millrace bench model.gguf --rows 1,2,4,8,16,32
  millrace bench model.gguf --memory 4G --streaming --prompts 1,2,4,8
  millrace bench model.gguf --compare 'llama-bench -m {model} -t {threads} -p {prompt} -n {gen}')";

constexpr uint32_t kMostTokens = 1u << 20;
constexpr uint32_t kRowsDepth = 64;     // of passes over several rows
constexpr uint32_t kRowsRepeats = 4;    // passes timed for one value
constexpr uint64_t kSeed = 0x6d696c6c;  // of the random tokens: the same in every run

struct Options {
  EngineOptions engine;
  std::vector<uint32_t> prompt = {256}, gen = {48}, depth = {0}, rows, prompts;
  uint32_t repetitions = 5;
  std::vector<std::string> compare;
  bool no_probe = false, json = false, markdown = false, streaming = false;
};

struct Test {
  std::string name;
  StepShape shape;
  uint32_t repeats = 1;
  bool pass = false;           // seconds of a pass matter, not tokens per second
  std::vector<double> values;  // tokens per second, or seconds of a pass; by repetition
  uint64_t bytes_read = 0;     // of all repetitions
  uint64_t hits = 0, misses = 0;
  double stall = 0, seconds = 0;
  std::vector<double> roofs;  // bytes a second that memory gave right after each repetition

  uint64_t tokens() const { return uint64_t{shape.rows} * repeats; }
};

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
double most(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

struct Peer {
  std::string command;
  std::map<std::string, std::vector<double>> values;  // by test, by repetition
};

std::vector<Test> make_tests(const Options& options) {
  std::vector<Test> tests;
  for (const uint32_t n : options.prompt) {
    Test test;
    test.name = fmt::format("pp{}", n);
    test.shape.rows = n;
    tests.push_back(std::move(test));
  }
  for (const uint32_t depth : options.depth) {
    for (const uint32_t n : options.gen) {
      Test test;
      test.name = depth == 0 ? fmt::format("tg{}", n) : fmt::format("tg{} @ {}", n, depth);
      test.shape.depth = depth;
      test.repeats = n;
      tests.push_back(std::move(test));
    }
  }
  for (const uint32_t n : options.rows) {
    Test test;
    test.name = fmt::format("rows {}", n);
    test.shape = {n, kRowsDepth, true};
    test.repeats = kRowsRepeats;
    test.pass = true;
    tests.push_back(std::move(test));
  }
  return tests;
}

Status measure(Engine& engine, Test* test, uint64_t seed, bool keep) {
  const IoReport before = engine.io();
  const auto timed = engine.time_steps(test->shape, test->repeats, seed);
  if (!timed) return with_context(fmt::format("test '{}'", test->name), timed.error());
  const std::vector<double>& seconds = *timed;
  if (!keep) return {};
  const IoReport after = engine.io();
  double total = 0;
  for (const double s : seconds) total += s;
  test->values.push_back(test->pass ? median(seconds)
                                    : static_cast<double>(test->tokens()) / total);
  test->seconds += total;
  test->bytes_read += after.bytes_read - before.bytes_read;
  test->hits += after.expert_hits - before.expert_hits;
  test->misses += after.expert_misses - before.expert_misses;
  test->stall += after.stall_s - before.stall_s;
  return {};
}

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += by.size())
    text.replace(at, word.size(), by);
  return text;
}

std::string command_of(std::string text, const Options& options, const std::string& threads) {
  text = replaced(std::move(text), "{model}", options.engine.model);
  text = replaced(std::move(text), "{threads}", threads);
  text = replaced(std::move(text), "{prompt}", fmt::format("{}", fmt::join(options.prompt, ",")));
  return replaced(std::move(text), "{gen}", fmt::format("{}", fmt::join(options.gen, ",")));
}

Status run_peers(std::vector<Peer>& peers, const std::vector<Test>& tests) {
  for (Peer& peer : peers) {
    MILLRACE_ASSIGN(const PeerRun run, run_peer(peer.command));
    const Speeds speeds = parse_speeds(run.output);
    bool any = false;
    for (const Test& test : tests) {
      const auto found = speeds.find(test.name);
      if (found == speeds.end()) continue;
      peer.values[test.name].push_back(found->second);
      any = true;
    }
    if (run.exit_code != 0)
      return fail(Code::kInvalid, "--compare: '{}' ended with exit code {}", peer.command,
                  run.exit_code);
    if (!any)
      return fail(Code::kInvalid,
                  "--compare: '{}' printed no speed of a test that is run here ({})", peer.command,
                  tests.empty() ? "none" : tests.front().name);
  }
  return {};
}

struct Results {
  std::vector<Test> tests;
  std::vector<PromptsTest> prompts;
  std::vector<Peer> peers;
  Roofs roofs;
  Plan plan;
  std::map<std::string, std::string> choices;
};

const Test* one_row(const Results& results) {
  for (const Test& test : results.tests)
    if (test.pass && test.shape.rows == 1) return &test;
  return nullptr;
}

// Tests in which each token reads its weights once.
bool reads_once(const Test& test) { return !test.pass && test.shape.rows == 1; }

// Bytes of weights that a second of this test reads.
double weight_rate(const Results& results, const Test& test) {
  return reads_once(test) ? results.plan.touched_per_token * median(test.values) : 0;
}

Table make_table(const Results& results) {
  const auto& tests = results.tests;
  const bool streamed =
      std::any_of(tests.begin(), tests.end(), [](const Test& test) { return test.bytes_read > 0; });
  const Test* one = one_row(results);
  std::vector<std::string> head = {"test", "median", "least", "most"};
  if (one) head.emplace_back("cost");
  if (results.roofs.memory > 0) head.insert(head.end(), {"weights", "of roof"});
  if (streamed) head.insert(head.end(), {"read / token", "hits", "stalled"});
  for (size_t p = 0; p < results.peers.size(); ++p)
    head.insert(head.end(),
                {results.peers.size() == 1 ? "other" : fmt::format("other {}", p + 1), "ratio"});
  Table table = {head};
  for (const Test& test : tests) {
    const auto show = [&test](double value) {
      return test.pass ? fmt::format("{:.2f} ms", 1e3 * value) : fmt::format("{:.2f} t/s", value);
    };
    std::vector<std::string> row = {test.name, show(median(test.values)), show(least(test.values)),
                                    show(most(test.values))};
    if (one)
      row.push_back(test.pass ? fmt::format("{:.2f}", paired_ratio(test.values, one->values)) : "");
    if (results.roofs.memory > 0) {
      const double rate = weight_rate(results, test);
      row.push_back(rate > 0 ? format_rate(rate) : "");
      const double share = results.plan.touched_per_token * paired_ratio(test.values, test.roofs);
      row.push_back(rate > 0 ? fmt::format("{:.0f} %", 100 * share) : "");
    }
    if (streamed) {
      const auto passes = static_cast<double>(test.tokens() * test.values.size());
      row.push_back(format_size(static_cast<double>(test.bytes_read) / passes));
      const uint64_t fired = test.hits + test.misses;
      row.push_back(fired == 0 ? ""
                               : fmt::format("{:.1f} %", 100.0 * static_cast<double>(test.hits) /
                                                             static_cast<double>(fired)));
      row.push_back(fmt::format("{:.0f} %", 100 * test.stall / test.seconds));
    }
    for (const Peer& peer : results.peers) {
      const auto found = peer.values.find(test.name);
      const bool there = found != peer.values.end();
      row.push_back(there ? show(median(found->second)) : "");
      row.push_back(there ? fmt::format("{:.2f}", paired_ratio(test.values, found->second)) : "");
    }
    table.push_back(std::move(row));
  }
  return table;
}

std::string describe(const Engine& engine, const Results& results, uint32_t repetitions) {
  const ModelInfo& info = engine.model().info();
  std::string text = fmt::format(
      "{}: {}, {}, {} of weights, {}\n", info.name, info.architecture, info.format,
      format_size(static_cast<double>(results.plan.total_bytes)), results.choices.at("source"));
  for (const char* key : {"cpu", "threads", "kernels", "activations", "kv", "io", "ceiling"})
    text += fmt::format("  {:<12} {}\n", key, results.choices.at(key));
  if (results.roofs.memory > 0)
    text += fmt::format("  {:<12} memory {}, disk {}\n", "measured",
                        format_rate(results.roofs.memory), format_rate(results.roofs.disk));
  return text + fmt::format("  {:<12} {}, interleaved\n\n", "repetitions", repetitions);
}

nlohmann::ordered_json as_json(const Engine& engine, const Results& results) {
  nlohmann::ordered_json tests = nlohmann::ordered_json::array();
  nlohmann::ordered_json prompts = nlohmann::ordered_json::array();
  for (const PromptsTest& test : results.prompts) prompts.push_back(test.json());
  const Test* one = one_row(results);
  for (const Test& test : results.tests) {
    nlohmann::ordered_json entry = {{"test", test.name},
                                    {"rows", test.shape.rows},
                                    {"depth", test.shape.depth},
                                    {"unit", test.pass ? "seconds a pass" : "tokens a second"},
                                    {"median", median(test.values)},
                                    {"values", test.values},
                                    {"bytes_read", test.bytes_read},
                                    {"expert_hits", test.hits},
                                    {"expert_misses", test.misses},
                                    {"stall_s", test.stall},
                                    {"seconds", test.seconds}};
    if (!test.roofs.empty()) entry["memory_bytes_per_s"] = test.roofs;
    if (one && test.pass) entry["cost"] = paired_ratio(test.values, one->values);
    nlohmann::ordered_json others = nlohmann::ordered_json::array();
    for (const Peer& peer : results.peers) {
      const auto found = peer.values.find(test.name);
      if (found == peer.values.end()) continue;
      others.push_back({{"command", peer.command},
                        {"values", found->second},
                        {"median", median(found->second)},
                        {"ratio", paired_ratio(test.values, found->second)}});
    }
    if (!others.empty()) entry["others"] = others;
    tests.push_back(std::move(entry));
  }
  return {{"model", engine.model().info().name},
          {"choices", results.choices},
          {"weight_bytes", results.plan.total_bytes},
          {"touched_per_token", results.plan.touched_per_token},
          {"memory_bytes_per_s", results.roofs.memory},
          {"disk_bytes_per_s", results.roofs.disk},
          {"tests", tests},
          {"prompts", prompts}};
}

// Prompts together have a length of their own; cut short they could not be compared.
void check_context_of_prompts(const Options& options) {
  constexpr uint32_t kNeeded = PromptsShape{}.prompt + PromptsShape{}.gen + 1;
  if (options.prompts.empty() || options.engine.context == 0 || options.engine.context >= kNeeded)
    return;
  usage_error("--context", fmt::format("{} is too small for --prompts, which needs {} positions",
                                       options.engine.context, kNeeded));
}

int run_streaming(const Cli& cli, const Options& options) {
  if (!options.compare.empty() || !options.rows.empty())
    usage_error("--streaming", "is a report of its own: --compare and --rows do not go with it");
  if (options.depth != Options{}.depth)
    usage_error("--depth", "does not go with --streaming, whose answers follow their prompts");
  if (options.prompt.size() != 1 || options.gen.size() != 1)
    usage_error("--streaming", "needs one --prompt and one --gen");
  StreamingOptions streaming;
  streaming.engine = options.engine;
  streaming.prompt = options.prompt[0];
  streaming.gen = options.gen[0];
  streaming.prompts = options.prompts;
  streaming.repetitions = options.repetitions;
  streaming.seed = kSeed;
  streaming.no_probe = options.no_probe;
  streaming.json = options.json;
  return bench_streaming(cli, std::move(streaming));
}

int run(const Cli& cli, Options options) {
  check_context_of_prompts(options);
  if (options.streaming) return run_streaming(cli, options);
  watch_interrupts(OnInterrupt::kExitSoon);
  Results results;
  results.tests = make_tests(options);
  uint64_t positions = 0;
  for (const Test& test : results.tests)
    positions = std::max(positions, test.shape.depth + test.tokens());
  for (const uint32_t n : options.prompts) {
    results.prompts.emplace_back(n, PromptsShape{});
    options.engine.max_requests = std::max(options.engine.max_requests, n);
    positions = std::max<uint64_t>(positions, PromptsShape{}.prompt + PromptsShape{}.gen + 1);
  }
  if (options.engine.context == 0) options.engine.context = static_cast<uint32_t>(positions);
  options.engine.preload = true;
  options.engine.log = [](std::string_view line) { spdlog::debug("{}", line); };
  options.engine.warn = [](std::string_view line) { spdlog::warn("{}", line); };
  if (!options.no_probe) {
    auto roofs = measure_roofs(options.engine.model, options.engine.threads);
    if (roofs) {
      results.roofs = std::move(*roofs);
    } else {
      spdlog::warn("the roofs are not known: {}", roofs.error().message);
    }
  }
  const auto engine = Engine::open(options.engine);
  if (!engine) return cli.report(engine.error());
  results.plan = (*engine)->plan();
  results.choices = (*engine)->choices();
  for (const std::string& text : options.compare)
    results.peers.push_back({command_of(text, options, results.choices.at("threads")), {}});

  const auto threads = static_cast<unsigned>(std::stoul(results.choices.at("threads")));
  for (uint32_t i = 0; i <= options.repetitions; ++i) {  // the first one warms up
    for (Test& test : results.tests) {
      spdlog::debug("repetition {}: {}", i, test.name);
      const uint64_t read = test.bytes_read;
      const auto status = measure(**engine, &test, kSeed + i, i > 0);
      if (!status) return cli.report(status.error());
      // What memory gives changes from second to second where the machine is shared. A model that is
      // streamed leaves no room to measure it again.
      if (i == 0 || options.no_probe || !reads_once(test)) continue;
      test.roofs.push_back(test.bytes_read == read ? io::probe_memory(threads)
                                                   : results.roofs.memory);
    }
    for (PromptsTest& test : results.prompts) {
      const auto status = test.measure(**engine, kSeed + i, i > 0);
      if (!status) return cli.report(status.error());
    }
    if (i == 0) continue;
    const auto status = run_peers(results.peers, results.tests);
    if (!status) return cli.report(status.error());
  }
  if (options.json) return cli.print_json(as_json(**engine, results));
  const std::string about = describe(**engine, results, options.repetitions);
  const Table table = make_table(results);
  const Table prompts = results.prompts.empty() ? Table() : PromptsTest::table(results.prompts);
  if (!options.markdown)
    return cli.print(about + plain(table) + (prompts.empty() ? "" : "\n" + plain(prompts)));
  return cli.print("<!-- BEGIN millrace bench -->\n```\n" + about + "```\n\n" + markdown(table) +
                   (prompts.empty() ? "" : "\n" + markdown(prompts)) +
                   "<!-- END millrace bench -->\n");
}

// "1,2,4"
void add_list(CLI::App& app, const std::string& name, std::vector<uint32_t>& out, uint32_t first,
              const std::string& help) {
  const auto read = [&out, first, flag = long_name(name)](const std::string& text) {
    out.clear();
    if (text == "none") return;
    for (const Token value : parse_ids(flag, text, "numbers")) {
      if (static_cast<uint32_t>(value) < first || static_cast<uint32_t>(value) > kMostTokens)
        usage_error(flag, fmt::format("{} is not from {} to {}", value, first, kMostTokens));
      out.push_back(static_cast<uint32_t>(value));
    }
  };
  app.add_option_function<std::string>(name, read, help)
      ->type_name("N,N,...")
      ->default_str(out.empty() ? "none" : fmt::format("{}", fmt::join(out, ",")));
}

}  // namespace

void add_bench(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("bench", "Measure how fast a model runs here");
  auto options = std::make_shared<Options>();
  add_model(app, options->engine.model);
  add_list(app, "--prompt", options->prompt, 1, "Prompts of so many tokens");
  add_list(app, "--gen", options->gen, 1, "So many tokens one by one");
  add_list(app, "--depth", options->depth, 0, "Behind so many tokens of context");
  add_list(app, "--rows", options->rows, 1, "Passes over so many rows, as speculation verifies");
  add_list(app, "--prompts", options->prompts, 1,
           "So many different prompts together, against one after another");
  app.add_flag("--streaming", options->streaming,
               "A report on reading weights: cold and warm, hits, waits, the disk's share");
  add_number(app, "--repetitions", options->repetitions, 1u, 1000u, "Of every test");
  app.add_option("--compare", options->compare, "Another engine's benchmark, run in between")
      ->type_name("CMD")
      ->expected(1);
  app.add_flag("--no-probe", options->no_probe, "Do not measure disk and memory");
  app.add_flag("--markdown", options->markdown,
               "A report to share (what --streaming prints anyhow)");
  app.add_flag("--json", options->json, "One JSON object")->excludes("--markdown");
  add_engine_flags(app, options->engine);
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
