// Limits that change while requests run: the output stays the same bytes (C1), memory goes back to
// the system (C2), and what cannot run is refused.
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "base/size_text.h"
#include "stream/ledger.h"
#include "tests/support/engine_run.h"
#include "tests/support/synth_gguf.h"

namespace millrace::test {
namespace {

std::vector<Token> prompt_of(uint32_t length, uint32_t vocab) {
  std::vector<Token> ids;
  for (uint32_t i = 0; i < length; ++i) ids.push_back(static_cast<Token>((i * 37 + 11) % vocab));
  return ids;
}

Request request_of(const Model& model, uint32_t prompt, uint32_t tokens, bool sampled) {
  Request request;
  request.prompt_ids = prompt_of(prompt, std::min(model.info().vocab, 256u));
  request.max_tokens = tokens;
  request.ignore_eos = true;
  if (sampled) sample(request);
  return request;
}

// Budgets change every few steps, prompt steps among them.
void changing_budgets(const std::string& path, bool sampled) {
  EngineOptions options;
  options.model = path;
  options.context = 256;
  options.prefill_chunk = 5;
  options.threads = 2;
  options.prefetch = sampled ? "router" : "temporal";  // reads under way when budgets change
  auto model = Model::open(path);
  ASSERT_TRUE(model) << model.error().message;
  const Request request = request_of(**model, 40, 40, sampled);
  auto still = generate(options, request);
  ASSERT_TRUE(still);

  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  Engine& e = **engine;
  const uint64_t least = e.plan().smallest_budget, most = e.memory().arena;  // everything
  std::vector<uint64_t> arenas;
  uint32_t step = 0;
  auto done = e.generate(request, [&](const Event& event) {
    EXPECT_EQ(event.error, nullptr);
    const uint64_t budgets[] = {least, most, (least + most) / 2, least + (most - least) / 5};
    if (++step % 3 == 0) {
      const Status asked = e.set_budget(budgets[step / 3 % 4]);
      EXPECT_TRUE(asked) << asked.error().message;
    }
    const MemoryReport report = e.memory();
    EXPECT_TRUE(report.error.empty()) << report.error;
    EXPECT_EQ(report.arena, e.plan().budget);
    arenas.push_back(report.arena);
    return true;
  });
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->token_ids, still->ids) << path;
  std::sort(arenas.begin(), arenas.end());
  arenas.erase(std::unique(arenas.begin(), arenas.end()), arenas.end());
  EXPECT_GE(arenas.size(), 3u) << "the arena must really have changed";
  EXPECT_EQ(arenas.front(), least);
  // A second request in the engine that was moved about.
  ASSERT_TRUE(e.set_budget(least));
  auto again = e.generate(request);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->token_ids, still->ids);
  EXPECT_EQ(e.memory().arena, least);
  EXPECT_GT(e.io().bytes_read, still->io.bytes_read);
}

TEST(Budget, OutputStaysWhileBudgetsChange) {
  TempFolder temp;
  const std::string moe = repo("models/tiny-moe-4bit");
  const std::string dense = repo("tests/data/golden/llama");
  pack_to(moe, temp / "moe");
  pack_to(dense, temp / "dense");
  for (const std::string& path : {moe, temp / "moe", dense, temp / "dense"}) {
    for (const bool sampled : {false, true}) changing_budgets(path, sampled);
  }
}

TEST(Budget, OutputStaysForOtherMixers) {
  for (const char* name : {"deepseek_v32", "qwen3_5_moe", "gemma3_text", "nemotron_h"})
    changing_budgets(repo(fmt::format("tests/data/golden/{}", name)), false);
}

