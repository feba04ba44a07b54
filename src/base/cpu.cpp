#include "base/cpu.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace millrace {
namespace {

struct IsaEntry {
  Isa isa;
  std::string_view name;
  bool Cpu::*flag;  // none: always there
};
// Of each processor family least first; a set needs those before it in its family.
constexpr IsaEntry kSets[] = {
    {Isa::kScalar, "scalar", nullptr},
    {Isa::kAvx2, "avx2", &Cpu::avx2},
    {Isa::kAvx512, "avx512", &Cpu::avx512},
    {Isa::kAvx512Vnni, "avx512_vnni", &Cpu::avx512_vnni},
    {Isa::kNeon, "neon", &Cpu::neon},
    {Isa::kNeonDotprod, "neon_dotprod", &Cpu::neon_dotprod},
    {Isa::kNeonI8mm, "neon_i8mm", &Cpu::neon_i8mm},
};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) break;
    const size_t begin = line.find_first_not_of(' ', colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

// Processors that `quota` microseconds of every `period` amount to, rounded up; 0 = unlimited.
unsigned quota_cpus(const std::string& quota, const std::string& period) {
  const auto number = [](const std::string& text) {
    const bool digits =
        !text.empty() && text.size() < 16 &&
        std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    return digits ? std::stoull(text) : 0ull;
  };
  const unsigned long long q = number(quota);
  const unsigned long long p = number(period);
  if (q == 0 || p == 0) return 0;
  return static_cast<unsigned>(std::min(std::max((q + p - 1) / p, 1ull), 65536ull));
}

unsigned v2_limit(const std::string& folder) {
  const std::string line = first_line(folder + "/cpu.max");  // "200000 100000" or "max 100000"
  const size_t space = line.find(' ');
  return space == std::string::npos ? 0 : quota_cpus(line.substr(0, space), line.substr(space + 1));
}

unsigned v1_limit(const std::string& folder) {
  return quota_cpus(first_line(folder + "/cpu.cfs_quota_us"),
                    first_line(folder + "/cpu.cfs_period_us"));
}

// The smallest limit of a group and everything above it.
template <class Limit>
unsigned smallest_limit(const std::string& root, std::string path, Limit limit) {
  unsigned best = 0;
  for (;;) {
    const unsigned here = limit(root + path);
    if (here != 0 && (best == 0 || here < best)) best = here;
    if (path.empty()) return best;
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

unsigned cgroup_cpus() {
  unsigned best = 0;
  const auto take = [&](unsigned n) {
    if (n != 0 && (best == 0 || n < best)) best = n;
  };
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "id:controllers:/path"
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      take(smallest_limit("/sys/fs/cgroup", path, v2_limit));
    } else if (controllers == "cpu" || controllers.starts_with("cpu,") ||
               controllers.ends_with(",cpu")) {
      take(smallest_limit("/sys/fs/cgroup/cpu", path, v1_limit));
      take(smallest_limit("/sys/fs/cgroup/cpu,cpuacct", path, v1_limit));
    }
  }
  return best;
}

unsigned logical_cpus() {
  unsigned count = 1;
  // A set large enough for any machine; the kernel refuses one that is too small.
  constexpr int kMost = 8192;
  if (cpu_set_t* set = CPU_ALLOC(kMost)) {
    const size_t bytes = CPU_ALLOC_SIZE(kMost);
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) == 0) {
      count = static_cast<unsigned>(std::max(CPU_COUNT_S(bytes, set), 1));
    }
    CPU_FREE(set);
  }
  const unsigned quota = cgroup_cpus();
  return quota == 0 ? count : std::min(count, quota);
}

#if defined(__x86_64__)
bool f16c_supported() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && ((c >> 29) & 1u);
}
#endif

}  // namespace

Cpu Cpu::detect() {
  Cpu cpu;
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks that the operating system saves the wide registers.
  __builtin_cpu_init();
  cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi2") && f16c_supported();
  cpu.avx512 = cpu.avx2 && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
  cpu.avx512_vnni = cpu.avx512 && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
  constexpr unsigned long kAsimdDp = 1ul << 20;
  constexpr unsigned long kI8mm = 1ul << 13;
  cpu.neon = true;
  cpu.neon_dotprod = (getauxval(AT_HWCAP) & kAsimdDp) != 0;
  cpu.neon_i8mm = cpu.neon_dotprod && (getauxval(AT_HWCAP2) & kI8mm) != 0;
#endif
  cpu.model = model_name();
  cpu.logical = logical_cpus();
  return cpu;
}

std::string_view name(Isa isa) { return kSets[static_cast<size_t>(isa)].name; }

bool Cpu::has(Isa isa) const {
  const IsaEntry& entry = kSets[static_cast<size_t>(isa)];
  return entry.flag == nullptr || this->*entry.flag;
}

std::vector<Isa> Cpu::sets() const {
  std::vector<Isa> found;
  for (const IsaEntry& entry : kSets) {
    if (has(entry.isa)) found.push_back(entry.isa);
  }
  return found;
}

Expected<Cpu> Cpu::limited_to(std::string_view name) const {
  std::string here;
  const IsaEntry* most = nullptr;
  for (const IsaEntry& entry : kSets) {
    if (entry.name == name) most = &entry;
    if (has(entry.isa)) here += fmt::format("{}{}", here.empty() ? "" : ", ", entry.name);
  }
  if (most == nullptr) {
    return fail(Code::kInvalid, "no kernels are called '{}'; this processor runs {}", name, here);
  }
  if (!has(most->isa)) {
    return fail(Code::kUnsupported, "this processor does not have {}; it runs {}", name, here);
  }
  Cpu cpu = *this;
  for (const IsaEntry& entry : kSets) {
    if (entry.isa > most->isa && entry.flag != nullptr) cpu.*entry.flag = false;
  }
  return cpu;
}

}  // namespace millrace
