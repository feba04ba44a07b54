#include "io/probe.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "io/uring.h"

namespace millrace::io {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Spreads the reads of a run over the file, never the same place twice in a row: a step near the
// golden ratio of the places, and a start that differs from run to run.
class Places {
 public:
  Places(uint64_t file_bytes, uint64_t request) : request_(request), count_(file_bytes / request) {}
  uint64_t count() const { return count_; }
  uint64_t at(uint64_t i) const {
    const auto step =
        std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(count_) * 0.618));
    return i * step % count_ * request_;
  }

 private:
  uint64_t request_;
  uint64_t count_;
};

double cpu_seconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One run: reads begin until time is up, and those in flight are waited for.
struct Run {
  const File& file;
  uint64_t request;
  unsigned depth;
  double seconds;
  uint64_t first;               // place to start from
  std::span<std::byte> memory;  // depth * request bytes
  Clock::time_point begin = Clock::now();

  bool goes_on() const { return seconds_since(begin) < seconds; }
  std::span<std::byte> buffer(uint64_t i) const { return memory.subspan(i * request, request); }
};

Expected<uint64_t> run_pread(const Run& run, const Places& places) {
  std::atomic<uint64_t> next{0}, bytes{0};
  std::mutex mutex;
  std::optional<Error> error;
  const auto work = [&](unsigned t) {
    do {
      const auto got = run.file.read(places.at(run.first + next.fetch_add(1)), run.buffer(t));
      if (!got) {
        std::lock_guard lock(mutex);
        error = got.error();
        return;
      }
      bytes += *got;
    } while (run.goes_on());
  };
  std::vector<std::thread> threads;
  threads.reserve(run.depth);
  try {
    for (unsigned t = 1; t < run.depth; ++t) threads.emplace_back(work, t);
  } catch (const std::system_error& limit) {
    std::lock_guard lock(mutex);
    error = Error{Code::kUnsupported, fmt::format("{} reads at a time take more threads than the "
                                                  "system gives: {}",
                                                  run.depth, limit.what())};
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
  if (error) return tl::make_unexpected(std::move(*error));
  return bytes.load();
}

Expected<uint64_t> run_uring(const Run& run, const Places& places) {
  MILLRACE_ASSIGN(Uring ring, Uring::create(run.depth));
  std::vector<ReadProgress> progress(run.depth);
  uint64_t next = run.first, bytes = 0;
  unsigned flying = 0;
  constexpr unsigned kMostFailures = 10000;  // ten seconds
  unsigned failures = 0;
  std::optional<Error> error;
  const auto ask = [&](unsigned i) {
    ring.read(run.file.descriptor(), Uring::kNone, progress[i].next_offset(), progress[i].next(),
              Uring::kNone, i);
  };
  const auto start = [&](unsigned i) {
    progress[i] = ReadProgress(run.file, places.at(next++), run.buffer(i), run.request);
    ask(i);
    ++flying;
  };
  for (unsigned i = 0; i < run.depth; ++i) start(i);
  while (flying > 0) {
    auto waited = ring.wait(std::nullopt);
    if (!waited) {  // the reads go on: the memory must not be used for anything else before they end
      if (!error) error = waited.error();
      if (++failures > kMostFailures) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const auto& done = *waited;
    if (!done) continue;
    const auto i = static_cast<unsigned>(done->id);
    const auto whole = progress[i].advance(done->result);
    if (whole && !*whole) {
      ask(i);
      continue;
    }
    --flying;
    if (!whole) {
      error = whole.error();
    } else {
      bytes += progress[i].done();
    }
    if (!error && run.goes_on()) start(i);
  }
  if (error) return tl::make_unexpected(std::move(*error));
  return bytes;
}

Expected<ReadRate> measure(Via via, const Run& planned) {
  Run run = planned;
  const Places places(run.file.size(), run.request);
  ReadRate rate{run.file.mode(), via, run.request, run.depth, 0, 0, 0};
  const double cpu = cpu_seconds();
  run.begin = Clock::now();
  MILLRACE_ASSIGN(rate.bytes, via == Via::kPread ? run_pread(run, places) : run_uring(run, places));
  rate.seconds = seconds_since(run.begin);
  rate.cpu_seconds = cpu_seconds() - cpu;
  return rate;
}

}  // namespace

std::string_view name(Via via) { return via == Via::kPread ? "pread" : "io_uring"; }

Expected<std::vector<ReadRate>> probe_curve(const File& file, uint64_t request,
                                            const CurveLimits& limits) {
  constexpr unsigned kTurns = 2;
  std::vector<ReadRate> rates;
  const unsigned ways = (limits.pread ? 1u : 0u) + (limits.uring ? 1u : 0u);
  rates.reserve(limits.depths.size() * 2);
  if (request == 0 || file.size() < request || ways == 0 || limits.depths.empty()) return rates;
  const double each = limits.seconds / static_cast<double>(kTurns * ways * limits.depths.size());
  const auto begin = Clock::now();
  uint64_t first = 0;
  double fastest = 0;
  for (unsigned turn = 0; turn < kTurns; ++turn) {
    for (const unsigned depth : limits.depths) {
      for (const Via via : {Via::kPread, Via::kUring}) {
        if (via == Via::kPread ? !limits.pread : !limits.uring) continue;
        const uint64_t flying = depth * request;
        if (flying > limits.memory.size()) continue;
        // What is in flight has to arrive: on a slow disk that alone may take too long.
        const double left = limits.seconds - seconds_since(begin);
        const bool late =
            left <= 0 || (fastest > 0 && static_cast<double>(flying) > left * fastest);
        if (late && !rates.empty()) continue;
        MILLRACE_ASSIGN(const ReadRate rate,
                        measure(via, {file, request, depth, each, first, limits.memory}));
        first += 1 + rate.bytes / request;
        fastest = std::max(fastest, rate.bytes_per_second());
        auto same = std::ranges::find_if(
            rates, [&](const ReadRate& r) { return r.via == via && r.depth == depth; });
        if (same == rates.end()) {
          rates.push_back(rate);
        } else {
          same->bytes += rate.bytes;
          same->seconds += rate.seconds;
          same->cpu_seconds += rate.cpu_seconds;
        }
      }
    }
  }
  return rates;
}

const ReadRate* pick(std::span<const ReadRate> rates) {
  constexpr double kDepthGain = 0.95, kWayGain = 1.1;
  const auto best_of = [&](Via via) {
    double most = 0;
    for (const ReadRate& r : rates) {
      if (r.via == via) most = std::max(most, r.bytes_per_second());
    }
    const ReadRate* best = nullptr;
    for (const ReadRate& r : rates) {
      const bool enough = r.via == via && r.bytes > 0 && r.bytes_per_second() >= kDepthGain * most;
      if (enough && (best == nullptr || r.depth < best->depth)) best = &r;
    }
    return best;
  };
  const ReadRate* pread = best_of(Via::kPread);
  const ReadRate* uring = best_of(Via::kUring);
  if (pread == nullptr || uring == nullptr) return pread == nullptr ? uring : pread;
  const double a = pread->bytes_per_second(), b = uring->bytes_per_second();
  if (a > kWayGain * b) return pread;
  if (b > kWayGain * a) return uring;
  const auto cost = [](const ReadRate* r) {
    return r->cpu_seconds / static_cast<double>(r->bytes);
  };
  return cost(uring) < cost(pread) ? uring : pread;
}

const ReadRate* ProbeResult::best_direct() const {
  const ReadRate* best = nullptr;
  for (const ReadRate& r : rates) {
    if (best == nullptr || r.bytes_per_second() > best->bytes_per_second()) best = &r;
  }
  return best;
}

Expected<ProbeResult> probe_file(const std::string& path, const ProbeLimits& limits) {
  ProbeResult result;
  MILLRACE_ASSIGN(const File cached, File::open(path, Mode::kBuffered));
  const uint64_t size = cached.size() / kAlign * kAlign;
  if (size == 0) return fail(Code::kInvalid, "{}: too small to measure reads", path);
  auto direct = File::open(path, Mode::kDirect);
  if (!direct && direct.error().code != Code::kUnsupported)
    return tl::make_unexpected(std::move(direct.error()));
  if (!direct) result.direct_obstacle = direct.error().message;
  result.uring_obstacle = why_no_io_uring();

  // 64 MiB: 4 MiB reads 16 deep.
  MILLRACE_ASSIGN(const AlignedBuffer memory, AlignedBuffer::allocate(uint64_t{64} << 20));
  const size_t runs = (direct ? std::size(kProbeRequests) : 0) + 1;
  const double seconds = limits.most_seconds / static_cast<double>(runs);
  if (direct) {
    for (const uint64_t request : kProbeRequests) {
      CurveLimits curve;
      curve.depths = kProbeDepths;
      curve.uring = result.uring_obstacle.empty();
      curve.seconds = seconds;
      curve.memory = memory.span();
      MILLRACE_ASSIGN(const auto rates, probe_curve(*direct, std::min(request, size), curve));
      result.rates.insert(result.rates.end(), rates.begin(), rates.end());
      if (request >= size) break;
    }
  }
  MILLRACE_ASSIGN(result.buffered,
                  measure(Via::kPread, {cached, std::min<uint64_t>(uint64_t{4} << 20, size), 4,
                                        seconds / 2, 1, memory.span()}));
  return result;
}

double probe_memory(unsigned threads, uint64_t bytes_per_thread) {
  const uint64_t words = bytes_per_thread / sizeof(uint64_t);
  std::vector<std::vector<uint64_t>> buffers(std::max(1u, threads));
  std::atomic<unsigned> ready{0};
  std::atomic<bool> go{false};
  std::atomic<uint64_t> bytes{0}, sink{0};
  Clock::time_point begin;
  std::vector<std::thread> pool;
  for (auto& buffer : buffers) {
    pool.emplace_back([&] {
      buffer.assign(words, 1);  // touched by the thread that reads it
      ++ready;
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      while (seconds_since(begin) < 0.2) {
        // Independent sums, so that the loads and not the additions set the pace.
        uint64_t sums[8] = {};
        for (uint64_t i = 0; i + 8 <= words; i += 8) {
          for (uint64_t j = 0; j < 8; ++j) sums[j] += buffer[i + j];
        }
        for (uint64_t sum : sums) sink += sum;
        bytes += words * sizeof(uint64_t);
      }
    });
  }
  while (ready < buffers.size()) std::this_thread::yield();
  begin = Clock::now();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : pool) thread.join();
  const double seconds = seconds_since(begin);
  return static_cast<double>(bytes) / seconds;
}

}  // namespace millrace::io
