// A model against the reference's logits and greedy continuation of a golden fixture, with float
// activations.
//
// In two fixtures of sparse attention the indexer meets equal scores (its two small heads often both
// give zero), and the reference takes them in the order that torch.topk leaves them in. They are
// compared with that order (docs/decisions/0007); the other sparse ones with ours.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/support/engine_run.h"

namespace millrace::test {

constexpr double kGoldenBar = 2e-3;  // of the logit range

// Each token of the reference came from a full pass over all before it, whose length its order of
// equal scores depends on.
inline void check_full_passes(Engine& engine, const std::vector<int32_t>& ids,
                              const std::vector<int32_t>& greedy_ids,
                              const std::vector<float>& greedy_logits, double range) {
  const uint64_t vocab = greedy_logits.size() / greedy_ids.size();
  std::vector<Token> text(ids.begin(), ids.end());
  for (size_t i = 0; i < greedy_ids.size(); ++i) {
    double worst = 0;
    auto status = engine.score(
        text,
        [&](uint32_t position, const float* row) {
          if (position + 1 != text.size()) return;
          for (uint64_t v = 0; v < vocab; ++v)
            worst = std::max(worst,
                             std::abs(static_cast<double>(row[v]) - greedy_logits[i * vocab + v]));
        },
        TieOrder::kReference);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_LE(worst, kGoldenBar * range) << "row " << i << " of the continuation";
    text.push_back(greedy_ids[i]);
  }
}

// `model` holds the fixture's weights in any layout.
inline void check_golden(const std::string& fixture, const std::string& model, uint32_t chunk) {
  const std::string expected = repo("tests/data/golden/" + fixture + "/expected.safetensors");
  std::vector<uint64_t> shape;
  const auto ids = read_tensor<int32_t>(expected, "input_ids");
  const auto logits = read_tensor<float>(expected, "logits", &shape);
  const auto greedy_ids = read_tensor<int32_t>(expected, "greedy_ids");
  const auto greedy_logits = read_tensor<float>(expected, "greedy_logits");
  ASSERT_EQ(shape.size(), 2u);
  const uint64_t vocab = shape[1];
  const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
  const double range = static_cast<double>(*high) - *low;

  EngineOptions options;
  options.model = model;
  options.activations = ActivationPrecision::kF32;
  options.prefill_chunk = chunk;
  options.threads = 2;
  auto engine = Engine::open(options);
  ASSERT_TRUE(engine) << engine.error().message;
  const bool reference_ties = fixture == "deepseek_v32" || fixture == "glm_moe_dsa";
  const TieOrder ties = reference_ties ? TieOrder::kReference : TieOrder::kLowerPosition;
  uint32_t rows = 0;
  double worst = 0;
  auto status = (*engine)->score(
      std::vector<Token>(ids.begin(), ids.end()),
      [&](uint32_t position, const float* row) {
        EXPECT_EQ(position, rows++);
        for (uint64_t v = 0; v < vocab; ++v)
          worst =
              std::max(worst, std::abs(static_cast<double>(row[v]) - logits[position * vocab + v]));
      },
      ties);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(rows, ids.size());
  EXPECT_LE(worst, kGoldenBar * range) << "range " << range;
  testing::Test::RecordProperty("worst_over_range", std::to_string(worst / range));

  ASSERT_EQ(rows, 28u);
  ASSERT_EQ(greedy_ids.size(), 12u);
  if (reference_ties) return check_full_passes(**engine, ids, greedy_ids, greedy_logits, range);
  Request request;
  request.prompt_ids.assign(ids.begin(), ids.end());
  request.max_tokens = static_cast<uint32_t>(greedy_ids.size());
  request.ignore_eos = true;
  auto done = (*engine)->generate(request);
  ASSERT_TRUE(done) << done.error().message;
  ASSERT_EQ(done->token_ids.size(), greedy_ids.size());
  for (size_t i = 0; i < greedy_ids.size(); ++i) {
    if (done->token_ids[i] == greedy_ids[i]) continue;
    std::vector<float> row(greedy_logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                           greedy_logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
    std::nth_element(row.begin(), row.begin() + 1, row.end(), std::greater<>());
    EXPECT_LE(row[0] - row[1], kGoldenBar * range)
        << "greedy id " << i << " is " << done->token_ids[i] << ", not " << greedy_ids[i];
    break;  // what follows another token is another text
  }
}

}  // namespace millrace::test
