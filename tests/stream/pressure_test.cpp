// Memory pressure, from fake files and a fake clock.
#include "stream/pressure.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "stream/governor.h"

namespace millrace::stream {
namespace {

namespace fs = std::filesystem;

class FakeSystem : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("millrace-pressure-" + std::to_string(getpid()));
    fs::remove_all(root_);
    available(100000);
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void available(uint64_t kb) {
    put("proc/meminfo",
        fmt::format("MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable: {} kB\n", kb));
  }
  void stalls(const std::string& path, uint64_t some_us, uint64_t all_us) {
    put(path, fmt::format("some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
                          "full avg10=0.00 avg60=0.00 avg300=0.00 total={}\n",
                          some_us, all_us));
  }
  std::unique_ptr<PressureMonitor> monitor() {
    return PressureMonitor::create({.root = root_.string(), .triggers = false});
  }
  fs::path root_;
};

TEST_F(FakeSystem, NothingReadableIsOffAndSaysSo) {
  const auto m = monitor();
  EXPECT_FALSE(m->active());
  EXPECT_TRUE(m->watching().starts_with("nothing:")) << m->watching();
  EXPECT_EQ(m->poll(1), Pressure::kCalm);
}

TEST_F(FakeSystem, StallsOfTheSystem) {
  const std::string file = "proc/pressure/memory";
  stalls(file, 5'000'000, 1'000'000);  // long ago
  const auto m = monitor();
  ASSERT_TRUE(m->active());
  EXPECT_NE(m->watching().find("stalls of the system"), std::string::npos);
  EXPECT_EQ(m->poll(10), Pressure::kCalm);
  stalls(file, 5'140'000, 1'000'000);  // 14 % of a second
  EXPECT_EQ(m->poll(11), Pressure::kCalm);
  stalls(file, 5'300'000, 1'000'000);  // 16 %
  EXPECT_EQ(m->poll(11.5), Pressure::kCalm) << "files are read once a second";
  EXPECT_EQ(m->poll(12), Pressure::kWarn);
  EXPECT_EQ(m->poll(13), Pressure::kCalm) << "no more stalls since";
  stalls(file, 5'800'000, 1'110'000);  // all tasks stood still for 11 %
  EXPECT_EQ(m->poll(14), Pressure::kCritical);
  // Somebody's stalls while memory is there are not ours to ease.
  stalls(file, 9'800'000, 3'110'000);
  available(15000000);
  EXPECT_EQ(m->poll(15), Pressure::kCalm);
}

TEST_F(FakeSystem, StallsOfTheOwnGroupCountWhateverTheSystemHas) {
  available(15000000);
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/memory.current", "5\n");
  stalls("sys/fs/cgroup/a/memory.pressure", 0, 0);
  put("sys/fs/cgroup/a/b/memory.current", "900000000\n");
  put("sys/fs/cgroup/a/b/memory.max", "1000000000\n");
  put("sys/fs/cgroup/a/b/memory.events", "low 0\nhigh 7\nmax 100\noom 0\noom_kill 0\n");
  stalls("sys/fs/cgroup/a/b/memory.pressure", 0, 0);
  const auto m = monitor();
  EXPECT_EQ(m->watching(), "stalls of cgroup /a/b (each second)");
  EXPECT_EQ(m->poll(1), Pressure::kCalm);
  stalls("sys/fs/cgroup/a/b/memory.pressure", 200'000, 0);
  EXPECT_EQ(m->poll(2), Pressure::kWarn);
  // The limit was met: by the page cache while there is room, in earnest when there is none.
  put("sys/fs/cgroup/a/b/memory.events", "low 0\nhigh 7\nmax 150\noom 0\noom_kill 0\n");
  EXPECT_EQ(m->poll(3), Pressure::kCalm);
  put("sys/fs/cgroup/a/b/memory.current", "999000000\n");
  put("sys/fs/cgroup/a/b/memory.events", "low 0\nhigh 7\nmax 160\noom 0\noom_kill 0\n");
  EXPECT_EQ(m->poll(4), Pressure::kWarn);
  put("sys/fs/cgroup/a/b/memory.events", "low 0\nhigh 7\nmax 160\noom 1\noom_kill 0\n");
  EXPECT_EQ(m->poll(5), Pressure::kCritical);
}

TEST_F(FakeSystem, RoomInAGroupWithoutStallInformation) {
  available(15000000);
  put("proc/self/cgroup", "4:memory:/job\n0::/\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000000\n");
  put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "999999999\n");
  put("sys/fs/cgroup/memory/job/memory.stat",
      "total_inactive_file 50000000\ntotal_active_file 0\n");
  const auto m = monitor();
  EXPECT_EQ(m->watching(), "room in cgroup /job (each second)");
  EXPECT_EQ(m->poll(1), Pressure::kCalm);  // the page cache makes room
  put("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 5000000\ntotal_active_file 0\n");
  EXPECT_EQ(m->poll(2), Pressure::kWarn);
  put("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 500000\n");
  EXPECT_EQ(m->poll(3), Pressure::kCritical);
}

TEST_F(FakeSystem, AFileThatGoesAwayIsNoPressure) {
  stalls("proc/pressure/memory", 0, 0);
  const auto m = monitor();
  EXPECT_EQ(m->poll(1), Pressure::kCalm);
  fs::remove_all(root_);
  EXPECT_EQ(m->poll(2), Pressure::kCalm);
}

TEST(Pressure, ThisMachine) {
  const auto m = PressureMonitor::create();
  EXPECT_FALSE(m->watching().empty());
  for (int i = 0; i < 3; ++i) (void)m->poll(i);
}

// Where the kernel takes a trigger, it is one that is waited for.
TEST(Pressure, TriggersAreSetWhereTheyMayBe) {
  const int fd = ::open("/proc/pressure/memory", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  const char text[] = "some 300000 2000000";
  const bool may = fd >= 0 && ::write(fd, text, sizeof text) > 0;
  if (fd >= 0) ::close(fd);
  if (!fs::exists("/proc/pressure/memory")) GTEST_SKIP() << "no stall information here";
  const auto triggered = PressureMonitor::create();
  EXPECT_EQ(triggered->watching().find("stalls of the system (events)") == 0, may)
      << triggered->watching();
  const auto reading = PressureMonitor::create({.triggers = false});
  EXPECT_EQ(reading->watching().find("stalls of the system (each second)"), 0u)
      << reading->watching();
}

// In a group that is nearly full, mapped pages of a file that take turns: the kernel scans more than
// it can free. Returns what went wrong: 0 nothing.
int watch_a_full_group(const fs::path& group, const std::string& file, uint64_t limit) {
  std::ofstream(group / "cgroup.procs") << 0 << std::flush;
  const auto monitor = PressureMonitor::create();
  const std::string expected =
      fmt::format("room in cgroup /{} (events)", group.filename().string());
  if (monitor->watching().find(expected) == std::string::npos) return 1;
  // Files are read once a second: from here on only events count.
  (void)monitor->poll(0);
  if (monitor->poll(0.1) != Pressure::kCalm) return 2;
  const uint64_t held = limit - limit / 16;
  auto* const own = static_cast<char*>(
      ::mmap(nullptr, held, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const uint64_t bytes = fs::file_size(file);
  const auto* const mapped =
      static_cast<const volatile char*>(::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0));
  if (own == MAP_FAILED || mapped == MAP_FAILED) return 3;
  const auto fill = [&](uint64_t to) {
    for (uint64_t i = 0; i < to; i += 4096) own[i] = 1;
  };
  fill(held - limit / 16);
  for (int round = 0; round < 50; ++round) {
    for (uint64_t i = 0; i < bytes; i += 4096) {
      (void)mapped[i];
      if (i % (64 << 10) == 0 && monitor->poll(0.2) != Pressure::kCalm) return 0;
    }
  }
  return 4;
}

TEST(Pressure, EventsOfAGroupThatIsNearlyFull) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory counts in the group";
#endif
  constexpr uint64_t kLimit = uint64_t{64} << 20;
  const fs::path group =
      fs::path("/sys/fs/cgroup/memory") / fmt::format("millrace-pressure-{}", getpid());
  std::error_code error;
  if (!fs::exists("/sys/fs/cgroup/memory/memory.pressure_level", error) ||
      !fs::create_directory(group, error))
    GTEST_SKIP() << "no writable memory cgroup of version 1 here";
  std::ofstream(group / "memory.limit_in_bytes") << kLimit << std::flush;
  const fs::path file = fs::current_path() / fmt::format("millrace-pressure-{}.bin", getpid());
  std::ofstream(file, std::ios::binary) << std::string(kLimit, 'x');
  ::sync();
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);  // so that the group is charged for it
  ::close(fd);
  const pid_t child = fork();
  if (child == 0) _exit(watch_a_full_group(group, file.string(), kLimit));
  int status = 0;
  waitpid(child, &status, 0);
  fs::remove(file);
  fs::remove(group, error);
  EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status) << ", signal " << WTERMSIG(status);
}

