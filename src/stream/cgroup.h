// Memory cgroups above this process, and the small files in which the kernel tells about memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::stream {

struct Cgroup {
  std::string folder;  // where its files lie
  std::string name;    // as the hierarchy names it: "/a/b"
  bool v2 = false;
};

// Every group of the memory controller above us that can be seen from here: the own one first, then
// its ancestors up to the mount; v2 before v1 where both are mounted. `root` is "" (tests give a
// fake tree).
std::vector<Cgroup> memory_cgroups(const std::string& root);

std::optional<std::string> read_text(const std::string& path);
// A file of one number; "max", anything unreadable and the v1 "no limit" number give nothing.
std::optional<uint64_t> read_number(const std::string& path);
// The number after `key` in a "key value" file (meminfo, memory.stat, memory.events, status).
std::optional<uint64_t> number_after(const std::string& text, std::string_view key);

// The limit a group sets, and in which of its files; nothing: none.
struct GroupLimit {
  uint64_t bytes = 0;
  std::string file;
};
std::optional<GroupLimit> limit_of(const Cgroup& group);
// Bytes charged to the group without the page cache, which is given back under pressure.
std::optional<uint64_t> held_by(const Cgroup& group);

}  // namespace millrace::stream
