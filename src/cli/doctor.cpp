// millrace doctor: what this machine has, and what each thing means for running big models.

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/peer.h"
#include "cli/roofs.h"
#include "cli/size.h"
#include "io/probe.h"
#include "io/uring.h"
#include "millrace/millrace.h"
#include "stream/cgroup.h"
#include "stream/ledger.h"
#include "stream/pressure.h"

namespace millrace::cli {
namespace {

constexpr const char* kFooter = R"(
  millrace doctor
  millrace doctor --path /mnt/models      the disk that holds the models)";

struct Options {
  std::string path = ".";
  bool no_probe = false, json = false;
};

struct Finding {
  std::string name, value, meaning;
};

std::string instruction_sets(const Cpu& cpu) {
  std::string text;
  for (const Isa isa : cpu.sets()) {
    if (isa != Isa::kScalar) text += fmt::format("{}{}", text.empty() ? "" : " ", name(isa));
  }
  return text.empty() ? "none of those with kernels here" : text;
}

Finding processor(const Cpu& cpu) {
  return {"processor",
          fmt::format("{}, {} usable, {}", cpu.model, cpu.logical, instruction_sets(cpu)),
          cpu.sets().size() > 1 ? "fast kernels are used"
                                : "only portable kernels run here: expect low speed"};
}

Finding memory_total(const Expected<stream::MemoryLimit>& limit) {
  if (!limit) return {"memory", "unknown", limit.error().message};
  return {"memory",
          fmt::format("{} usable ({}), {} free now", format_size(static_cast<double>(limit->bytes)),
                      limit->source, format_size(static_cast<double>(limit->available))),
          "what --memory auto starts from; a model may be larger than this"};
}

// The bracketed word of /sys/kernel/mm/transparent_hugepage/enabled.
Finding huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(file, line);
  const size_t open = line.find('['), close = line.find(']');
  if (open == std::string::npos || close == std::string::npos)
    return {"huge pages", "unknown", "weights lie in small pages, which costs some speed"};
  const std::string mode = line.substr(open + 1, close - open - 1);
  return {"huge pages", mode,
          mode == "never" ? "weights lie in small pages, which costs some speed"
                          : "weights can lie in huge pages"};
}

Finding free_disk(const std::string& path) {
  struct statvfs fs {};
  if (::statvfs(path.c_str(), &fs) != 0) return {"free disk", "unknown", std::strerror(errno)};
  return {"free disk",
          format_size(static_cast<double>(fs.f_bavail) * static_cast<double>(fs.f_frsize)),
          "packing needs as much as the model is large"};
}

Finding io_uring() {
  const std::string obstacle = io::why_no_io_uring();
  if (obstacle.empty()) {
    return {"io_uring", "available",
            "reads can be made without a thread for each; a model takes the faster way"};
  }
  return {"io_uring", obstacle, "a pool of reading threads is used instead; it works everywhere"};
}

// MB/s of direct reads: a row for each way and size, a column for each depth.
std::string curve_table(const std::vector<io::ReadRate>& curve) {
  std::string text = fmt::format("\n{:<22}", "direct reads, MB/s");
  for (const unsigned depth : io::kProbeDepths) text += fmt::format("{:>8}", depth);
  text += "  at a time\n";
  for (const io::Via via : {io::Via::kPread, io::Via::kUring}) {
    for (const uint64_t request : io::kProbeRequests) {
      std::string row;
      bool any = false;
      for (const unsigned depth : io::kProbeDepths) {
        const auto at = std::ranges::find_if(curve, [&](const io::ReadRate& r) {
          return r.via == via && r.request == request && r.depth == depth;
        });
        any = any || at != curve.end();
        row += at == curve.end() ? fmt::format("{:>8}", "-")
                                 : fmt::format("{:>8.0f}", at->bytes_per_second() / 1e6);
      }
      if (!any) continue;
      text += fmt::format("  {:<10}{:<10}{}\n", io::name(via),
                          format_size(static_cast<double>(request)), row);
    }
  }
  return text;
}

// What a model with pieces of that size would be read with.
Finding reading_choice(const std::vector<io::ReadRate>& curve) {
  std::string value;
  for (const uint64_t request : io::kProbeRequests) {
    std::vector<io::ReadRate> of_size;
    std::ranges::copy_if(curve, std::back_inserter(of_size),
                         [&](const io::ReadRate& r) { return r.request == request; });
    const io::ReadRate* best = io::pick(of_size);
    if (best == nullptr) continue;
    value +=
        fmt::format("{}{}: {} {} deep", value.empty() ? "" : ", ",
                    format_size(static_cast<double>(request)), io::name(best->via), best->depth);
  }
  return {"reads", value,
          "what a packed model with pieces of that size is read with, unless told otherwise"};
}

// Bytes of a line of /proc/meminfo, which counts in KiB.
uint64_t meminfo(const std::string& text, std::string_view key) {
  return stream::number_after(text, key).value_or(0) * 1024;
}

std::string size_of(uint64_t bytes) { return format_size(static_cast<double>(bytes)); }

Finding swap_space() {
  const auto text = stream::read_text("/proc/meminfo");
  const uint64_t total = text ? meminfo(*text, "SwapTotal:") : 0;
  if (total == 0) return {"swap", "none", "nothing of a model can be swapped out"};
  return {"swap", fmt::format("{}, {} free", size_of(total), size_of(meminfo(*text, "SwapFree:"))),
          "weights that are swapped out are slow; --mlock keeps them in memory"};
}

