// Disks on a bad day, seen from the engine: what can be survived changes no token (C1), and a piece
// that cannot be read ends the requests that need it and no other.
#include <algorithm>
#include <fstream>
#include <map>

#include "format/packed.h"
#include "io/faults.h"
#include "io/uring.h"
#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

using io::Fault;
using std::chrono::milliseconds;

std::string name_of(IoBackend backend) { return backend == IoBackend::kUring ? "uring" : "pread"; }

class EngineFaults : public testing::TestWithParam<IoBackend> {
 protected:
  void SetUp() override {
    if (GetParam() == IoBackend::kUring && !io::why_no_io_uring().empty())
      GTEST_SKIP() << io::why_no_io_uring();
  }

  void pack(const std::string& source) {
    path_ = temp_ / "packed";
    pack_to(repo(source), path_);
    const auto model = Model::open(path_);
    ASSERT_TRUE(model) << model.error().message;
    EngineOptions probe;
    probe.model = path_;
    const auto plan = make_plan(**model, probe);
    ASSERT_TRUE(plan);
    smallest_ = plan->smallest_budget;
    const auto packed = format::open_packed(path_);
    ASSERT_TRUE(packed);
    pieces_ = packed->manifest.pieces;
  }
  EngineOptions options() {
    EngineOptions out;
    out.model = path_;
    out.budget = smallest_;
    out.threads = 2;
    out.context = 128;
    out.max_requests = 2;
    out.io = IoMode::kDirect;
    out.io_backend = GetParam();
    out.io_threads = 4;
    out.read_hook = &faults_;
    return out;
  }
  Request request(std::vector<Token> prompt) const {
    Request out;
    out.prompt_ids = std::move(prompt);
    out.max_tokens = tokens_;
    out.ignore_eos = true;
    return out;
  }

  struct Result {
    std::vector<Token> ids;
    FinishReason finish = FinishReason::kNone;
    std::string error;
  };
  // All in one engine, at the same time.
  std::vector<Result> run(const std::vector<std::vector<Token>>& prompts,
                          const EngineOptions& how) {
    std::vector<Result> results(prompts.size());
    auto engine = Engine::open(how);
    if (!engine) {
      ADD_FAILURE() << engine.error().message;
      return results;
    }
    std::map<uint64_t, Result*> by_id;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto id = (*engine)->submit(request(prompts[i]));
      if (id) by_id[*id] = &results[i];
    }
    for (;;) {
      const auto more = (*engine)->step([&](const Event& event) {
        Result& result = *by_id.at(event.request);
        if (event.token) result.ids.push_back(*event.token);
        if (event.finish != FinishReason::kNone) result.finish = event.finish;
        if (event.error) result.error = event.error->message;
      });
      EXPECT_TRUE(more);
      if (!more || !*more) return results;
    }
  }
  Fault at(const format::Piece& piece) const {
    Fault fault;
    fault.begin = piece.offset;
    fault.end = piece.offset + 1;
    fault.path = fmt::format("weights-{:05}", piece.file + 1);
    return fault;
  }

  // An expert that the first prompt needs and the second does not, with a run of both.
  void one_fails(const std::vector<Token>& a, const std::vector<Token>& b) {
    const auto whole = run({a, b}, options());
    ASSERT_EQ(whole[0].ids.size(), tokens_);
    ASSERT_EQ(whole[1].ids.size(), tokens_);
    int found = 0;
    for (const format::Piece& piece : pieces_) {
      if (piece.kind != format::PieceKind::kExpert) continue;
      faults_.clear();
      faults_.add(at(piece));
      if (!run({b}, options())[0].error.empty()) continue;
      const Result alone = run({a}, options())[0];
      // Both are there when it fails.
      if (alone.error.empty() || alone.ids.size() + 1 >= tokens_) continue;
      const auto both = run({a, b}, options());
      EXPECT_EQ(both[0].finish, FinishReason::kError);
      EXPECT_NE(both[0].error.find(fmt::format("'{}'", piece.name)), std::string::npos)
          << both[0].error;
      EXPECT_NE(both[0].error.find("weights-"), std::string::npos) << both[0].error;
      EXPECT_EQ(both[0].ids, alone.ids);  // it came as far as alone
      EXPECT_EQ(both[1].finish, FinishReason::kLength) << both[1].error;
      EXPECT_EQ(both[1].ids, whole[1].ids);
      if (++found == 3) break;
    }
    EXPECT_GT(found, 0);
  }

  TempFolder temp_;
  std::string path_;
  uint64_t smallest_ = 0;
  uint32_t tokens_ = 12;
  std::vector<format::Piece> pieces_;
  io::FaultInjector faults_;
};

INSTANTIATE_TEST_SUITE_P(Backends, EngineFaults,
                         testing::Values(IoBackend::kPread, IoBackend::kUring),
                         [](const auto& of) { return name_of(of.param); });

