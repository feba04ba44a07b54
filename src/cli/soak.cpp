// millrace soak: hours of mixed requests while the limits change under them. The output must never
// change, and memory never pass the ceiling.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "base/status.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/size.h"
#include "stream/cgroup.h"
#include "stream/ledger.h"

namespace millrace::cli {
namespace {

constexpr const char* kFooter = R"(
Answers of a few mixed requests (short and long prompts, greedy and sampled) are made once; then the
requests come again and again, several at a time, while --memory and --budget change every few
steps between the least that runs and what was given. It fails when an answer differs, or when the
process holds more than the ceiling in force. tools/soak.sh runs it inside memory cgroups.

  millrace soak model.gguf --memory 4G --minutes 30)";

struct Options {
  EngineOptions engine;
  double minutes = 10;
  uint64_t seed = 1;
  uint32_t every = 3;
  uint32_t longest = 130;
  bool json = false;
};

struct Tally {
  uint64_t steps = 0, tokens = 0, answers = 0, wrong = 0, asked = 0;
  uint64_t over = 0;  // most bytes by which the process passed the ceiling in force
  double longest_step_s = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<Request> mixed_requests(const Engine& engine, uint32_t longest,
                                    std::mt19937_64& random) {
  const uint32_t vocab = engine.model().info().vocab, context = engine.plan().context;
  std::vector<Request> requests;
  for (const uint32_t percent : {1u, 5u, 30u, 50u, 100u, 15u}) {
    const uint32_t length = std::max(1u, longest * percent / 100);
    Request request;
    const uint32_t tokens = 4 + static_cast<uint32_t>(random() % 13);
    for (uint32_t i = 0; i < std::min(length, context - tokens - 1); ++i)
      request.prompt_ids.push_back(static_cast<Token>(random() % vocab));
    request.max_tokens = tokens;
    request.ignore_eos = true;
    if (requests.size() % 2 == 1) {
      request.sampling.temperature = 0.8f;
      request.sampling.top_p = 0.95f;
      request.sampling.seed = random();
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

// One number for all answers, to compare runs under other ceilings with (FNV-1a).
uint64_t digest(const std::vector<std::vector<Token>>& answers) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& answer : answers) {
    for (const Token id : answer) hash = (hash ^ static_cast<uint64_t>(id)) * 0x100000001b3u;
    hash = (hash ^ 0xff00u) * 0x100000001b3u;
  }
  return hash;
}

class Soak {
 public:
  Soak(const Options& options, Engine& engine)
      : options_(options), engine_(engine), random_(options.seed) {
    const MemoryReport memory = engine.memory();
    ceiling_ = memory.ceiling;
    least_ = memory.kv + memory.activations + memory.process + engine.plan().smallest_budget;
  }

  Status run() {
    requests_ = mixed_requests(engine_, options_.longest, random_);
    for (const Request& request : requests_) {
      MILLRACE_ASSIGN(auto done, engine_.generate(request));
      expected_.push_back(std::move(done.token_ids));
    }
    const double begin = now(), seconds = options_.minutes * 60;
    double told = begin;
    while (now() - begin < seconds && !interrupted()) {
      if (now() - told > 60) {
        told = now();
        spdlog::info("{} of {}: {} answers, {} changed", format_seconds(told - begin),
                     format_seconds(seconds), tally.answers, tally.wrong);
      }
      while (running_.size() < std::max(1u, options_.engine.max_requests)) MILLRACE_TRY(submit());
      if (tally.steps % options_.every == 0) MILLRACE_TRY(change());
      const double start = now();
      auto stepped = engine_.step([this](const Event& event) { take(event); });
      if (!stepped) return tl::make_unexpected(stepped.error());
      tally.longest_step_s = std::max(tally.longest_step_s, now() - start);
      ++tally.steps;
      const MemoryReport memory = engine_.memory();
      if (!memory.error.empty()) return fail(Code::kNoMemory, "{}", memory.error);
      const uint64_t held = stream::current_rss();
      if (held > memory.ceiling) tally.over = std::max(tally.over, held - memory.ceiling);
    }
    return {};
  }

  uint64_t answers_digest() const { return digest(expected_); }
  Tally tally;

 private:
  struct Running {
    size_t request = 0;
    std::vector<Token> ids;
  };

  Status submit() {
    const size_t which = random_() % requests_.size();
    MILLRACE_ASSIGN(const uint64_t id, engine_.submit(requests_[which]));
    running_[id].request = which;
    return {};
  }

  // Another ceiling, or another bound for weights under it.
  Status change() {
    ++tally.asked;
    const uint64_t bytes = least_ + random_() % (ceiling_ - least_ + 1);
    switch (random_() % 4) {
      case 0:
        return engine_.set_memory(least_);
      case 1:
        return engine_.set_memory(bytes);
      case 2:
        MILLRACE_TRY(engine_.set_budget(UINT64_MAX));
        return engine_.set_memory(ceiling_);
      default:
        return engine_.set_budget(engine_.plan().smallest_budget +
                                  random_() % (engine_.plan().total_bytes + 1));
    }
  }

  void take(const Event& event) {
    const auto at = running_.find(event.request);
    if (at == running_.end()) return;
    Running& running = at->second;
    if (event.token) running.ids.push_back(*event.token), ++tally.tokens;
    if (event.finish == FinishReason::kNone) return;
    ++tally.answers;
    if (running.ids != expected_[running.request]) {
      ++tally.wrong;
      spdlog::error("an answer changed: request {}, {} tokens of {}{}", running.request,
                    running.ids.size(), expected_[running.request].size(),
                    event.error ? ": " + event.error->message : "");
    }
    running_.erase(at);
  }

  const Options& options_;
  Engine& engine_;
  std::mt19937_64 random_;
  uint64_t ceiling_ = 0, least_ = 0;
  std::vector<Request> requests_;
  std::vector<std::vector<Token>> expected_;
  std::map<uint64_t, Running> running_;
};

// What the kernel counted for our own memory cgroup, where we have one with a limit.
struct GroupPeak {
  std::string name;
  uint64_t limit = 0, peak = 0, kills = 0;
};
std::optional<GroupPeak> group_peak() {
  for (const stream::Cgroup& group : stream::memory_cgroups("")) {
    const auto limit = stream::limit_of(group);
    const auto peak = stream::read_number(
        group.folder + (group.v2 ? "/memory.peak" : "/memory.max_usage_in_bytes"));
    if (!limit || !peak) continue;
    const auto events =
        stream::read_text(group.folder + (group.v2 ? "/memory.events" : "/memory.oom_control"));
    return GroupPeak{group.name, limit->bytes, *peak,
                     events ? stream::number_after(*events, "oom_kill").value_or(0) : 0};
  }
  return std::nullopt;
}

int run(const Cli& cli, const Options& options) {
  watch_interrupts(OnInterrupt::kStopAnswer);
  auto engine = Engine::open(options.engine);
  if (!engine) return cli.report(engine.error());
  const uint64_t ceiling = (*engine)->memory().ceiling;
  Soak soak(options, **engine);
  const Status done = soak.run();
  if (!done) return cli.report(done.error());

  const Tally& t = soak.tally;
  const MemoryReport memory = (*engine)->memory();
  const PressureReport pressure = (*engine)->pressure();
  const auto group = group_peak();
  const bool good = t.wrong == 0 && t.over == 0 && memory.peak_rss <= ceiling &&
                    (!group || group->kills == 0) && t.answers > 0;
  const auto size = [](uint64_t b) { return format_size(static_cast<double>(b)); };
  if (options.json) {
    nlohmann::ordered_json json = {
        {"ok", good},
        {"ceiling", ceiling},
        {"peak_rss", memory.peak_rss},
        {"over", t.over},
        {"steps", t.steps},
        {"tokens", t.tokens},
        {"answers", t.answers},
        {"answers_changed", t.wrong},
        {"answers_digest", fmt::format("{:016x}", soak.answers_digest())},
        {"changes", memory.changes},
        {"longest_change_s", memory.longest_change_s},
        {"longest_step_s", t.longest_step_s},
        {"bytes_read", (*engine)->io().bytes_read},
        {"warnings", pressure.warnings},
        {"criticals", pressure.criticals},
        {"bytes_shed", pressure.bytes_shed},
        {"cgroup", nullptr},
    };
    if (group)
      json["cgroup"] = {{"name", group->name},
                        {"limit", group->limit},
                        {"peak", group->peak},
                        {"oom_kills", group->kills}};
    if (const int code = cli.print_json(json); code != kOk) return code;
  } else {
    std::string text = fmt::format(
        "  {} answers, {} of them changed; {} tokens in {} steps\n"
        "  {} changes of limits, the longest took {:.0f} ms\n"
        "  process peak {} under a ceiling of {}; passed a ceiling in force by {}\n"
        "  memory ran short {} times, {} given back\n",
        t.answers, t.wrong, t.tokens, t.steps, memory.changes, memory.longest_change_s * 1e3,
        size(memory.peak_rss), size(ceiling), size(t.over), pressure.warnings + pressure.criticals,
        size(pressure.bytes_shed));
    if (group)
      text += fmt::format("  cgroup {}: peak {} of {}, {} kills\n", group->name, size(group->peak),
                          size(group->limit), group->kills);
    if (const int code = cli.print(text); code != kOk) return code;
  }
  if (interrupted()) return kInterrupted;
  return good ? kOk : kError;
}

}  // namespace

void add_soak(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand(
      "soak", "Check that answers and memory hold while limits change, for as long as you like");
  auto options = std::make_shared<Options>();
  options->engine.max_requests = 3;
  options->engine.context = 512;
  add_model(app, options->engine.model);
  add_number(app, "--minutes", options->minutes, 0.001, 1e6, "How long, after the first answers");
  add_number(app, "--every", options->every, 1u, 1u << 20, "Steps between two changes");
  add_number(app, "--longest", options->longest, 1u, 1u << 20, "Tokens of the longest prompt");
  add_number(app, "--seed", options->seed, uint64_t{0}, UINT64_MAX, "Of requests and changes");
  app.add_flag("--json", options->json, "One JSON object");
  add_engine_flags(app, options->engine);
  app.footer(kFooter);
  options->engine.warn = [](std::string_view line) { spdlog::warn("{}", line); };
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
