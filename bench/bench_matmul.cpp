// Matrix products beside the memory's read roof: GB/s of weights, share of the roof, cost against
// one row.
//
// The roof is a read-only sum over a buffer far larger than the caches, on the same threads,
// measured in the same run. One product works on a set of matrices that together exceed the caches
// (as decode does), unless there are many rows (prefill), where one matrix is enough.
//
//   --every_kernel   all that this processor can run, not only the one that would be chosen: what
//                    orders the ladder and sets thresholds
//   --threads=N      instead of one for each processor
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "bench/cases.h"
#include "kernels/matmul.h"

namespace millrace::bench {
namespace {

// Each thread reads four streams side by side: one alone does not fill the memory's queue.
uint64_t read_all(const std::vector<uint64_t>& buffer, Threads& threads) {
  std::vector<uint64_t> sums(threads.count() * 8);
  threads.parallel(buffer.size() / 64, 1, [&](uint64_t begin, uint64_t end, unsigned thread) {
    const uint64_t part = (end - begin) / 4 * 64;
    const uint64_t* p = buffer.data() + 64 * begin;
    uint64_t sum[4] = {};
    for (uint64_t i = 0; i < part; i += 8) {
      for (uint64_t s = 0; s < 4; ++s) {
        const uint64_t* line = p + s * part + i;
        __builtin_prefetch(line + 256);
        for (int j = 0; j < 8; ++j) sum[s] += line[j];
      }
    }
    sums[thread * 8] = sum[0] + sum[1] + sum[2] + sum[3];
  });
  uint64_t total = 0;
  for (const uint64_t s : sums) total += s;
  return total;
}

// Bytes a second that memory gives right now.
double roof_now(Threads& threads) {
  static const std::vector<uint64_t> buffer(32 << 20, 1);  // 256 MB
  const auto start = std::chrono::steady_clock::now();
  benchmark::DoNotOptimize(read_all(buffer, threads));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return static_cast<double>(buffer.size() * 8) / took.count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void roof(benchmark::State& state, Threads* threads) {
  std::vector<double> rates;
  for (auto _ : state) rates.push_back(roof_now(*threads));
  state.counters["GB/s"] = *std::max_element(rates.begin(), rates.end()) / 1e9;
  state.counters["GB/s_median"] = median(rates) / 1e9;
}

// Times of one row by case, to print the cost of more.
std::map<std::string, double>& one_row() {
  static std::map<std::string, double> times;
  return times;
}

// Ordinary shapes of a layer, and their rows: decode, verify, prefill.
constexpr uint32_t kOutputs = 3072, kCols = 1024;
constexpr uint32_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 256};

void matmul(benchmark::State& state, const Case& c, const kernels::MatmulKernel& kernel,
            uint32_t rows, Threads* threads) {
  constexpr uint32_t outputs = kOutputs, cols = kCols;
  const WeightLayout layout = with_shape(c.layout, outputs, cols);
  const uint64_t bytes = format::packed_bytes(layout);
  const uint64_t copies = rows >= 16 ? 1 : std::max<uint64_t>(1, (96ull << 20) / bytes);
  const RandomWeight first(layout, Scales::kOrdinary, 1);
  std::vector<std::vector<std::byte>> weights(copies);
  for (auto& w : weights) w.assign(first.data(), first.data() + bytes);
  const RandomRows x(rows, cols, 2);
  std::vector<float> out(uint64_t{rows} * outputs);

  std::vector<double> times, shares;
  uint64_t next = 0;
  for (auto _ : state) {
    // One matrix after another, as the layers of a decode step.
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < copies; ++i, ++next) {
      kernels::MatmulArgs args;
      args.weight = {layout, weights[next % copies].data()};
      args.rows = x.rows();
      args.out = out.data();
      args.out_stride = outputs;
      threads->parallel((outputs + 7) / 8, 4, [&](uint64_t begin, uint64_t end, unsigned) {
        kernels::MatmulArgs part = args;
        part.tile_begin = static_cast<uint32_t>(begin);
        part.tile_end = static_cast<uint32_t>(end);
        kernel.run(part);
      });
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count() / static_cast<double>(copies));
    // A shared machine's memory changes within a second: each pass beside its own roof.
    if (rows == 1) shares.push_back(static_cast<double>(bytes) / times.back() / roof_now(*threads));
  }
  std::sort(times.begin(), times.end());
  // Other work on the machine only ever adds time: the fastest tenth is what the kernel does.
  const double best = times[times.size() / 10];
  const double speed = static_cast<double>(bytes) / best;
  const std::string key = c.name + "/" + kernel.name;
  if (rows == 1) one_row()[key] = best;
  state.SetLabel(std::string(kernel.name));
  state.counters["us"] = best * 1e6;
  state.counters["us_median"] = times[times.size() / 2] * 1e6;
  state.counters["GB/s"] = speed / 1e9;
  if (!shares.empty()) state.counters["roof%"] = 100.0 * median(shares);
  if (one_row().count(key) != 0) state.counters["x1row"] = best / one_row()[key];
  state.counters["GMAC/s"] = static_cast<double>(outputs) * cols * rows / best / 1e9;
}

}  // namespace
}  // namespace millrace::bench

// Takes `flag` out of the arguments; its value, if it was there.
std::optional<std::string> take_flag(int* argc, char** argv, const std::string& flag) {
  for (int i = 1; i < *argc; ++i) {
    const std::string arg = argv[i];
    if (arg != flag && !arg.starts_with(flag + "=")) continue;
    std::copy(argv + i + 1, argv + *argc, argv + i);
    --*argc;
    return arg == flag ? "" : arg.substr(flag.size() + 1);
  }
  return std::nullopt;
}

int main(int argc, char** argv) {
  using namespace millrace;
  const Cpu cpu = Cpu::detect();
  const bool every = take_flag(&argc, argv, "--every_kernel").has_value();
  const auto count = take_flag(&argc, argv, "--threads");
  const unsigned wanted = count ? static_cast<unsigned>(std::atoi(count->c_str())) : cpu.logical;
  if (wanted == 0) {
    std::fprintf(stderr, "--threads: '%s' is no number of threads\n", count->c_str());
    return 1;
  }
  Threads threads(wanted);
  benchmark::RegisterBenchmark("roof/read", bench::roof, &threads)->Iterations(20);
  for (const bench::Case& c : bench::all_cases(bench::Scope::kOrdinary)) {
    const auto int8 = kernels::Activations::kInt8;
    const kernels::MatmulKernel* chosen = &kernels::select_matmul(c.layout, int8, cpu);
    for (const kernels::MatmulKernel& kernel : kernels::matmul_kernels()) {
      if (!kernel.supports(c.layout, int8, cpu) || (!every && &kernel != chosen)) continue;
      if (every && kernel.isa == Isa::kScalar) continue;
      for (const uint32_t rows : bench::kRowCounts) {
        const std::string title =
            fmt::format("matmul/{}/{}/rows:{}", c.name, name(kernel.isa), rows);
        benchmark::RegisterBenchmark(title.c_str(), bench::matmul, c, kernel, rows, &threads)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
