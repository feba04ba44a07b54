// Prompts that pass layer by layer under a budget of few experts, and experts read before they are asked
// for: how often weights are read, and that the tokens do not depend on it.
#include <algorithm>
#include <map>
#include <sstream>

#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

std::vector<Token> prompt_of(uint32_t n) {
  std::vector<Token> ids;
  for (uint32_t i = 0; i < n; ++i) ids.push_back(static_cast<Token>(3 + i * 37 % 900));
  return ids;
}

Request request_of(uint32_t prompt, uint32_t tokens) {
  Request request;
  request.prompt_ids = prompt_of(prompt);
  request.max_tokens = tokens;
  request.ignore_eos = true;
  return request;
}

EngineOptions small_budget(uint64_t more) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.threads = 2;
  auto model = Model::open(options.model);
  if (!model) {
    ADD_FAILURE() << model.error().message;
    return options;
  }
  const auto plan = make_plan(**model, options);
  if (plan) options.budget = plan->smallest_budget + more;
  return options;
}

// Bytes read of each expert, by the name of its piece.
std::map<std::string, uint64_t> expert_reads(const std::string& path) {
  std::ifstream file(path);
  std::map<std::string, uint64_t> reads;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    uint64_t begin = 0, end = 0, bytes = 0;
    std::string since, piece;
    if (!(fields >> begin >> end >> bytes >> since) || !std::getline(fields >> std::ws, piece))
      continue;
    EXPECT_LE(begin, end);
    if (since != "-") {
      EXPECT_LE(std::stoull(since), end) << line;
    }
    if (piece.find("expert") != std::string::npos) reads[piece] += bytes;
  }
  return reads;
}

TEST(Waves, APromptReadsEachFiredExpertOnce) {
  const TempFolder temp;
  EngineOptions options = small_budget(1 << 20);
  options.context = 512;
  options.io_trace = temp / "io.txt";
  options.trace = temp / "trace.txt";
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const uint32_t chunk = (*engine)->plan().prefill_chunk;
  ASSERT_GE(chunk, 400u) << (*engine)->plan().prefill_why;
  Request request = request_of(400, 1);
  auto done = (*engine)->generate(request);
  ASSERT_TRUE(done) << done.error().message;
  const IoReport io = (*engine)->io();
  ASSERT_TRUE((*engine)->finish_trace());

  // One pass: every (layer, expert) of the trace fired once, and was read once.
  const auto reads = expert_reads(temp / "io.txt");
  EXPECT_EQ(reads.size(), io.expert_misses);
  EXPECT_EQ(io.expert_hits, 0u);
  uint64_t expert = 0;
  for (const auto& kind : (*engine)->plan().kinds)
    if (kind.name == "expert") expert = kind.bytes / kind.pieces;
  ASSERT_GT(expert, 0u);
  for (const auto& [piece, bytes] : reads) {
    EXPECT_GT(bytes, expert * 3 / 4) << piece;
    EXPECT_LT(bytes, expert * 5 / 4) << piece;
  }
  const auto replayed =
      replay({.trace = temp / "trace.txt", .policies = {"lru"}, .shares = {1.0}, .slots = {}});
  ASSERT_TRUE(replayed) << replayed.error().message;
  EXPECT_EQ(replayed->steps, 1u);
  EXPECT_EQ(replayed->rows[0].uses, reads.size());
}

// What stays in memory is read with its first use, or, if so wanted, in front of everything.
TEST(Loading, ExpertsAreReadWhenTheyFire) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.context = 128;
  const auto lazy = Engine::open(options);
  ASSERT_TRUE(lazy) << lazy.error().message;
  options.preload = true;
  const auto loaded = Engine::open(options);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const uint64_t all = (*loaded)->io().reads;
  uint64_t pieces = 0, experts = 0;
  for (const auto& kind : (*loaded)->plan().kinds) {
    pieces += kind.pieces;
    if (kind.name == "expert") experts += kind.pieces;
  }
  EXPECT_EQ(all, pieces);
  // What every pass needs may be read ahead already.
  ASSERT_GT(experts, 100u);
  EXPECT_LE((*lazy)->io().reads, pieces - experts);

  const Request request = request_of(5, 8);
  const auto first = (*lazy)->generate(request), second = (*loaded)->generate(request);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->token_ids, second->token_ids);
  EXPECT_EQ((*loaded)->io().reads, all);
  EXPECT_GT((*lazy)->io().reads, 0u);
  EXPECT_LT((*lazy)->io().reads, all);  // experts that did not fire are not there
}

TEST(Waves, ChunksReadMoreAndSayTheSame) {
  EngineOptions options = small_budget(1 << 20);
  options.context = 512;
  Request request = request_of(400, 8);
  const auto one = generate(options, request);
  options.prefill_chunk = 50;
  const auto eight = generate(options, request);
  ASSERT_TRUE(one && eight);
  EXPECT_EQ(one->ids, eight->ids);
  EXPECT_EQ(eight->plan.prefill_why, "asked for");
  EXPECT_GT(eight->io.bytes_read, 2 * one->io.bytes_read);
}

