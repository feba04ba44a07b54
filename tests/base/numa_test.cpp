// Memory nodes: how the system lists them, and pages taken from them in turn.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace millrace {
namespace {

using Nodes = std::vector<unsigned>;

Nodes nodes_of(const std::string& text) {
  std::string dir = (std::filesystem::temp_directory_path() / "millrace-test-XXXXXX").string();
  EXPECT_NE(mkdtemp(dir.data()), nullptr);
  std::ofstream(dir + "/has_memory") << text;
  auto nodes = memory_nodes(dir);
  std::filesystem::remove_all(dir);
  return nodes;
}

TEST(Numa, NodesAreListedAsTheKernelListsThem) {
  EXPECT_EQ(nodes_of("0\n"), (Nodes{0}));
  EXPECT_EQ(nodes_of("0-1\n"), (Nodes{0, 1}));
  EXPECT_EQ(nodes_of("0,2-4,7\n"), (Nodes{0, 2, 3, 4, 7}));
  EXPECT_EQ(nodes_of("\n"), (Nodes{0}));
  EXPECT_EQ(memory_nodes("/nonexistent"), (Nodes{0}));
}

TEST(Numa, AnInterleavedMappingHoldsWhatIsWritten) {
  constexpr uint64_t kBytes = uint64_t{1} << 20;
  void* const at =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const bool done = interleave(at, kBytes, memory_nodes());
  EXPECT_FALSE(interleave(at, kBytes, {1000})) << "a node that is not there";
  std::memset(at, 7, kBytes);
  EXPECT_EQ(static_cast<const char*>(at)[kBytes - 1], 7);
  munmap(at, kBytes);
  if (!done) GTEST_SKIP() << "the system has no mbind for us";
}

}  // namespace
}  // namespace millrace
