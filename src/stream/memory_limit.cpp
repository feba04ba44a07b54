// What this process may use: physical memory and every memory cgroup above it, v1 and v2.
//
// A limit on any ancestor binds, so all of them are read up to the mount point. In a container the
// path in /proc/self/cgroup may be the host's while only a part of the tree is mounted; the mount's
// own root says which.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <vector>

#include "stream/ledger.h"

namespace millrace::stream {
namespace {

// cgroup v1 says "no limit" with the largest multiple of the page size in an int64.
constexpr uint64_t kV1NoLimit = uint64_t{1} << 62;

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return std::nullopt;
  return text.str();
}

// A file of one number; "max", anything unreadable and the v1 "no limit" number give nothing.
std::optional<uint64_t> read_number(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const uint64_t value = std::strtoull(text->c_str(), &end, 10);
  if (end == text->c_str() || errno == ERANGE || value >= kV1NoLimit) return std::nullopt;
  return value;
}

// The number after `key` in a "key value" file (meminfo, memory.stat, status).
std::optional<uint64_t> field(const std::string& text, std::string_view key) {
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const std::string_view line(text.data() + at, end - at);
    if (line.size() > key.size() && line.starts_with(key) &&
        (line[key.size()] == ' ' || line[key.size()] == '\t')) {
      return std::strtoull(text.c_str() + at + key.size(), nullptr, 10);
    }
    at = end + 1;
  }
  return std::nullopt;
}

// Whether a comma-separated list of controllers or options has "memory" in it.
bool lists_memory(const std::string& list) {
  return fmt::format(",{},", list).find(",memory,") != std::string::npos;
}

struct Mount {
  bool v2 = false;
  std::string root;   // which part of the hierarchy is mounted
  std::string point;  // where
};

std::vector<Mount> memory_mounts(const std::string& root) {
  std::vector<Mount> mounts;
  if (const auto text = read_text(root + "/proc/self/mountinfo")) {
    std::istringstream lines(*text);
    for (std::string line; std::getline(lines, line);) {
      // id parent major:minor root point options [tags...] - type source super-options
      std::istringstream words(line);
      std::string skip, from, point, word, type, source, options;
      words >> skip >> skip >> skip >> from >> point;
      while (words >> word && word != "-") continue;
      words >> type >> source >> options;
      const bool v1_memory = type == "cgroup" && lists_memory(options);
      if (type == "cgroup2" || v1_memory) mounts.push_back({type == "cgroup2", from, root + point});
    }
  }
  if (mounts.empty()) {
    const std::string base = root + "/sys/fs/cgroup";
    mounts.push_back({true, "/", base});
    mounts.push_back({true, "/", base + "/unified"});
    mounts.push_back({false, "/", base + "/memory"});
  }
  return mounts;
}

// Our path in the v2 hierarchy or in v1's memory hierarchy, from /proc/self/cgroup.
std::optional<std::string> own_path(const std::string& cgroup_file, bool v2) {
  std::istringstream lines(cgroup_file);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const bool matches =
        v2 ? line.starts_with("0::") : lists_memory(line.substr(first + 1, second - first - 1));
    if (matches) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Lowers `limit` by what one cgroup folder says.
void apply_group(const std::string& folder, const std::string& shown, bool v2, MemoryLimit* limit) {
  const char* const v2_files[] = {"memory.max", "memory.high"};
  const char* const v1_files[] = {"memory.limit_in_bytes"};
  std::optional<uint64_t> lowest;
  for (const char* file :
       v2 ? std::span<const char* const>(v2_files) : std::span<const char* const>(v1_files)) {
    const auto bytes = read_number(folder + "/" + file);
    if (!bytes) continue;
    if (!lowest || *bytes < *lowest) lowest = bytes;
    if (*bytes < limit->bytes) {
      limit->bytes = *bytes;
      limit->source = fmt::format("cgroup {} {}", shown, file);
    }
  }
  if (!lowest) return;
  const auto used = read_number(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!used) return;
  // Page cache is charged to the group but given back under pressure.
  uint64_t reclaimable = 0;
  if (const auto stat = read_text(folder + "/memory.stat")) {
    reclaimable = field(*stat, v2 ? "inactive_file" : "total_inactive_file").value_or(0) +
                  field(*stat, v2 ? "active_file" : "total_active_file").value_or(0);
  }
  const uint64_t held = *used - std::min(*used, reclaimable);
  limit->available = std::min(limit->available, *lowest - std::min(*lowest, held));
}

void apply_tree(const Mount& mount, std::string path, MemoryLimit* limit) {
  if (mount.root != "/") {
    // Only a part of the hierarchy is mounted: the path continues below it, or we stand at its top.
    path = path.starts_with(mount.root) ? path.substr(mount.root.size()) : "/";
  }
  // A path outside our cgroup namespace ("/../x") cannot be followed from here.
  if (path.find("..") != std::string::npos) path = "/";
  while (!path.empty() && path.back() == '/') path.pop_back();
  for (;;) {
    apply_group(mount.point + path, path.empty() ? "/" : path, mount.v2, limit);
    if (path.empty()) break;
    path.resize(path.rfind('/'));
  }
}

uint64_t own_status(std::string_view key) {
  const auto text = read_text("/proc/self/status");
  return text ? field(*text, key).value_or(0) * 1024 : 0;
}

}  // namespace

Expected<MemoryLimit> memory_limit(const std::string& root) {
  const std::string base = root == "/" ? "" : root;
  const auto meminfo = read_text(base + "/proc/meminfo");
  if (!meminfo) return fail(Code::kIo, "{}/proc/meminfo: cannot be read", base);
  const auto total = field(*meminfo, "MemTotal:");
  if (!total) return fail(Code::kIo, "{}/proc/meminfo: no MemTotal", base);
  MemoryLimit limit;
  limit.bytes = *total * 1024;
  limit.available = std::min(limit.bytes, field(*meminfo, "MemAvailable:").value_or(*total) * 1024);
  limit.source = "physical memory";
  // No cgroup file means no cgroups: the machine's memory is the limit.
  if (const auto groups = read_text(base + "/proc/self/cgroup")) {
    for (const Mount& mount : memory_mounts(base)) {
      if (const auto path = own_path(*groups, mount.v2)) apply_tree(mount, *path, &limit);
    }
  }
  limit.available = std::min(limit.available, limit.bytes);
  return limit;
}

uint64_t current_rss() { return own_status("VmRSS:"); }
uint64_t peak_rss() { return own_status("VmHWM:"); }

}  // namespace millrace::stream
