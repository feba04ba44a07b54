#include "io/probe.h"

#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

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

Expected<ReadRate> measure(const File& file, uint64_t request, unsigned depth, uint64_t most_bytes,
                           double most_seconds, uint64_t first) {
  ReadRate rate{file.mode(), request, depth, 0, 0};
  const Places places(file.size(), request);
  const uint64_t most_reads =
      std::min(places.count(), std::max<uint64_t>(depth, most_bytes / request));
  std::vector<AlignedBuffer> buffers;
  for (unsigned t = 0; t < depth; ++t) {
    MILLRACE_ASSIGN(AlignedBuffer buffer, AlignedBuffer::allocate(request));
    buffers.push_back(std::move(buffer));
  }
  std::atomic<uint64_t> next{0}, bytes{0};
  std::mutex mutex;
  std::optional<Error> error;
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < depth; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i;
           (i = next.fetch_add(1)) < most_reads && seconds_since(begin) < most_seconds;) {
        const auto got = file.read(places.at(first + i), buffers[t].span());
        if (!got) {
          std::lock_guard lock(mutex);
          error = got.error();
          return;
        }
        bytes += *got;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) return tl::make_unexpected(std::move(*error));
  rate.bytes = bytes;
  rate.seconds = seconds_since(begin);
  return rate;
}

}  // namespace

Expected<ProbeResult> probe_file(const std::string& path, const ProbeLimits& limits) {
  struct Point {
    uint64_t request;
    unsigned depth;
  };
  // Large requests saturate at small depths, small ones need depth; experts are 1 to 20 MiB.
  static constexpr Point kPoints[] = {{uint64_t{256} << 10, 8}, {uint64_t{1} << 20, 1},
                                      {uint64_t{1} << 20, 4},   {uint64_t{4} << 20, 2},
                                      {uint64_t{4} << 20, 4},   {uint64_t{4} << 20, 8}};
  ProbeResult result;
  MILLRACE_ASSIGN(const File cached, File::open(path, Mode::kBuffered));
  const uint64_t size = cached.size() / kAlign * kAlign;
  if (size == 0) return fail(Code::kInvalid, "{}: too small to measure reads", path);
  auto direct = File::open(path, Mode::kDirect);
  if (!direct && direct.error().code != Code::kUnsupported)
    return tl::make_unexpected(std::move(direct.error()));
  if (!direct) result.direct_obstacle = direct.error().message;

  const size_t runs = (direct ? std::size(kPoints) : 0) + 1;
  const uint64_t bytes = limits.most_bytes / runs;
  const double seconds = limits.most_seconds / static_cast<double>(runs);
  uint64_t first = 0;
  if (direct) {
    for (const Point& point : kPoints) {
      const uint64_t request = std::min(point.request, size);
      MILLRACE_ASSIGN(const ReadRate rate,
                      measure(*direct, request, point.depth, bytes, seconds, first));
      first += 1 + rate.bytes / request;
      result.rates.push_back(rate);
      if (rate.bytes_per_second() > result.best_direct.bytes_per_second())
        result.best_direct = rate;
    }
  }
  MILLRACE_ASSIGN(result.buffered, measure(cached, std::min<uint64_t>(uint64_t{4} << 20, size), 4,
                                           bytes, seconds, first));
  result.rates.push_back(result.buffered);
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

std::string why_no_io_uring() {
#if defined(SYS_io_uring_setup)
  io_uring_params params = {};
  const long fd = syscall(SYS_io_uring_setup, 4, &params);
  if (fd < 0) return fmt::format("io_uring_setup: {}", std::strerror(errno));
  close(static_cast<int>(fd));
  return {};
#else
  return "built without io_uring";
#endif
}

}  // namespace millrace::io
