// What this process may use: physical memory and every memory cgroup above it, v1 and v2. Swap is
// not memory.
#include <algorithm>

#include "stream/cgroup.h"
#include "stream/ledger.h"

namespace millrace::stream {
namespace {

// Lowers `limit` by what one cgroup says.
void apply_group(const Cgroup& group, MemoryLimit* limit) {
  const auto own = limit_of(group);
  if (!own) return;
  if (own->bytes < limit->bytes) {
    limit->bytes = own->bytes;
    limit->source = fmt::format("cgroup {} {}", group.name, own->file);
  }
  if (const auto held = held_by(group))
    limit->available = std::min(limit->available, own->bytes - std::min(own->bytes, *held));
}

uint64_t own_status(std::string_view key) {
  const auto text = read_text("/proc/self/status");
  return text ? number_after(*text, key).value_or(0) * 1024 : 0;
}

}  // namespace

Expected<MemoryLimit> memory_limit(const std::string& root) {
  const std::string base = root == "/" ? "" : root;
  const auto meminfo = read_text(base + "/proc/meminfo");
  if (!meminfo) return fail(Code::kIo, "{}/proc/meminfo: cannot be read", base);
  const auto total = number_after(*meminfo, "MemTotal:");
  if (!total) return fail(Code::kIo, "{}/proc/meminfo: no MemTotal", base);
  MemoryLimit limit;
  limit.bytes = *total * 1024;
  limit.available =
      std::min(limit.bytes, number_after(*meminfo, "MemAvailable:").value_or(*total) * 1024);
  limit.source = "physical memory";
  // From the top: of two that say the same, the one that sets it is named.
  auto groups = memory_cgroups(base);
  std::reverse(groups.begin(), groups.end());
  for (const Cgroup& group : groups) apply_group(group, &limit);
  limit.available = std::min(limit.available, limit.bytes);
  return limit;
}

uint64_t current_rss() { return own_status("VmRSS:"); }
uint64_t peak_rss() { return own_status("VmHWM:"); }

}  // namespace millrace::stream