TEST_P(EngineFaults, SlowAndPassingOnesChangeNoToken) {
  pack("models/tiny-moe-4bit");
  const std::vector<std::vector<Token>> prompts = {{5, 17, 301, 44, 9}, {80, 81, 82}};
  const auto whole = run(prompts, options());
  ASSERT_EQ(whole[0].ids.size(), tokens_);
  // One of each kind after every few reads, everywhere.
  for (const auto kind : {Fault::Kind::kError, Fault::Kind::kFlip, Fault::Kind::kEnd,
                          Fault::Kind::kShort, Fault::Kind::kSlow}) {
    faults_.clear();
    const uint64_t before = faults_.struck();
    for (uint32_t n = 0; n < 12; ++n) {
      Fault fault{.kind = kind, .skip = 7 * n, .times = 1};
      fault.delay = milliseconds(20);
      faults_.add(fault);
    }
    EngineOptions how = options();
    how.verify_reads = true;
    const auto again = run(prompts, how);
    EXPECT_GT(faults_.struck(), before + 3) << static_cast<int>(kind);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(again[i].ids, whole[i].ids) << static_cast<int>(kind) << again[i].error;
    }
  }
}

TEST_P(EngineFaults, OnlyTheRequestThatNeedsThePieceFails) {
  pack("models/tiny-moe-4bit");
  one_fails({5, 17, 301, 44, 9}, {80, 81, 82});
}

// Recurrent state cannot be taken back: those that go on start over, and come to the same tokens.
TEST_P(EngineFaults, OnlyTheRequestThatNeedsThePieceFailsWithRecurrentLayers) {
  pack("tests/data/golden/qwen3_next");
  tokens_ = 3;  // it has few experts: more tokens fire them all
  one_fails({5, 17, 31, 44, 9}, {80});
}

TEST_P(EngineFaults, AMirrorKeepsTheModelGoing) {
  pack("models/tiny-moe-4bit");
  const std::vector<std::vector<Token>> prompts = {{5, 17, 301, 44, 9}, {80, 81, 82}};
  const auto whole = run(prompts, options());
  fs::copy(path_, temp_ / "mirror");
  Fault gone;
  gone.path = "/packed/";
  gone.skip = 40;
  faults_.add(gone);
  EngineOptions how = options();
  how.mirrors = {temp_ / "mirror"};
  std::vector<std::string> warnings;
  how.warn = [&](std::string_view line) { warnings.emplace_back(line); };
  const auto again = run(prompts, how);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(again[i].ids, whole[i].ids);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("same disk"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[1].find("packed: no longer read"), std::string::npos) << warnings[1];
}

TEST(EngineMirrors, SourceFilesInPlaceToo) {
  TempFolder temp;
  const std::string source = repo("models/tiny-moe-4bit");
  fs::copy(source, temp / "mirror");
  EngineOptions options;
  options.model = source;
  Request request;
  request.prompt_ids = {5, 17, 301};
  request.max_tokens = 8;
  const auto whole = generate(options, request);
  ASSERT_TRUE(whole);
  io::FaultInjector faults;
  Fault gone;
  gone.path = source;
  gone.skip = 10;
  faults.add(gone);
  options.read_hook = &faults;
  options.mirrors = {temp / "mirror"};
  std::vector<std::string> warnings;
  options.warn = [&](std::string_view line) { warnings.emplace_back(line); };
  const auto again = generate(options, request);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->ids, whole->ids);
  ASSERT_FALSE(warnings.empty());  // in front of it perhaps that both lie on the same disk
  EXPECT_NE(warnings.back().find("no longer read"), std::string::npos) << warnings.back();
  // Nothing to verify reads with, and no folder: said before anything is read.
  options.verify_reads = true;
  auto refused = Engine::open(options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("no hashes"), std::string::npos);
  options.verify_reads = false;
  options.mirrors = {temp / "nowhere"};
  refused = Engine::open(options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("nowhere"), std::string::npos);
}

// The headers of two models of one base are the same: what lies behind them is looked at too.
TEST(EngineMirrors, AnotherModelOfTheSameShapeIsRefused) {
  TempFolder temp;
  const std::string source = repo("tests/data/golden/llama");
  fs::copy(source, temp / "mirror");
  {
    std::fstream file(temp / "mirror" + "/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto bytes = static_cast<std::streamoff>(fs::file_size(source + "/model.safetensors"));
    const std::string other(static_cast<size_t>(bytes / 2), 'x');
    file.seekp(bytes / 2);
    file.write(other.data(), static_cast<std::streamsize>(other.size()));
  }
  EngineOptions options;
  options.model = source;
  options.mirrors = {temp / "mirror"};
  auto refused = Engine::open(options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("no mirror of it"), std::string::npos)
      << refused.error().message;
  options.mirrors = {source};
  refused = Engine::open(options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("own folder"), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
