// Contract C2: --memory is a hard ceiling. A model several times larger runs inside a memory cgroup
// of that size.
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/size_text.h"
#include "io/file.h"
#include "tests/support/engine_run.h"
#include "tests/support/synth_gguf.h"

namespace millrace::test {
namespace {

// A memory cgroup (v1 or v2) with a limit, or nothing when this machine does not let us make one.
class MemoryCgroup {
 public:
  static std::optional<MemoryCgroup> create(uint64_t limit) {
    static int count = 0;
    const std::string name =
        "millrace-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    for (const bool v1 : {true, false}) {
      const fs::path path = fs::path(v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") / name;
      std::error_code error;
      if (!fs::exists(path.parent_path() / (v1 ? "memory.limit_in_bytes" : "cgroup.controllers"),
                      error) ||
          !fs::create_directory(path, error))
        continue;
      MemoryCgroup group(path, v1);
      if (group.write(v1 ? "memory.limit_in_bytes" : "memory.max", std::to_string(limit)))
        return group;
      fs::remove(path, error);
    }
    return std::nullopt;
  }
  bool enter() const { return write("cgroup.procs", "0"); }
  uint64_t peak() const {
    std::ifstream file(path_ / (v1_ ? "memory.max_usage_in_bytes" : "memory.peak"));
    uint64_t value = 0;
    file >> value;
    return value;
  }
  uint64_t kills() const {
    std::ifstream file(path_ / (v1_ ? "memory.oom_control" : "memory.events"));
    std::string key;
    for (uint64_t value = 0; file >> key >> value;) {
      if (key == "oom_kill") return value;
    }
    return 0;
  }
  void remove() const {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }

 private:
  MemoryCgroup(fs::path path, bool v1) : path_(std::move(path)), v1_(v1) {}
  bool write(const std::string& file, const std::string& value) const {
    std::ofstream out(path_ / file);
    out << value;
    out.flush();
    return out.good();
  }
  fs::path path_;
  bool v1_;
};

// Runs the program inside the cgroup; returns its wait status.
int run_inside(const MemoryCgroup& group, const std::vector<std::string>& arguments,
               const std::string& out) {
  const pid_t child = fork();
  if (child == 0) {
    if (!group.enter()) _exit(99);
    if (!freopen(out.c_str(), "w", stdout) || !freopen((out + ".err").c_str(), "w", stderr))
      _exit(98);
    std::vector<char*> argv;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(97);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Bounded, RunsAndPacksInsideACgroupSmallerThanTheModel) {
  const char* binary = std::getenv("MILLRACE_BINARY");
  if (!binary || !*binary) GTEST_SKIP() << "MILLRACE_BINARY is not set";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory of their own";
#endif
  constexpr uint64_t kCeiling = 128 << 20;
  auto group = MemoryCgroup::create(kCeiling);
  if (!group) GTEST_SKIP() << "no writable memory cgroup here";
  // On the disk of the build, not in a memory file system.
  const std::string folder = repo("build/test-bounded-" + std::to_string(getpid()));
  fs::create_directories(folder);
  const std::string gguf = folder + "/synth.gguf", packed = folder + "/packed";
  const uint64_t size =
      write_synth_gguf(gguf, {.layers = 12, .hidden = 768, .experts = 48, .width = 640});
  ASSERT_GT(size, kCeiling * 2);

  EXPECT_EQ(run_inside(*group, {binary, "pack", gguf, packed}, folder + "/pack"), 0)
      << slurp(folder + "/pack.err");
  std::string ids = "1";
  for (int i = 2; i < 40; ++i) ids += fmt::format(",{}", i * 7 % 1000);
  for (const std::string& model : {packed, gguf}) {
    const int status =
        run_inside(*group,
                   {binary, "run", model, "--prompt-ids", ids, "-n", "12", "--ignore-eos",
                    "--memory", "128M", "--context", "256", "--json"},
                   folder + "/run");
    EXPECT_EQ(status, 0) << slurp(folder + "/run.err");
    EXPECT_NE(slurp(folder + "/run").find("\"token_ids\""), std::string::npos);
  }
  EXPECT_EQ(group->kills(), 0u);
  group->remove();

  // A group never holds more than its limit. In one with room it shows what the process takes, and
  // that --memory is kept without a limit that enforces it. Direct reads leave no page cache behind.
  const bool direct = io::why_not_direct(gguf).empty();
  for (const std::string& model : {packed, gguf}) {
    auto wide = MemoryCgroup::create(8 * kCeiling);
    ASSERT_TRUE(wide);
    const int status =
        run_inside(*wide,
                   {binary, "run", model, "--prompt-ids", ids, "-n", "12", "--ignore-eos",
                    "--memory", "128M", "--context", "256", "--io", "direct", "--json"},
                   folder + "/run");
    ASSERT_EQ(status, 0) << slurp(folder + "/run.err");
    const auto json = nlohmann::json::parse(slurp(folder + "/run"), nullptr, false);
    ASSERT_TRUE(json.is_object() && json.contains("memory")) << slurp(folder + "/run");
    const auto peak = json["memory"]["peak_rss"].get<uint64_t>();
    EXPECT_LE(peak, kCeiling);
    EXPECT_GT(peak, kCeiling / 4) << "the ceiling is used, too";
    if (direct) {
      EXPECT_LE(wide->peak(), kCeiling);
    }
    wide->remove();
  }
  fs::remove_all(folder);
}

// What cannot fit is refused before anything is read, and the message says what would.
TEST(Bounded, TooSmallIsRefusedWithTheSmallestThatWorks) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  auto model = Model::open(options.model);
  ASSERT_TRUE(model);
  auto plan = make_plan(**model, options);
  ASSERT_TRUE(plan);
  options.budget = plan->smallest_budget - 1;
  auto engine = Engine::open(options);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, Code::kNoMemory);
  EXPECT_NE(engine.error().message.find(size_to_give(plan->smallest_budget)), std::string::npos)
      << engine.error().message;
  options.budget = plan->smallest_budget;
  Request request;
  request.prompt_ids = {1, 2, 3};
  request.max_tokens = 2;
  request.ignore_eos = true;
  EXPECT_TRUE(generate(options, request));
}

}  // namespace
}  // namespace millrace::test
