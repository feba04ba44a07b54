// Machines with several memory nodes: large read-mostly mappings are spread over all of them page by page, so
// that every thread sees the bandwidth of all nodes, wherever it runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

// Nodes that have memory, ascending; {0} where the system does not say. `root` is for tests.
std::vector<unsigned> memory_nodes(const std::string& root = "/sys/devices/system/node");

// Asks for pages of [begin, begin + bytes) from `nodes` in turn. For a page-aligned mapping none of whose
// pages was touched yet. False where the system refuses: then pages come from wherever they are touched.
bool interleave(void* begin, uint64_t bytes, const std::vector<unsigned>& nodes);

// As interleave over all nodes, where there are several.
void spread_over_nodes(void* begin, uint64_t bytes);

}  // namespace millrace