TEST(Governor, WarningsTakeStepsDownToTheFloor) {
  Governor g;
  g.set_range(1000, 200);
  EXPECT_EQ(g.allowed(), 1000u);
  EXPECT_FALSE(g.step(Pressure::kCalm, 0).resize);
  auto action = g.step(Pressure::kWarn, 10);
  EXPECT_TRUE(action.resize && action.drop_cache);
  EXPECT_EQ(g.allowed(), 900u);
  EXPECT_FALSE(g.step(Pressure::kWarn, 11).resize) << "what was given up must show first";
  EXPECT_TRUE(g.step(Pressure::kWarn, 12).resize);
  EXPECT_EQ(g.allowed(), 800u);
  for (int t = 14; t < 60; t += 2) g.step(Pressure::kWarn, t);
  EXPECT_EQ(g.allowed(), 200u);
  action = g.step(Pressure::kWarn, 70);
  EXPECT_FALSE(action.resize);
  EXPECT_TRUE(action.drop_cache);
}

TEST(Governor, CriticalTakesAllAtOnce) {
  Governor g;
  g.set_range(1000, 400);
  g.step(Pressure::kWarn, 0);
  EXPECT_TRUE(g.step(Pressure::kCritical, 0.1).resize) << "a worse level does not wait";
  EXPECT_EQ(g.allowed(), 400u);
  EXPECT_EQ(g.warnings(), 1u);
  EXPECT_EQ(g.criticals(), 1u);
}

