// Sizes that are decided before anything is allocated: the ceiling, what is reserved beside weights,
// and the numbers that a refusal names.
#include "api/sizing.h"

#include "base/numeric.h"
#include "format/piece_fill.h"
#include "tests/support/engine_run.h"
#include "tests/support/synth_gguf.h"

namespace millrace::test {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

// A machine made of files.
class Sizes : public testing::Test {
 protected:
  void SetUp() override {
    options_.model = repo("models/tiny-moe-4bit");
    options_.context = 256;
    options_.system_root = temp_ / "";
    options_.warn = [this](std::string_view line) { warnings_.emplace_back(line); };
    has(16 * kGiB);
  }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(temp_ / name).parent_path());
    std::ofstream(temp_ / name) << text;
  }
  void has(uint64_t bytes) {
    put("proc/meminfo", fmt::format("MemTotal: {0} kB\nMemAvailable: {0} kB\n", bytes / 1024));
  }
  void limit(uint64_t bytes) {
    put("proc/self/cgroup", "4:memory:/job\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", fmt::format("{}\n", bytes));
  }
  Sizing sized() {
    auto model = Model::open(options_.model);
    EXPECT_TRUE(model);
    auto sizing = size_model((*model)->impl(), options_);
    EXPECT_TRUE(sizing) << sizing.error().message;
    return std::move(*sizing);
  }

  TempFolder temp_;
  EngineOptions options_;
  std::vector<std::string> warnings_;
};

// More than there is cannot be had: the smaller of both is the ceiling, and that is said.
TEST_F(Sizes, TheCeilingIsNoMoreThanThereIs) {
  options_.memory = 8 * kGiB;
  EXPECT_EQ(sized().plan.ceiling, 8 * kGiB);
  EXPECT_EQ(sized().plan.warning, "");
  options_.memory = 999 * kGiB;
  Sizing sizing = sized();
  EXPECT_EQ(sizing.plan.ceiling, 16 * kGiB);
  EXPECT_EQ(sizing.ceiling_source, "physical memory, less than --memory");
  EXPECT_NE(sizing.plan.warning.find("1022976 MiB were asked for, and there are 16384 MiB "
                                     "(physical memory)"),
            std::string::npos)
      << sizing.plan.warning;
  options_.memory = 8 * kGiB;
  limit(4 * kGiB);
  sizing = sized();
  EXPECT_EQ(sizing.plan.ceiling, 4 * kGiB);
  EXPECT_NE(sizing.plan.warning.find("8192 MiB were asked for, and there are 4096 MiB (cgroup /job "
                                     "memory.limit_in_bytes)"),
            std::string::npos)
      << sizing.plan.warning;
  limit(40 * kMiB);
  sizing = sized();
  EXPECT_FALSE(sizing.plan.fits);
  EXPECT_NE(sizing.plan.why.find("memory.limit_in_bytes"), std::string::npos) << sizing.plan.why;
}

TEST_F(Sizes, AnEngineTellsThatThereIsLess) {
  options_.memory = kGiB;
  auto engine = Engine::open(options_);
  ASSERT_TRUE(engine) << engine.error().message;
  Engine& e = **engine;
  EXPECT_TRUE(warnings_.empty());
  ASSERT_TRUE(e.set_memory(999 * kGiB));
  ASSERT_TRUE(e.step([](const Event&) {}));
  EXPECT_EQ(e.memory().ceiling, 16 * kGiB);
  EXPECT_TRUE(e.memory().error.empty()) << e.memory().error;
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("16384 MiB (physical memory)"), std::string::npos) << warnings_[0];
  ASSERT_TRUE(e.set_budget(e.plan().smallest_budget));
  ASSERT_TRUE(e.step([](const Event&) {}));
  EXPECT_EQ(warnings_.size(), 1u) << "not said again for another limit";

  limit(4 * kGiB);
  options_.memory = 8 * kGiB;
  engine = Engine::open(options_);
  ASSERT_TRUE(engine) << engine.error().message;
  EXPECT_EQ((*engine)->memory().ceiling, 4 * kGiB);
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_NE(warnings_[1].find("cgroup /job"), std::string::npos) << warnings_[1];
}

