#include "stream/ledger.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>

namespace millrace::stream {
namespace {

namespace fs = std::filesystem;

TEST(Ledger, ReservesUpToTheCeiling) {
  Ledger ledger(100 << 20);
  EXPECT_TRUE(ledger.reserve(Use::kWeights, 60 << 20));
  EXPECT_TRUE(ledger.reserve(Use::kKv, 40 << 20));
  EXPECT_EQ(ledger.free(), 0u);
  const Status refused = ledger.reserve(Use::kDrafter, 1 << 20);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoMemory);
  EXPECT_NE(refused.error().message.find("weights 60.0 MiB, kv 40.0 MiB"), std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("1.0 MiB more"), std::string::npos)
      << refused.error().message;
  ledger.release(Use::kKv, 40 << 20);
  EXPECT_TRUE(ledger.reserve(Use::kDrafter, 40 << 20));
  EXPECT_EQ(ledger.held(Use::kDrafter), uint64_t{40} << 20);
  EXPECT_FALSE(ledger.reserve(Use::kIo, UINT64_MAX));
}

TEST(Ledger, TheCeilingMovesButNotBelowWhatIsHeld) {
  Ledger ledger(100 << 20);
  EXPECT_TRUE(ledger.reserve(Use::kKv, 60 << 20));
  EXPECT_TRUE(ledger.set_ceiling(60 << 20));
  EXPECT_FALSE(ledger.reserve(Use::kIo, 1));
  const Status refused = ledger.set_ceiling((60 << 20) - 1);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("kv 60.0 MiB"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(ledger.ceiling(), uint64_t{60} << 20);
  EXPECT_TRUE(ledger.set_ceiling(200 << 20));
  EXPECT_TRUE(ledger.reserve(Use::kIo, 140 << 20));
}

// A machine made of files.
class FakeMachine : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("millrace-cgroup-" + std::to_string(getpid()));
    fs::remove_all(root_);
    put("proc/meminfo",
        "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  MemoryLimit limit() {
    const auto found = memory_limit(root_.string());
    EXPECT_TRUE(found);
    return *found;
  }
  fs::path root_;
};

constexpr uint64_t kPhysical = uint64_t{16000000} * 1024;
constexpr uint64_t kAvailable = uint64_t{8000000} * 1024;

TEST_F(FakeMachine, NoCgroups) {
  EXPECT_EQ(limit().bytes, kPhysical);
  EXPECT_EQ(limit().available, kAvailable);
  EXPECT_EQ(limit().source, "physical memory");
}

TEST_F(FakeMachine, NoMeminfoIsAnError) {
  EXPECT_FALSE(memory_limit((root_ / "nowhere").string()));
}

TEST_F(FakeMachine, V2TakesTheSmallestOfAllAncestors) {
  put("proc/self/cgroup", "0::/a/b/c\n");
  put("sys/fs/cgroup/a/memory.max", "2000000000\n");
  put("sys/fs/cgroup/a/memory.high", "max\n");
  put("sys/fs/cgroup/a/memory.current", "700000000\n");
  put("sys/fs/cgroup/a/memory.stat",
      "anon 5\nfile 9\ninactive_file 150000000\nactive_file 50000000\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/c/memory.max", "3000000000\n");
  EXPECT_EQ(limit().bytes, 2000000000u);
  EXPECT_EQ(limit().available, 1500000000u);  // the cache can be given back
  EXPECT_EQ(limit().source, "cgroup /a memory.max");
  put("sys/fs/cgroup/a/b/memory.high", "1000000000\n");
  EXPECT_EQ(limit().bytes, 1000000000u);
  EXPECT_EQ(limit().source, "cgroup /a/b memory.high");
}

TEST_F(FakeMachine, V1HugeNumberMeansNone) {
  put("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/one\n0::/\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit().bytes, kPhysical);
  put("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "734003200\n");
  put("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "34003200\n");
  EXPECT_EQ(limit().bytes, 734003200u);
  EXPECT_EQ(limit().available, 700000000u);
  EXPECT_EQ(limit().source, "cgroup /jobs memory.limit_in_bytes");
}

TEST_F(FakeMachine, MountInfoSaysWhereAndWhichPart) {
  put("proc/self/cgroup", "4:memory:/docker/abc/inner\n0::/\n");
  put("proc/self/mountinfo",
      "22 27 0:21 / /proc rw - proc proc rw\n"
      "35 31 0:32 /docker/abc /mnt/mem rw,relatime shared:3 - cgroup cgroup rw,memory\n");
  put("mnt/mem/memory.limit_in_bytes", "500000000\n");
  put("mnt/mem/inner/memory.limit_in_bytes", "600000000\n");
  EXPECT_EQ(limit().bytes, 500000000u);
  put("mnt/mem/inner/memory.limit_in_bytes", "400000000\n");
  EXPECT_EQ(limit().bytes, 400000000u);
}

// A group whose name only begins like that of the part that is mounted lies outside of it.
TEST_F(FakeMachine, NamesThatBeginAlike) {
  put("proc/self/mountinfo", "35 31 0:32 /a /mnt/mem rw - cgroup cgroup rw,memory\n");
  put("mnt/mem/memory.limit_in_bytes", "500000000\n");
  put("mnt/mem/b/memory.limit_in_bytes", "400000000\n");
  for (const char* path : {"/ab", "/ab/b", "/a", "ab", ""}) {
    put("proc/self/cgroup", fmt::format("4:memory:{}\n", path));
    EXPECT_EQ(limit().bytes, 500000000u) << path;
  }
  put("proc/self/cgroup", "4:memory:/a/b\n");
  EXPECT_EQ(limit().bytes, 400000000u);
}

// In a container without a cgroup namespace v1 shows an ancestor's limit only here.
TEST_F(FakeMachine, V1HierarchicalLimitOfAnAncestorThatIsNotMounted) {
  put("proc/self/cgroup", "4:memory:/pod/box\n");
  put("proc/self/mountinfo",
      "35 31 0:32 /pod/box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000000\n");
  put("sys/fs/cgroup/memory/memory.stat",
      "cache 1\nhierarchical_memory_limit 2147483648\ntotal_inactive_file 20000000\n");
  EXPECT_EQ(limit().bytes, 2147483648u);
  EXPECT_EQ(limit().available, 2147483648u - 80000000u);
  EXPECT_EQ(limit().source, "cgroup / memory.stat hierarchical_memory_limit");
}

// Where both say the same, the group that sets it is named.
TEST_F(FakeMachine, V1NamesTheGroupThatSetsTheLimit) {
  put("proc/self/cgroup", "4:memory:/jobs/one\n");
  put("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "734003200\n");
  put("sys/fs/cgroup/memory/jobs/memory.stat", "hierarchical_memory_limit 734003200\n");
  put("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/jobs/one/memory.stat", "hierarchical_memory_limit 734003200\n");
  EXPECT_EQ(limit().bytes, 734003200u);
  EXPECT_EQ(limit().source, "cgroup /jobs memory.limit_in_bytes");
}

// Hybrid: the v2 tree is mounted without controllers, memory is v1's.
TEST_F(FakeMachine, HybridMounts) {
  put("proc/self/cgroup", "9:name=systemd:/s\n4:memory:/m\n0::/s\n");
  put("proc/self/mountinfo",
      "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  put("sys/fs/cgroup/unified/s/cgroup.controllers", "\n");
  put("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "800000000\n");
  EXPECT_EQ(limit().bytes, 800000000u);
  EXPECT_EQ(limit().source, "cgroup /m memory.limit_in_bytes");
}

// In a cgroup namespace our path is "/" and the mount point is our own group.
TEST_F(FakeMachine, NamespacedRoot) {
  put("proc/self/cgroup", "0::/\n");
  put("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
  put("sys/fs/cgroup/memory.max", "1000000000\n");
  put("sys/fs/cgroup/memory.current", "250000000\n");
  put("sys/fs/cgroup/memory.stat", "inactive_file 50000000\n");
  EXPECT_EQ(limit().bytes, 1000000000u);
  EXPECT_EQ(limit().available, 800000000u);
  EXPECT_EQ(limit().source, "cgroup / memory.max");
}

TEST_F(FakeMachine, SwapIsNotMemory) {
  put("proc/meminfo",
      "MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\nSwapTotal: 64000000 kB\n"
      "SwapFree: 64000000 kB\n");
  EXPECT_EQ(limit().bytes, kPhysical);
  EXPECT_EQ(limit().available, kAvailable);
  put("proc/self/cgroup", "4:memory:/a\n");
  put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "500000000\n");
  put("sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes", "900000000\n");
  EXPECT_EQ(limit().bytes, 500000000u);
}

TEST_F(FakeMachine, MountPointsWithSpaces) {
  put("proc/self/cgroup", "0::/\n");
  put("proc/self/mountinfo", "41 31 0:38 / /mnt/my\\040groups rw - cgroup2 cgroup rw\n");
  put("mnt/my groups/memory.max", "123456789\n");
  EXPECT_EQ(limit().bytes, 123456789u);
}

TEST_F(FakeMachine, PathOutsideTheNamespaceFallsBackToTheMount) {
  put("proc/self/cgroup", "0::/../../other\n");
  put("sys/fs/cgroup/memory.max", "123456789\n");
  EXPECT_EQ(limit().bytes, 123456789u);
}

TEST_F(FakeMachine, GarbageIsNoLimit) {
  put("proc/self/cgroup", "0::/a\nnonsense\n::\n");
  put("sys/fs/cgroup/a/memory.max", "lots\n");
  EXPECT_EQ(limit().bytes, kPhysical);
}

TEST(Memory, ThisMachine) {
  const auto limit = memory_limit();
  ASSERT_TRUE(limit);
  EXPECT_GT(limit->bytes, 0u);
  EXPECT_LE(limit->available, limit->bytes);
}

TEST(Memory, ResidentSetGrowsByWhatIsTouched) {
  const uint64_t before = current_rss();
  ASSERT_GT(before, 0u);
  constexpr size_t kBytes = 32 << 20;
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  for (size_t i = 0; i < kBytes; i += 4096) static_cast<volatile char*>(at)[i] = 1;
  EXPECT_GE(current_rss(), before + kBytes / 2);
  EXPECT_GE(peak_rss(), current_rss());
  munmap(at, kBytes);
}

}  // namespace
}  // namespace millrace::stream