// Several requests share the steps while another thread asks for limits.
TEST(Budget, AnotherThreadMayAsk) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.context = 128;
  options.prefill_chunk = 8;
  options.max_requests = 3;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  Engine& e = **engine;
  const uint64_t least = e.plan().smallest_budget, most = e.plan().total_bytes;
  const uint64_t ceiling = e.memory().ceiling;
  std::vector<std::vector<Token>> alone;
  for (uint32_t i = 0; i < 4; ++i) {
    auto done = e.generate(request_of(e.model(), 10 + i, 24, i % 2 == 1));
    ASSERT_TRUE(done);
    alone.push_back(done->token_ids);
  }
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> asked{0};
  std::set<uint64_t> arenas, ceilings;
  std::thread asker([&] {
    for (uint32_t i = 0; !stop; ++i) {
      EXPECT_TRUE(e.set_budget(least + (most - least) * (i % 5) / 4));
      EXPECT_TRUE(e.set_memory(ceiling - (i % 3) * (most - least) / 2));
      ++asked;
      std::this_thread::yield();
    }
  });
  while (asked == 0) std::this_thread::yield();
  for (int round = 0; round < 3; ++round) {
    std::map<uint64_t, std::vector<Token>> together;
    std::vector<uint64_t> order;
    for (uint32_t i = 0; i < 4; ++i) {
      auto id = e.submit(request_of(e.model(), 10 + i, 24, i % 2 == 1));
      ASSERT_TRUE(id);
      order.push_back(*id);
    }
    for (bool more = true; more;) {
      auto stepped = e.step([&](const Event& event) {
        if (event.token) together[event.request].push_back(*event.token);
        EXPECT_EQ(event.error, nullptr);
      });
      if (!stepped) ADD_FAILURE() << stepped.error().message;
      more = stepped && *stepped;
      const MemoryReport report = e.memory();
      EXPECT_EQ(report.error, "");
      arenas.insert(report.arena);
      ceilings.insert(report.ceiling);
    }
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(together[order[i]], alone[i]) << i;
  }
  stop = true;
  asker.join();
  EXPECT_GT(e.memory().changes, 2u);
  EXPECT_GE(arenas.size(), 2u) << "budgets must really have come into force";
  EXPECT_GE(ceilings.size(), 2u) << "and ceilings";
}

TEST(Budget, WhatCannotRunIsRefusedAndChangesNothing) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.context = 128;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  Engine& e = **engine;
  const MemoryReport before = e.memory();
  const uint64_t least = e.plan().smallest_budget;
  const Status budget = e.set_budget(least - 1);
  ASSERT_FALSE(budget);
  EXPECT_EQ(budget.error().code, Code::kNoMemory);
  EXPECT_NE(budget.error().message.find(size_to_give(least)), std::string::npos)
      << budget.error().message;
  const uint64_t fixed = before.kv + before.activations + before.process;
  const Status memory = e.set_memory(fixed + least - 1);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, Code::kNoMemory);
  EXPECT_NE(memory.error().message.find(size_to_give(fixed + least)), std::string::npos)
      << memory.error().message;
  ASSERT_TRUE(e.step([](const Event&) {}));
  EXPECT_EQ(e.memory().arena, before.arena);
  EXPECT_EQ(e.memory().ceiling, before.ceiling);
  // The least that was named works, and "as it was opened" is the way back.
  ASSERT_TRUE(e.set_memory(fixed + least));
  EXPECT_EQ(e.memory().ceiling, before.ceiling) << "not before the next step";
  ASSERT_TRUE(e.step([](const Event&) {}));
  EXPECT_EQ(e.memory().ceiling, fixed + least);
  EXPECT_EQ(e.memory().arena, least);
  EXPECT_TRUE(e.generate(request_of(e.model(), 5, 3, false)));
  ASSERT_TRUE(e.set_memory(std::nullopt));
  ASSERT_TRUE(e.step([](const Event&) {}));
  EXPECT_EQ(e.memory().arena, before.arena);
}

TEST(Budget, MemoryGoesBackAndComesAgain) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory of their own";
#endif
  TempFolder temp;
  const std::string path = temp / "synth.gguf";
  write_synth_gguf(path, {.layers = 8, .hidden = 512, .experts = 48, .width = 512});
  EngineOptions options;
  options.model = path;
  options.context = 256;
  options.preload = true;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  Engine& e = **engine;
  const Request request = request_of(e.model(), 100, 4, false);
  auto first = e.generate(request);
  ASSERT_TRUE(first) << first.error().message;
  const uint64_t arena = e.memory().arena, full = stream::current_rss();
  ASSERT_GT(arena, uint64_t{60} << 20);
  const uint64_t least = e.plan().smallest_budget;
  ASSERT_TRUE(e.set_budget(least));
  ASSERT_TRUE(e.step([](const Event&) {}));  // nothing to do but this
  const uint64_t small = stream::current_rss();
  EXPECT_LT(small, full - (arena - least) * 9 / 10);
  auto second = e.generate(request);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->token_ids, first->token_ids);
  EXPECT_LT(stream::current_rss(), small + (uint64_t{8} << 20));
  ASSERT_TRUE(e.set_budget(arena));
  auto third = e.generate(request);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->token_ids, first->token_ids);
  EXPECT_EQ(e.memory().arena, arena);
  EXPECT_GT(stream::current_rss(), small + (arena - least) / 2);
}