Finding explicit_huge_pages() {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const auto total = stream::read_number(folder + "nr_hugepages");
  const auto free = stream::read_number(folder + "free_hugepages");
  if (!total || !free)
    return {"2 MiB pages", "unknown", "the kernel does not tell of explicit huge pages"};
  return {"2 MiB pages", fmt::format("{} reserved, {} free", *total, *free),
          *free == 0 ? "--huge-pages on finds none (vm.nr_hugepages reserves them)"
                     : "what --huge-pages on can take"};
}

Finding locked_memory() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
    return {"locked memory", "unknown", std::strerror(errno)};
  if (limit.rlim_cur == RLIM_INFINITY)
    return {"locked memory", "no limit", "--mlock can lock any model"};
  return {"locked memory", fmt::format("at most {}", size_of(limit.rlim_cur)),
          "--mlock needs as much as the weights in memory (ulimit -l), or the right to pass it"};
}

Finding memory_groups() {
  std::string value;
  for (const stream::Cgroup& group : stream::memory_cgroups("")) {
    const auto limit = stream::limit_of(group);
    value += fmt::format(
        "{}{} {}: {}", value.empty() ? "" : ", ", group.v2 ? "v2" : "v1", group.name,
        limit ? fmt::format("{} ({})", size_of(limit->bytes), limit->file) : "no limit");
  }
  if (value.empty())
    return {"cgroups", "none of memory can be seen", "only physical memory bounds --memory auto"};
  return {"cgroups", value, "--memory auto stays below the smallest limit"};
}

Finding pressure_signs() {
  const auto monitor = stream::PressureMonitor::create();
  return {"pressure", monitor->watching(),
          monitor->active() ? "weights' memory is given back while memory runs short (--pressure)"
                            : "nothing tells when memory runs short: leave room with --memory"};
}

Finding fio() {
  const auto asked = run_peer("fio --version 2>/dev/null");
  const bool there = asked && asked->exit_code == 0;
  const std::string word = there ? asked->output.substr(0, asked->output.find('\n')) : "";
  return {"fio", there ? word : "not installed",
          "bench --streaming compares its reads with what fio reaches"};
}

std::vector<Finding> probe_findings(const Roofs& roofs) {
  std::vector<Finding> findings;
  if (!roofs.no_direct.empty())
    findings.push_back(
        {"direct reads", roofs.no_direct,
         "weights are read through the page cache, which competes with them for memory"});
  findings.push_back({"disk", fmt::format("{} ({})", format_rate(roofs.disk), roofs.disk_how),
                      fmt::format("1 GiB that is not in memory takes {}",
                                  format_seconds(static_cast<double>(1ull << 30) / roofs.disk))});
  if (!roofs.curve.empty()) findings.push_back(reading_choice(roofs.curve));
  findings.push_back(
      {"memory speed", format_rate(roofs.memory),
       fmt::format(
           "the roof of decoding: at most {:.0f} tok/s for a model that reads 1 GiB a token",
           roofs.memory / static_cast<double>(1ull << 30))});
  return findings;
}

int run(const Cli& cli, const Options& options) {
  watch_interrupts(OnInterrupt::kExitSoon);
  if (::access(options.path.c_str(), R_OK) != 0)
    return cli.report(
        {Code::kNotFound, fmt::format("--path: '{}': {}", options.path, std::strerror(errno))});
  const Cpu cpu = Cpu::detect();
  std::vector<Finding> findings = {processor(cpu),
                                   memory_total(stream::memory_limit()),
                                   memory_groups(),
                                   pressure_signs(),
                                   swap_space(),
                                   locked_memory(),
                                   huge_pages(),
                                   explicit_huge_pages(),
                                   free_disk(options.path),
                                   io_uring(),
                                   fio()};
  Roofs roofs;
  if (!options.no_probe) {
    auto measured = measure_roofs(options.path, cpu.logical);
    if (measured) {
      roofs = std::move(*measured);
      for (Finding& finding : probe_findings(roofs)) findings.push_back(std::move(finding));
    } else {
      findings.push_back({"disk", "not measured", measured.error().message});
    }
  }
  if (options.json) {
    nlohmann::ordered_json json = {{"version", std::string(version())}};
    for (const Finding& finding : findings)
      json["findings"].push_back(
          {{"name", finding.name}, {"value", finding.value}, {"meaning", finding.meaning}});
    if (roofs.measured)
      json["measured"] = {{"disk_bytes_per_s", roofs.disk},
                          {"disk_mode", roofs.disk_how},
                          {"memory_bytes_per_s", roofs.memory}};
    for (const io::ReadRate& rate : roofs.curve)
      json["curve"].push_back({{"way", std::string(io::name(rate.via))},
                               {"request", rate.request},
                               {"depth", rate.depth},
                               {"bytes_per_s", rate.bytes_per_second()},
                               {"cpu_s_per_gib", rate.cpu_seconds * static_cast<double>(1 << 30) /
                                                     static_cast<double>(rate.bytes)}});
    return cli.print_json(json);
  }
  std::string text = fmt::format("millrace {}\n", version());
  for (const Finding& finding : findings)
    text += fmt::format("\n{:<13} {}\n{:<13} -> {}\n", finding.name, finding.value, "",
                        finding.meaning);
  if (!roofs.curve.empty()) text += curve_table(roofs.curve);
  return cli.print(text);
}

}  // namespace

void add_doctor(CLI::App& root, Cli& cli) {
  CLI::App& app =
      *root.add_subcommand("doctor", "Look at this machine: cpu, memory, disk, and what it means");
  auto options = std::make_shared<Options>();
  app.add_option("--path", options->path, "The disk to look at: a folder or a model on it")
      ->type_name("PATH")
      ->default_str("the current folder");
  app.add_flag("--no-probe", options->no_probe, "Do not measure disk and memory");
  app.add_flag("--json", options->json, "One JSON object");
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
