#include "cli/bench_streaming.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "base/status.h"
#include "cli/answer.h"
#include "cli/bench_prompts.h"
#include "cli/interrupt.h"
#include "cli/medians.h"
#include "cli/peer.h"
#include "cli/roofs.h"
#include "cli/size.h"
#include "cli/table.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A prompt, or the tokens behind it.
struct Phase {
  explicit Phase(std::string n) : name(std::move(n)) {}
  std::string name;
  std::vector<double> rates;  // tokens a second, by repetition
  uint64_t tokens = 0, bytes = 0, hits = 0, misses = 0;
  double seconds = 0, stall = 0, busy = 0, idle = 0;

  void add(uint64_t n, double took, const IoReport& from, const IoReport& to) {
    if (n == 0 || took <= 0) return;
    rates.push_back(static_cast<double>(n) / took);
    tokens += n;
    seconds += took;
    bytes += to.bytes_read - from.bytes_read;
    hits += to.expert_hits - from.expert_hits;
    misses += to.expert_misses - from.expert_misses;
    stall += to.stall_s - from.stall_s;
    busy += to.busy_s - from.busy_s;
    idle += to.idle_s - from.idle_s;
  }
  double read_rate() const { return busy > 0 ? static_cast<double>(bytes) / busy : 0; }
  double hit_rate() const {
    return hits + misses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
};

struct Results {
  std::vector<Phase> phases = {Phase("cold prompt"), Phase("cold answer"), Phase("warm prompt"),
                               Phase("warm answer")};
  std::vector<PromptsTest> prompts;
  Roofs roofs;
  double fio = 0;  // bytes a second; 0: none, and no_fio says why
  std::string fio_how, no_fio;
  double load_s = 0;
};

void drop_file(const std::string& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

// The system forgets what it keeps of the model's files: reads are from the disk again.
void drop_cached(const EngineOptions& engine) {
  for (const std::string& file : model_files(engine.model)) drop_file(file);
  for (const std::string& mirror : engine.mirrors)
    for (const std::string& file : model_files(mirror)) drop_file(file);
}

// Bytes a second in what fio printed; 0: none.
double read_rate_of(const std::string& output) {
  const size_t begin = output.find('{');
  if (begin == std::string::npos) return 0;
  const auto json = nlohmann::json::parse(output.substr(begin), nullptr, false);
  if (!json.is_object() || !json.contains("jobs") || !json["jobs"].is_array() ||
      json["jobs"].empty())
    return 0;
  const auto& job = json["jobs"][0];
  if (!job.contains("read") || !job["read"].contains("bw_bytes")) return 0;
  return job["read"]["bw_bytes"].is_number() ? job["read"]["bw_bytes"].get<double>() : 0;
}

std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// What fio reaches with the engine's own way of reading: as many reads of the same size in flight, by
// io_uring or by threads, direct or through the page cache.
void ask_fio(const std::string& file, const IoReport& io, Results* results) {
  const uint64_t wanted = io.read_bytes != 0 ? io.read_bytes : uint64_t{4} << 20;
  const uint64_t size = std::max<uint64_t>(4096, wanted / 4096 * 4096);
  const unsigned depth = std::max(1u, io.depth);
  const bool direct = io.mode == "direct";
  std::string name;
  for (const char c : file) name += c == ':' ? std::string("\\:") : std::string(1, c);
  // No ramp: what is in flight when it ends would count twice.
  const auto run = run_peer(fmt::format(
      "command -v fio >/dev/null 2>&1 || exit 127; exec fio --name=millrace --readonly "
      "--rw=randread --direct={} {} --bs={} --runtime=3 --time_based --output-format=json "
      "--filename={} 2>&1",
      direct ? 1 : 0,
      io.uring ? fmt::format("--ioengine=io_uring --iodepth={}", depth)
               : fmt::format("--ioengine=psync --thread --numjobs={} --group_reporting", depth),
      size, shell_word(name)));
  results->fio_how =
      fmt::format("{}, {}, reads of {}, {} at a time, {}", direct ? "direct" : "buffered",
                  io.uring ? "io_uring" : "threads", format_size(static_cast<double>(size)), depth,
                  fs::path(file).filename().string());
  if (!run) {
    results->no_fio = run.error().message;
  } else if (run->exit_code == 127) {
    results->no_fio = "not installed";
  } else if (const double rate = read_rate_of(run->output); rate > 0) {
    results->fio = rate;
  } else {
    const std::string said = run->output.substr(0, run->output.find('\n'));
    results->no_fio = fmt::format("failed with {}: {}", run->exit_code, said);
  }
}

Status ask_once(Engine& engine, const StreamingOptions& o, uint64_t seed, Phase* prompt,
                Phase* answer) {
  std::mt19937_64 random(seed);
  Request request;
  for (uint32_t i = 0; i < o.prompt; ++i)
    request.prompt_ids.push_back(static_cast<Token>(random() % engine.model().info().vocab));
  request.max_tokens = o.gen + 1;  // the first comes out of the prompt
  request.ignore_eos = true;
  const IoReport before = engine.io();
  IoReport first = before;
  bool begun = false;
  MILLRACE_ASSIGN(const auto done, engine.generate(std::move(request), [&](const Event& event) {
    if (event.token && !begun) {
      begun = true;
      first = engine.io();
    }
    return !interrupted();
  }));
  prompt->add(o.prompt, done.timings.prefill_s, before, first);
  answer->add(done.token_ids.size() - 1, done.timings.decode_s, first, engine.io());
  return {};
}

Table make_table(const Results& results) {
  Table table;
  table.emplace_back().emplace_back("");
  for (const Phase& phase : results.phases) table[0].push_back(phase.name);
  const auto row = [&](const std::string& name, auto cell) {
    auto& cells = table.emplace_back();
    cells.push_back(name);
    for (const Phase& phase : results.phases) cells.push_back(cell(phase));
  };
  const auto percent = [](double part, double whole) {
    return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : std::string();
  };
  row("speed", [](const Phase& p) { return fmt::format("{:.2f} t/s", median(p.rates)); });
  row("least to most", [](const Phase& p) {
    if (p.rates.empty()) return std::string();
    const auto [low, high] = std::minmax_element(p.rates.begin(), p.rates.end());
    return fmt::format("{:.2f} to {:.2f}", *low, *high);
  });
  row("read / token", [](const Phase& p) {
    return format_size(static_cast<double>(p.bytes) /
                       static_cast<double>(std::max<uint64_t>(1, p.tokens)));
  });
  row("experts there", [&](const Phase& p) {
    return percent(static_cast<double>(p.hits), static_cast<double>(p.hits + p.misses));
  });
  row("waited for the disk", [&](const Phase& p) { return percent(p.stall, p.seconds); });
  row("disk busy", [&](const Phase& p) { return percent(p.busy, p.seconds); });
  row("disk at rest while waited for", [&](const Phase& p) { return percent(p.idle, p.seconds); });
  row("read rate while busy",
      [](const Phase& p) { return p.bytes == 0 ? std::string() : format_rate(p.read_rate()); });
  if (results.roofs.disk > 0)
    row("of the probe", [&](const Phase& p) {
      return p.bytes == 0 ? std::string() : percent(p.read_rate(), results.roofs.disk);
    });
  if (results.fio > 0)
    row("of fio", [&](const Phase& p) {
      return p.bytes == 0 ? std::string() : percent(p.read_rate(), results.fio);
    });
  return table;
}

std::string report(const Engine& engine, const StreamingOptions& o, const Results& results) {
  const ModelInfo& info = engine.model().info();
  const Plan& plan = engine.plan();
  const MemoryReport memory = engine.memory();
  const auto choices = engine.choices();
  const auto size = [](uint64_t bytes) { return format_size(static_cast<double>(bytes)); };
  std::string text = "<!-- BEGIN millrace-streaming -->\n";
  text += fmt::format("**{}** ({}, {}, {} of weights, {}) with millrace {}\n\n", info.name,
                      info.architecture, info.format, size(plan.total_bytes), choices.at("source"),
                      version());
  text += markdown(make_table(results));
  text += fmt::format(
      "\nPrompt of {} tokens, answer of {}; cold is the first request after opening ({}) with "
      "nothing cached, warm the median of {}.\n\n",
      o.prompt, o.gen, format_seconds(results.load_s), o.repetitions);
  if (!results.prompts.empty()) text += markdown(PromptsTest::table(results.prompts)) + "\n";
  const auto item = [&text](std::string_view what, const std::string& value) {
    text += fmt::format("- {}: {}\n", what, value);
  };
  item("memory", fmt::format("peak {} of a ceiling of {} ({:.1f} %): weights {}, KV {}, "
                             "activations {}, process {}",
                             size(memory.peak_rss), size(memory.ceiling),
                             100 * static_cast<double>(memory.peak_rss) /
                                 static_cast<double>(std::max<uint64_t>(1, memory.ceiling)),
                             size(memory.arena), size(memory.kv), size(memory.activations),
                             size(memory.process)));
  if (results.roofs.disk > 0)
    item("disk, probed",
         fmt::format("{} ({})", format_rate(results.roofs.disk), results.roofs.disk_how));
  if (results.fio > 0)
    item("disk, fio", fmt::format("{} ({})", format_rate(results.fio), results.fio_how));
  else if (!results.no_fio.empty())
    item("disk, fio", results.no_fio);
  const IoReport io = engine.io();
  item("reads, in flight", fmt::format("{} at most, {}, {}", io.depth,
                                       io.uring ? "io_uring" : "a pool of threads", io.mode));
  item("prefetched", fmt::format("{} begun, {} used, {} wasted, {} gave way", io.prefetch_issued,
                                 io.prefetch_used, io.prefetch_wasted, io.prefetch_cancelled));
  for (const char* key : {"cpu", "kernels", "threads", "io", "reads", "mirrors", "policy",
                          "prefetch", "prefill_chunk", "ceiling"})
    if (const auto found = choices.find(key); found != choices.end()) item(key, found->second);
  return text + "<!-- END millrace-streaming -->\n";
}

nlohmann::ordered_json as_json(const Engine& engine, const StreamingOptions& o,
                               const Results& results) {
  nlohmann::ordered_json phases = nlohmann::ordered_json::array();
  for (const Phase& p : results.phases) {
    phases.push_back({{"phase", p.name},
                      {"median", median(p.rates)},
                      {"values", p.rates},
                      {"tokens", p.tokens},
                      {"seconds", p.seconds},
                      {"bytes_read", p.bytes},
                      {"expert_hits", p.hits},
                      {"expert_misses", p.misses},
                      {"hit_rate", p.hit_rate()},
                      {"stall_s", p.stall},
                      {"busy_s", p.busy},
                      {"idle_s", p.idle},
                      {"bytes_per_s_while_busy", p.read_rate()}});
  }
  nlohmann::ordered_json prompts = nlohmann::ordered_json::array();
  for (const PromptsTest& test : results.prompts) prompts.push_back(test.json());
  const IoReport io = engine.io();
  return {{"model", engine.model().info().name},
          {"weight_bytes", engine.plan().total_bytes},
          {"prompt_tokens", o.prompt},
          {"answer_tokens", o.gen},
          {"load_s", results.load_s},
          {"phases", phases},
          {"prompts", prompts},
          {"memory", memory_json(engine.memory())},
          {"probed_bytes_per_s", results.roofs.disk},
          {"fio_bytes_per_s", results.fio},
          {"fio", results.no_fio.empty() ? results.fio_how : results.no_fio},
          {"reading",
           {{"mode", io.mode},
            {"backend", io.uring ? "io_uring" : "pread"},
            {"depth", io.depth},
            {"bytes", io.read_bytes}}},
          {"prefetch",
           {{"issued", io.prefetch_issued},
            {"used", io.prefetch_used},
            {"wasted", io.prefetch_wasted},
            {"cancelled", io.prefetch_cancelled}}},
          {"choices", engine.choices()}};
}

Status measure(Engine& engine, const StreamingOptions& o, Results* results) {
  auto& p = results->phases;
  MILLRACE_TRY(ask_once(engine, o, o.seed, &p[0], &p[1]));
  for (uint32_t i = 1; i <= o.repetitions && !interrupted(); ++i) {
    spdlog::debug("repetition {}", i);
    MILLRACE_TRY(ask_once(engine, o, o.seed + i, &p[2], &p[3]));
    for (PromptsTest& test : results->prompts)
      MILLRACE_TRY(test.measure(engine, o.seed + 7919 * i, true));
  }
  return {};
}

}  // namespace

int bench_streaming(const Cli& cli, StreamingOptions o) {
  watch_interrupts(OnInterrupt::kExitSoon);
  Results results;
  for (const uint32_t n : o.prompts) {
    results.prompts.emplace_back(n, PromptsShape{});
    o.engine.max_requests = std::max(o.engine.max_requests, n);
  }
  if (o.engine.context == 0)
    o.engine.context =
        std::max(o.prompt + o.gen + 1, PromptsShape{}.prompt + PromptsShape{}.gen + 1);
  o.engine.log = [](std::string_view line) { spdlog::debug("{}", line); };
  o.engine.warn = [](std::string_view line) { spdlog::warn("{}", line); };
  if (!o.no_probe) {
    if (auto roofs = measure_roofs(o.engine.model, o.engine.threads)) {
      results.roofs = std::move(*roofs);
    } else {
      spdlog::warn("the disk's speed is not known: {}", roofs.error().message);
    }
  }
  drop_cached(o.engine);
  const auto start = Clock::now();
  const auto engine = Engine::open(o.engine);
  if (!engine) return cli.report(engine.error());
  results.load_s = std::chrono::duration<double>(Clock::now() - start).count();
  if (auto status = measure(**engine, o, &results); !status) return cli.report(status.error());
  if (!o.no_probe) ask_fio(model_file(o.engine.model), (*engine)->io(), &results);
  if (auto traced = (*engine)->finish_trace(); !traced) return cli.report(traced.error());
  if (o.json) return cli.print_json(as_json(**engine, o, results));
  return cli.print(report(**engine, o, results));
}

}  // namespace millrace::cli