// Eight bytes for each page that the ceiling lets us touch.
TEST_F(Sizes, PageTablesOfLargeCeilingsAreReserved) {
  has(256 * kGiB);
  options_.memory = 4 * kGiB;
  const Sizing small = sized();
  options_.memory = 64 * kGiB;
  const Sizing large = sized();
  const uint64_t tables = 60 * kGiB / 512;
  const auto near = [](uint64_t a, uint64_t b) {  // the process itself differs from run to run
    return std::max(a, b) - std::min(a, b) < 8 * kMiB;
  };
  EXPECT_PRED2(near, large.plan.process_bytes, small.plan.process_bytes + tables);
  EXPECT_PRED2(near, large.plan.smallest_memory, small.plan.smallest_memory);

  options_.memory = 4 * kGiB;
  auto engine = Engine::open(options_);
  ASSERT_TRUE(engine) << engine.error().message;
  Engine& e = **engine;
  const uint64_t process = e.memory().process, arena = e.memory().arena;
  ASSERT_TRUE(e.set_memory(64 * kGiB));
  ASSERT_TRUE(e.step([](const Event&) {}));
  EXPECT_EQ(e.memory().process, process + tables);
  EXPECT_EQ(e.memory().ceiling, 64 * kGiB);
  EXPECT_EQ(e.memory().arena, arena);
  // They stay: tables that were needed once are not given back.
  ASSERT_TRUE(e.set_memory(4 * kGiB));
  ASSERT_TRUE(e.step([](const Event&) {}));
  EXPECT_EQ(e.memory().process, process + tables);
}

// The number in a refusal works, whichever pages are asked for.
TEST_F(Sizes, TheSmallestMemoryWorksWithEveryKindOfPages) {
  for (const HugePages pages : {HugePages::kAuto, HugePages::kOn, HugePages::kOff}) {
    options_.huge_pages = pages;
    for (const uint64_t memory : {uint64_t{1}, 20 * kMiB, 40 * kMiB}) {
      options_.memory = memory;
      const Plan refused = sized().plan;
      ASSERT_FALSE(refused.fits);
      options_.memory = refused.smallest_memory;
      const Plan plan = sized().plan;
      EXPECT_TRUE(plan.fits) << static_cast<int>(pages) << ": " << plan.why;
    }
  }
}

// Where an expert's bytes lie decides how large a window its reads take: the buffers hold the
// largest of all, not the first of each layer.
TEST_F(Sizes, ReadBuffersHoldEveryPiece) {
  options_.model = temp_ / "odd.gguf";
  options_.io_threads = 3;
  write_synth_gguf(
      options_.model,
      {.layers = 2, .hidden = 256, .heads = 4, .vocab = 512, .experts = 16, .width = 96});
  auto model = Model::open(options_.model);
  ASSERT_TRUE(model) << model.error().message;
  const Model::Impl& impl = (*model)->impl();
  uint64_t first = 0, others = 0, most = 0;
  for (const auto& piece : impl.table.pieces) {
    const auto fill = format::PieceFill::plan(impl.source(), piece);
    ASSERT_TRUE(fill);
    if (piece.kind == format::PieceKind::kExpert) {
      uint64_t& of = piece.expert == 0 ? first : others;
      of = std::max(of, fill->scratch_bytes());
    }
    most = std::max(most, fill->scratch_bytes());
  }
  EXPECT_GT(others, first) << "the first expert of each layer needs less than others";
  EXPECT_EQ(sized().io_scratch, 3 * round_up(most, uint64_t{4096}));
}

}  // namespace
}  // namespace millrace::test
