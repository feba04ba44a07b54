#include "base/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace millrace {
namespace {

constexpr int kInterleave = 3;         // MPOL_INTERLEAVE of linux/mempolicy.h
constexpr unsigned kMostNodes = 1024;  // of the kernel's largest configuration

}  // namespace

std::vector<unsigned> memory_nodes(const std::string& root) {
  std::ifstream file(root + "/has_memory");
  std::string text;
  std::vector<unsigned> nodes;
  // "0-1,3"
  while (std::getline(file, text, ',')) {
    const char* at = text.data();
    const char* const end = at + text.size();
    unsigned first = 0, last = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc()) break;
    last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc()) break;
    }
    for (unsigned node = first; node <= std::min(last, kMostNodes - 1); ++node)
      nodes.push_back(node);
  }
  if (nodes.empty()) nodes.push_back(0);
  return nodes;
}

bool interleave(void* begin, uint64_t bytes, const std::vector<unsigned>& nodes) {
#if defined(SYS_mbind)
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(kMostNodes / kBits);
  for (const unsigned node : nodes) {
    if (node < kMostNodes) mask[node / kBits] |= 1UL << (node % kBits);
  }
  return syscall(SYS_mbind, begin, bytes, kInterleave, mask.data(), kMostNodes, 0) == 0;
#else
  return false;
#endif
}

void spread_over_nodes(void* begin, uint64_t bytes) {
  const auto nodes = memory_nodes();
  if (nodes.size() > 1) interleave(begin, bytes, nodes);
}

}  // namespace millrace
