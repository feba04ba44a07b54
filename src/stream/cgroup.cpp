// In a container the path in /proc/self/cgroup may be the host's while only a part of the tree is
// mounted; the mount's own root says which. In a cgroup namespace the path is "/" and the mount
// point is our own group.
#include "stream/cgroup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace millrace::stream {
namespace {

// cgroup v1 says "no limit" with the largest multiple of the page size in an int64.
constexpr uint64_t kV1NoLimit = uint64_t{1} << 62;

// Whether a comma-separated list of controllers or options has "memory" in it.
bool lists_memory(const std::string& list) {
  return fmt::format(",{},", list).find(",memory,") != std::string::npos;
}

struct Mount {
  bool v2 = false;
  std::string root;   // which part of the hierarchy is mounted
  std::string point;  // where
};

// mountinfo writes spaces, tabs, newlines and backslashes as \040 and the like.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool octal = text[i] == '\\' && i + 3 < text.size() &&
                       std::all_of(text.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                   text.begin() + static_cast<std::ptrdiff_t>(i) + 4,
                                   [](char c) { return c >= '0' && c <= '7'; });
    if (octal) {
      out += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

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
      if (type == "cgroup2" || v1_memory)
        mounts.push_back({type == "cgroup2", unescape(from), root + unescape(point)});
    }
  }
  if (mounts.empty()) {
    const std::string base = root + "/sys/fs/cgroup";
    mounts.push_back({true, "/", base});
    mounts.push_back({true, "/", base + "/unified"});
    mounts.push_back({false, "/", base + "/memory"});
  }
  std::stable_sort(mounts.begin(), mounts.end(),
                   [](const Mount& a, const Mount& b) { return a.v2 && !b.v2; });
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

void add_groups(const Mount& mount, std::string path, std::vector<Cgroup>* groups) {
  if (mount.root != "/") {
    // Only a part of the hierarchy is mounted: the path continues below it, or we stand at its top.
    const bool below = fmt::format("{}/", path).starts_with(fmt::format("{}/", mount.root));
    path = below ? path.substr(mount.root.size()) : std::string();
  }
  if (!path.starts_with('/')) path.clear();  // no path
  // A path outside our cgroup namespace ("/../x") cannot be followed from here.
  if (path.find("..") != std::string::npos) path.clear();
  while (!path.empty() && path.back() == '/') path.pop_back();
  for (;;) {
    groups->push_back({mount.point + path, path.empty() ? "/" : path, mount.v2});
    if (path.empty()) break;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return std::nullopt;
  return text.str();
}

std::optional<uint64_t> read_number(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const uint64_t value = std::strtoull(text->c_str(), &end, 10);
  if (end == text->c_str() || errno == ERANGE || value >= kV1NoLimit) return std::nullopt;
  return value;
}

std::optional<uint64_t> number_after(const std::string& text, std::string_view key) {
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

std::vector<Cgroup> memory_cgroups(const std::string& root) {
  std::vector<Cgroup> groups;
  // No cgroup file means no cgroups.
  const auto file = read_text(root + "/proc/self/cgroup");
  if (!file) return groups;
  for (const Mount& mount : memory_mounts(root)) {
    if (const auto path = own_path(*file, mount.v2)) add_groups(mount, *path, &groups);
  }
  return groups;
}

std::optional<GroupLimit> limit_of(const Cgroup& group) {
  std::optional<GroupLimit> lowest;
  const auto take = [&](std::optional<uint64_t> bytes, const char* file) {
    if (bytes && (!lowest || *bytes < lowest->bytes)) lowest = GroupLimit{*bytes, file};
  };
  if (group.v2) {
    // Above memory.high the kernel slows us down to a crawl: it is as good as a limit.
    take(read_number(group.folder + "/memory.max"), "memory.max");
    take(read_number(group.folder + "/memory.high"), "memory.high");
    return lowest;
  }
  take(read_number(group.folder + "/memory.limit_in_bytes"), "memory.limit_in_bytes");
  // The least of the group and all above it, also of those that are not mounted here.
  if (const auto stat = read_text(group.folder + "/memory.stat")) {
    const auto bytes = number_after(*stat, "hierarchical_memory_limit");
    if (bytes && *bytes > 0 && *bytes < kV1NoLimit)
      take(bytes, "memory.stat hierarchical_memory_limit");
  }
  return lowest;
}

std::optional<uint64_t> held_by(const Cgroup& group) {
  const auto used =
      read_number(group.folder + (group.v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!used) return std::nullopt;
  uint64_t cache = 0;
  if (const auto stat = read_text(group.folder + "/memory.stat")) {
    const auto of = [&](const char* v2, const char* v1) {
      return number_after(*stat, group.v2 ? v2 : v1).value_or(0);
    };
    cache = of("inactive_file", "total_inactive_file") + of("active_file", "total_active_file");
  }
  return *used - std::min(*used, cache);
}

}  // namespace millrace::stream