TEST(Governor, ComesBackAfterCalmInSteps) {
  Governor g;
  g.set_range(1000, 200);
  g.step(Pressure::kCritical, 100);
  double t = 100;
  while (!g.step(Pressure::kCalm, t).resize) t += 1;
  EXPECT_GE(t, 100 + Governor::kCalmTime);
  EXPECT_EQ(g.allowed(), 400u);
  EXPECT_FALSE(g.step(Pressure::kCalm, t + Governor::kGrow - 1).resize);
  uint64_t last = g.allowed();
  for (int i = 0; i < 400; ++i) {
    g.step(Pressure::kCalm, t += 1);
    EXPECT_GE(g.allowed(), last);
    last = g.allowed();
  }
  EXPECT_EQ(last, 1000u);
  EXPECT_EQ(g.given_up(), 0u);
}

TEST(Governor, ARelapseAsksForALongerCalm) {
  Governor g;
  g.set_range(1000, 200);
  const auto recover = [&](double from) {
    double t = from;
    while (!g.step(Pressure::kCalm, t).resize) t += 1;
    return t;
  };
  g.step(Pressure::kCritical, 0);
  const double first = recover(0);
  g.step(Pressure::kWarn, first + 5);  // it was too early
  const double second = recover(first + 5) - (first + 5);
  EXPECT_GE(second, 2 * Governor::kCalmTime);
  // And as long as memory is short, nothing comes back.
  for (double t = 1000; t < 2000; t += 3) {
    const uint64_t before = g.allowed();
    g.step(Pressure::kWarn, t);
    EXPECT_LE(g.allowed(), before);
  }
}

TEST(Governor, ANewRangeKeepsWhatIsGivenUpWithinIt) {
  Governor g;
  g.set_range(1000, 200);
  g.step(Pressure::kCritical, 0);
  g.set_range(500, 300);
  EXPECT_EQ(g.allowed(), 300u);
  g.set_range(100, 300);  // less than what a shortage would leave
  EXPECT_EQ(g.allowed(), 100u);
}

// A step that could not be made is asked for again.
TEST(Governor, AStepThatFailedIsStillToBeMade) {
  Governor g;
  g.set_range(1000, 200);
  g.step(Pressure::kCritical, 0);
  ASSERT_EQ(g.allowed(), 200u);
  const double calm = Governor::kMostCalmTime;
  ASSERT_TRUE(g.step(Pressure::kCalm, calm).resize);
  ASSERT_GT(g.allowed(), 200u);
  g.resize_failed(200);
  EXPECT_EQ(g.given_up(), 800u);
  EXPECT_TRUE(g.step(Pressure::kCalm, calm + Governor::kGrow).resize);
  EXPECT_GT(g.allowed(), 200u);
}

}  // namespace
}  // namespace millrace::stream
