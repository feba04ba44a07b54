// What q8 and q4 KV cost in accuracy, held to what was measured (docs/experiments/kv-types.md), what
// they save, and where q4 is refused.
#include <algorithm>
#include <cmath>

#include "api/sizing.h"
#include "kernels/kv_layout.h"
#include "model/kv.h"
#include "tests/support/fixture_model.h"
#include "tests/support/fixtures.h"

namespace millrace::test {
namespace {

const char* const kText =
    "import os\nimport sys\n\n\nclass Cache:\n    def __init__(self, size):\n        self.size = "
    "size\n"
    "        self.items = {}\n\n    def get(self, key, default=None):\n        if key in "
    "self.items:\n"
    "            return self.items[key]\n        return default\n\n    def put(self, key, value):\n"
    "        if len(self.items) >= self.size:\n            self.items.pop(next(iter(self.items)))\n"
    "        self.items[key] = value\n\n\ndef main():\n    cache = Cache(10)\n    for line in "
    "sys.stdin:\n"
    "        key, value = line.split()\n        cache.put(key, value)\n    "
    "print(cache.get('name'))\n";

struct Scored {
  std::vector<std::vector<float>> rows;
};

Scored score(const std::string& path, const std::vector<Token>& ids, KvPrecision kv,
             ActivationPrecision activations) {
  Scored out;
  EngineOptions options;
  options.model = path;
  options.kv = kv;
  options.activations = activations;
  options.threads = 1;
  auto engine = Engine::open(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return out;
  }
  const uint32_t vocab = (*engine)->model().info().vocab;
  auto done = (*engine)->score(
      ids, [&](uint32_t, const float* logits) { out.rows.emplace_back(logits, logits + vocab); });
  EXPECT_TRUE(done);
  return out;
}

// How far `got` is from `expected`: share of rows with the same most likely token, and the mean
// divergence of the distributions.
struct Distance {
  double same = 0, divergence = 0;
};
Distance distance(const Scored& expected, const Scored& got) {
  Distance d;
  const auto log_sum = [](const std::vector<float>& x) {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float v : x) sum += std::exp(v - most);
    return most + std::log(sum);
  };
  for (size_t r = 0; r < expected.rows.size(); ++r) {
    const auto &x = expected.rows[r], &y = got.rows[r];
    d.same += std::max_element(x.begin(), x.end()) - x.begin() ==
              std::max_element(y.begin(), y.end()) - y.begin();
    const double lx = log_sum(x), ly = log_sum(y);
    for (size_t i = 0; i < x.size(); ++i)
      d.divergence += std::exp(x[i] - lx) * ((x[i] - lx) - (y[i] - ly));
  }
  const auto rows = static_cast<double>(std::max<size_t>(1, expected.rows.size()));
  d.same /= rows;
  d.divergence /= rows;
  return d;
}

void compare(const std::string& path, double q8_most, double q4_most) {
  auto model = Model::open(path);
  ASSERT_TRUE(model) << model.error().message;
  auto ids = (*model)->tokenize(kText);
  ASSERT_TRUE(ids);
  model->reset();
  constexpr auto kFloat = ActivationPrecision::kF32;
  const Scored f32 = score(path, *ids, KvPrecision::kF32, kFloat);
  const Scored q8 = score(path, *ids, KvPrecision::kQ8, kFloat);
  const Scored q4 = score(path, *ids, KvPrecision::kQ4, kFloat);
  ASSERT_GT(f32.rows.size(), 100u);
  ASSERT_EQ(q8.rows.size(), f32.rows.size());
  ASSERT_EQ(q4.rows.size(), f32.rows.size());
  const Distance eight = distance(f32, q8), four = distance(f32, q4);
  EXPECT_GE(eight.same, 0.97);
  EXPECT_LE(eight.divergence, q8_most);
  EXPECT_GT(eight.divergence, 0.0);  // or the type was not used
  EXPECT_LE(four.divergence, q4_most);
  EXPECT_GT(four.divergence, eight.divergence);
}

TEST(KvTypesOfModels, TrainedMoe) { compare(repo("models/tiny-moe-4bit"), 3e-4, 3e-2); }
TEST(KvTypesOfModels, SmolLM2) {
  const std::string path = fetched_model("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (path.empty()) GTEST_SKIP() << "the model was not fetched (tools/fetch_model.sh)";
  compare(path, 1e-3, 1e-1);
}

// Largest difference of each row, in ascending order.
std::vector<double> differences(const Scored& expected, const Scored& got) {
  std::vector<double> rows;
  for (size_t r = 0; r < expected.rows.size(); ++r) {
    double worst = 0;
    for (size_t i = 0; i < expected.rows[r].size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(got.rows[r][i]) - expected.rows[r][i]));
    rows.push_back(worst);
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

// Every family, random weights: a step of q8 is some 16 times one of f16, and so is what comes of
// it, also where a model makes much of little (gemma4). A router or an indexer may choose otherwise
// where two scores are near, and what follows is then another computation: there only the better
// rows are compared.
TEST(KvTypesOfModels, FixturesWithQ8) {
  for (const auto& name : fixtures()) {
    const auto ids = Fixture(name).ids();
    const std::vector<Token> tokens(ids.begin(), ids.end());
    const auto run = [&](KvPrecision kv) {
      return score(golden(name), tokens, kv, ActivationPrecision::kF32);
    };
    const Scored f32 = run(KvPrecision::kF32), f16 = run(KvPrecision::kF16),
                 q8 = run(KvPrecision::kQ8);
    ASSERT_FALSE(f32.rows.empty()) << name;
    ASSERT_EQ(q8.rows.size(), f32.rows.size()) << name;
    bool chooses = false;
    for (const auto& layer : spec_of(config_of(name)).layers)
      chooses = chooses || layer.ffn.moe || (layer.mla && layer.mla->indexer);
    const auto narrow = differences(f32, f16), codes = differences(f32, q8);
    const size_t at = chooses ? codes.size() / 4 : codes.size() - 1;
    EXPECT_LE(codes[at], 64 * narrow[at]) << name;
    EXPECT_GT(codes[at], narrow[at]) << name;  // or the type was not used
  }
}

TEST(KvTypesOfModels, FourBitsOfALatentAreRefused) {
  for (const char* name : {"deepseek_v3", "deepseek_v32"}) {
    EngineOptions options;
    options.model = golden(name);
    options.kv = KvPrecision::kQ4;
    auto engine = Engine::open(options);
    ASSERT_FALSE(engine);
    for (const char* word : {"q4", "latent", "--kv q8"})
      EXPECT_NE(engine.error().message.find(word), std::string::npos) << engine.error().message;
    auto model = Model::open(options.model);
    ASSERT_TRUE(model);
    EXPECT_FALSE(make_plan(**model, options));
  }
}

// Codes are made in buffers of that many channels: of attention heads, latents and index keys.
TEST(KvTypesOfModels, WiderHeadsThanTheBuffersAreRefused) {
  model::ModelSpec spec = spec_of(config_of("deepseek_v32"));
  ASSERT_TRUE(model::KvShape::check(spec, kernels::KvType::kQ8));
  ASSERT_TRUE(spec.layers[0].mla && spec.layers[0].mla->indexer);
  spec.layers[0].mla->indexer->dim = kernels::kMostTurned + 32;
  const Status refused = model::KvShape::check(spec, kernels::KvType::kQ8);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("1056"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(model::KvShape::check(spec, kernels::KvType::kF16));
}

// Codes, and an f16 scale for 32 channels.
TEST(KvTypesOfModels, PlanCountsTheBytes) {
  auto model = Model::open(repo("models/tiny-moe-4bit"));
  ASSERT_TRUE(model);
  const auto& attention = (*model)->impl().spec.layers[0].attention;
  const auto bytes = [&](KvPrecision kv) {
    EngineOptions options;
    options.model = repo("models/tiny-moe-4bit");
    options.context = 512;
    options.kv = kv;
    auto plan = make_plan(**model, options);
    EXPECT_TRUE(plan);
    return plan ? static_cast<double>(plan->kv_bytes) : 0.0;
  };
  const double dim = attention.key_dim, scales = 2.0 * std::ceil(dim / 32);
  const double f16 = bytes(KvPrecision::kF16);
  EXPECT_NEAR(bytes(KvPrecision::kF32) / f16, 2.0, 0.01);
  EXPECT_NEAR(bytes(KvPrecision::kQ8) / f16, (dim + scales) / (2 * dim), 0.01);
  EXPECT_NEAR(bytes(KvPrecision::kQ4) / f16, (dim / 2 + scales) / (2 * dim), 0.01);
}

}  // namespace
}  // namespace millrace::test