// Memory runs short in the middle of an answer: weights are given back, the answer is the same.
TEST(Budget, APressuredAnswerIsTheSame) {
  TempFolder temp;
  const auto put = [&](const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(temp / name).parent_path());
    std::ofstream(temp / name) << text;
  };
  const auto stalls = [&](uint64_t some_us, uint64_t all_us) {
    put("proc/pressure/memory", fmt::format("some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
                                            "full avg10=0.00 avg60=0.00 avg300=0.00 total={}\n",
                                            some_us, all_us));
  };
  put("proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 100000 kB\n");
  stalls(0, 0);
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.context = 256;
  options.io = IoMode::kBuffered;
  options.system_root = temp / "";
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  Engine& e = **engine;
  EXPECT_NE(e.choices()["pressure"].find("stalls of the system"), std::string::npos);
  const Request request = request_of(e.model(), 20, 60, false);
  auto calm = e.generate(request);
  ASSERT_TRUE(calm);
  EXPECT_EQ(e.pressure().warnings, 0u);
  const uint64_t arena = e.memory().arena;

  uint32_t count = 0;
  uint64_t warned = 0, pressed = 0;
  auto done = e.generate(request, [&](const Event&) {
    ++count;
    const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1050)); };
    if (count == 10) stalls(3'000'000, 0), wait();  // more than 15 % of any second since
    if (count == 20) {
      warned = e.memory().arena;
      stalls(9'000'000, 3'000'000), wait();
    }
    if (count == 40) pressed = e.memory().arena;
    return true;
  });
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->token_ids, calm->token_ids);
  EXPECT_LT(warned, arena);
  EXPECT_LT(pressed, warned);
  EXPECT_GE(pressed, e.plan().smallest_budget);
  const PressureReport report = e.pressure();
  EXPECT_GE(report.warnings, 1u);
  EXPECT_GE(report.criticals, 1u);
  EXPECT_EQ(report.bytes_shed, arena - pressed);
  EXPECT_GT(report.given_up, 0u);
  EXPECT_GT(report.cache_dropped, 0u);

  options.relieve = false;
  auto off = Engine::open(options);
  ASSERT_TRUE(off);
  EXPECT_EQ((*off)->choices()["pressure"], "nothing: turned off");
}

// Locked weights and small pages give the same tokens; what was chosen is told.
TEST(Budget, PagesAndLocks) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.context = 128;
  auto model = Model::open(options.model);
  ASSERT_TRUE(model);
  const Request request = request_of(**model, 20, 12, false);
  auto expected = generate(options, request);
  ASSERT_TRUE(expected);
  for (const HugePages pages : {HugePages::kOff, HugePages::kOn}) {
    for (const bool lock : {false, true}) {
      options.huge_pages = pages;
      options.mlock = lock;
      auto engine = Engine::open(options);
      if (!engine) {
        ASSERT_TRUE(lock) << engine.error().message;
        EXPECT_NE(engine.error().message.find("ulimit -l"), std::string::npos)
            << engine.error().message;
        continue;
      }
      const std::string told = (*engine)->choices()["huge pages"];
      EXPECT_EQ(told.ends_with(", locked"), lock) << told;
      if (pages == HugePages::kOff) {
        EXPECT_TRUE(told.starts_with("none: turned off")) << told;
      }
      ASSERT_TRUE((*engine)->set_budget((*engine)->plan().smallest_budget));
      auto done = (*engine)->generate(request);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(done->token_ids, expected->ids);
    }
  }
}

}  // namespace
}  // namespace millrace::test