TEST(Waves, ResidentWeightsNeedNoLargeWave) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  auto model = Model::open(options.model);
  ASSERT_TRUE(model);
  const auto plan = make_plan(**model, options);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->prefill_chunk, 256u);
  EXPECT_EQ(plan->prefill_why, "weights stay in memory");
}

// A wave may take long: it tells how far it is, and can be given up without a trace.
TEST(Waves, TellHowFarTheyAreAndCanBeGivenUp) {
  EngineOptions options = small_budget(1 << 20);
  options.context = 512;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  ASSERT_GE((*engine)->plan().prefill_chunk, 400u);
  Request request = request_of(400, 4);
  std::vector<uint32_t> done;
  const auto whole = (*engine)->generate(request, [&](const Event& event) {
    if (!event.token && event.finish == FinishReason::kNone) done.push_back(event.prompt_done);
    return true;
  });
  ASSERT_TRUE(whole) << whole.error().message;
  ASSERT_EQ(done.size(), 7u);  // before each layer but the first
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.front(), 50u);
  EXPECT_LT(done.back(), 400u);

  uint32_t last = 0;
  const auto cut = (*engine)->generate(request, [&](const Event& event) {
    last = event.prompt_done;
    return event.prompt_done < 100;
  });
  ASSERT_TRUE(cut) << cut.error().message;
  EXPECT_EQ(cut->finish, FinishReason::kCancelled);
  EXPECT_TRUE(cut->token_ids.empty());
  EXPECT_LE(last, 100u);
  const auto again = (*engine)->generate(request);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->token_ids, whole->token_ids);
}

// One request's cancellation does not end the step of another.
TEST(Waves, OthersGoOnWhenOneIsCancelledInAWave) {
  EngineOptions options = small_budget(1 << 20);
  options.context = 512;
  Request request = request_of(200, 4);
  const auto alone = generate(options, request);
  ASSERT_TRUE(alone);
  options.max_requests = 2;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const auto keep = (*engine)->submit(request);
  request.prompt_ids[0] = 1;
  const auto drop = (*engine)->submit(request);
  ASSERT_TRUE(keep && drop);
  std::vector<Token> kept;
  FinishReason dropped = FinishReason::kNone;
  for (bool more = true; more;) {
    const auto stepped = (*engine)->step([&](const Event& event) {
      if (event.request == *drop) {
        (*engine)->cancel(*drop);
        dropped = event.finish;
      } else if (event.token) {
        kept.push_back(*event.token);
      }
    });
    ASSERT_TRUE(stepped) << stepped.error().message;
    more = *stepped;
  }
  EXPECT_EQ(dropped, FinishReason::kCancelled);
  EXPECT_EQ(kept, alone->ids);
}

// A request that makes tokens goes on while another's long prompt is read.
TEST(Waves, AreShortBesideRowsThatDecode) {
  EngineOptions options = small_budget(1 << 20);
  options.context = 512;
  options.max_requests = 2;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  ASSERT_GE((*engine)->plan().prefill_chunk, 450u);
  Request request = request_of(4, 40);
  const auto first = (*engine)->submit(request);
  ASSERT_TRUE(first);
  uint64_t second = 0;
  uint32_t between = 0;  // tokens of the first while the second's prompt is read
  bool second_began = false;
  for (bool more = true; more;) {
    const auto stepped = (*engine)->step([&](const Event& event) {
      if (second != 0 && event.request == second && event.token) second_began = true;
      if (second != 0 && event.request == *first && event.token && !second_began) ++between;
    });
    ASSERT_TRUE(stepped) << stepped.error().message;
    more = *stepped;
    if (second != 0) continue;
    request.prompt_ids = prompt_of(450);
    const auto submitted = (*engine)->submit(request);
    ASSERT_TRUE(submitted);
    second = *submitted;
    more = true;
  }
  EXPECT_TRUE(second_began);
  EXPECT_GE(between, 2u);  // 450 rows in waves of 256
}

TEST(Prefetch, TokensAreTheSameWithEveryKind) {
  Request request = request_of(20, 120);
  EngineOptions options = small_budget(2 << 20);
  options.prefetch = "off";
  const auto off = generate(options, request);
  ASSERT_TRUE(off);
  EXPECT_EQ(off->io.prefetch_issued, 0u);
  EXPECT_GT(off->io.expert_misses, 0u);
  for (const char* kind : {"auto", "temporal", "router"}) {
    options.prefetch = kind;
    const auto other = generate(options, request);
    ASSERT_TRUE(other);
    EXPECT_EQ(other->ids, off->ids) << kind;
    if (std::string_view(kind) != "auto") {
      EXPECT_GT(other->io.prefetch_issued, 0u) << kind;
    }
  }
  options.prefetch = "psychic";
  const auto engine = Engine::open(options);
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message.find("psychic"), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
