// The trained tiny model: its float32 greedy continuations, and teacher-forced agreement of the
// int8 path.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

TEST(Trained, Float32GreedyContinuationsIdForId) {
  std::ifstream file(repo("models/tiny-moe-4bit/expected.json"));
  const auto expected = nlohmann::json::parse(file);
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.activations = ActivationPrecision::kF32;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const auto& cases = expected.at("float32_dequantized_reference");
  ASSERT_EQ(cases.size(), 4u);
  for (const auto& item : cases) {
    Request request;
    request.prompt_ids = item.at("prompt_ids").get<std::vector<Token>>();
    const auto greedy = item.at("greedy_ids").get<std::vector<Token>>();
    request.max_tokens = static_cast<uint32_t>(greedy.size());
    request.ignore_eos = true;
    request.logits_top = 2;
    std::vector<float> margins;
    auto done = (*engine)->generate(request, [&](const Event& event) {
      if (event.token) margins.push_back(event.top[0].logit - event.top[1].logit);
      return true;
    });
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ((*engine)->model().tokenize(item.at("prompt").get<std::string>()).value(),
              request.prompt_ids);
    for (size_t i = 0; i < greedy.size(); ++i) {
      if (done->token_ids[i] == greedy[i]) continue;
      EXPECT_LT(margins[i], 1e-3) << "token " << i << " of '"
                                  << item.at("prompt").get<std::string>() << "'";
      break;
    }
  }
}

void agreement(ActivationPrecision activations, double least) {
  const std::string path = repo("models/tiny-moe-4bit/expected.safetensors");
  const auto ids = read_tensor<int32_t>(path, "input_ids");
  const auto top = read_tensor<int32_t>(path, "logits_top_ids");
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  options.activations = activations;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const uint32_t vocab = (*engine)->model().info().vocab;
  uint32_t equal = 0;
  auto status = (*engine)->score(std::vector<Token>(ids.begin(), ids.end()),
                                 [&](uint32_t position, const float* row) {
                                   const auto best = std::max_element(row, row + vocab) - row;
                                   equal += best == top[position * 32];
                                 });
  ASSERT_TRUE(status) << status.error().message;
  const double share = static_cast<double>(equal) / static_cast<double>(ids.size());
  std::printf("top-1 agreement %.4f of %zu\n", share, ids.size());
  EXPECT_GE(share, least);
}

TEST(Trained, Int8TopOneAgreement) { agreement(ActivationPrecision::kInt8, 0.97); }
TEST(Trained, Float32TopOneAgreement) { agreement(ActivationPrecision::kF32, 0.995); }

}  // namespace
}  // namespace millrace::test
