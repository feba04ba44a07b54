// Places where the public implementations of an architecture differ, and what we do:
// docs/decisions/0008-where-references-disagree.md.
#include <cmath>

#include "api/model_impl.h"
#include "model/rope.h"
#include "tests/support/fixtures.h"
#include "tests/support/forward_lab.h"
#include "tests/support/tensor_file.h"

namespace millrace::test {
namespace {

using Json = nlohmann::json;

Json with(Json config, const Json& changes) {
  config.update(changes);
  return config;
}

std::vector<float> frequencies(const Json& rope, double theta, uint32_t dims, uint32_t context) {
  auto made = model::make_rope(rope, theta, dims, context, false);
  EXPECT_TRUE(made) << made.error().message;
  return made ? made->inv_freq : std::vector<float>();
}

// The key's LayerNorm and the latents' norms have eps 1e-6 whatever rms_norm_eps is. That it
// matters is seen in glm_moe_dsa_shared, whose latents and index keys are small.
TEST(Disagreements, LatentNormsHaveTheirOwnEps) {
  for (const char* fixture : {"glm_moe_dsa", "deepseek_v32", "youtu"}) {
    const auto spec = spec_of(with(config_of(fixture), {{"rms_norm_eps", 1e-3}}));
    EXPECT_EQ(spec.norm_eps, 1e-3f);
    EXPECT_EQ(spec.layers[0].mla->latent_eps, 1e-6f) << fixture;
  }
}

std::vector<uint32_t> full_indexers(const Json& config) {
  std::vector<uint32_t> full;
  const auto spec = spec_of(config);
  for (uint32_t i = 0; i < spec.layers.size(); ++i)
    if (!spec.layers[i].mla->indexer->shared) full.push_back(i);
  return full;
}

TEST(Disagreements, IndexersAreSharedAsTheConfigSays) {
  const Json config = config_of("glm_moe_dsa");
  EXPECT_EQ(full_indexers(with(config, {{"indexer_types", {"full", "shared", "full", "shared"}}})),
            (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(
      full_indexers(with(config, {{"indexer_types", nullptr}, {"index_topk_pattern", "FSSF"}})),
      (std::vector<uint32_t>{0, 3}));
  // GLM 5.2: of 78 layers, 21 choose.
  std::vector<uint32_t> expected = {0, 1};
  for (uint32_t i = 2; i < 78; i += 4) expected.push_back(i);
  ASSERT_EQ(expected.size(), 21u);
  EXPECT_EQ(full_indexers(with(config, {{"num_hidden_layers", 78},
                                        {"indexer_types", nullptr},
                                        {"mlp_layer_types", nullptr},
                                        {"first_k_dense_replace", 3},
                                        {"index_topk_freq", 4},
                                        {"index_skip_topk_offset", 3}})),
            expected);
}

TEST(Disagreements, YarnTruncatesUnlessToldNotTo) {
  Json rope = {{"rope_type", "yarn"}, {"factor", 32.0}, {"original_max_position_embeddings", 4096}};
  const auto rounded = frequencies(rope, 150000, 64, 131072);
  rope["truncate"] = true;
  EXPECT_EQ(frequencies(rope, 150000, 64, 131072), rounded);
  rope["truncate"] = false;
  const auto exact = frequencies(rope, 150000, 64, 131072);
  EXPECT_NE(exact, rounded);
  // Between the two ends, 8.09 and 17.40, one at 12: interpolated by (12 - 8.09) / (17.40 - 8.09).
  const double low = 64 * std::log(4096 / (32 * 2 * M_PI)) / (2 * std::log(150000.0));
  const double high = 64 * std::log(4096 / (2 * M_PI)) / (2 * std::log(150000.0));
  const double ramp = (12 - low) / (high - low), base = std::pow(150000.0, -24.0 / 64);
  EXPECT_NEAR(exact[12] / (base / 32 * ramp + base * (1 - ramp)), 1.0, 1e-6);
}

TEST(Disagreements, QwenExpertsScaleTheirRopeToo) {
  const Json yarn = {{"rope_parameters",
                      {{"rope_type", "yarn"},
                       {"rope_theta", 1e6},
                       {"factor", 4.0},
                       {"original_max_position_embeddings", 64}}}};
  const auto dense = spec_of(with(with(config_of("qwen3"), yarn), {{"head_dim", 16}}));
  const auto experts = spec_of(with(config_of("qwen3_moe"), yarn));
  EXPECT_EQ(experts.ropes[0].inv_freq, dense.ropes[0].inv_freq);
  EXPECT_NE(experts.ropes[0].inv_freq, spec_of(config_of("qwen3_moe")).ropes[0].inv_freq);
  EXPECT_GT(experts.ropes[0].scale, 1.0f);
}

TEST(Disagreements, MuseCountsItsLayersFromTheLast) {
  Json config =
      with(config_of("muse_glimmer"),
           {{"num_hidden_layers", 6}, {"layer_types", nullptr}, {"layer_rope_theta", nullptr}});
  const auto spec = spec_of(config);
  for (uint32_t i = 0; i < 6; ++i) {
    const bool full = i == 1 || i == 5;
    EXPECT_EQ(spec.layers[i].attention.window, full ? 0u : 8u) << i;
    EXPECT_EQ(spec.layers[i].attention.rope, full ? -1 : 0) << i;
  }
  EXPECT_EQ(spec.logit_scale, 0.5f);
  EXPECT_EQ(spec.logit_softcap, 20.0f);
}

TEST(Disagreements, DynamicRopeIsPlainUpToTheModelsLength) {
  const Json config = config_of("internlm3");
  const auto plain = spec_of(config).ropes[0];
  const auto dynamic =
      spec_of(with(config, {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 6.0}}}}))
          .ropes[0];
  EXPECT_EQ(dynamic.inv_freq, plain.inv_freq);
  EXPECT_EQ(dynamic.scale, 1.0f);
}

TEST(Disagreements, HeliumHeadsAreAsTheConfigSays) {
  EXPECT_EQ(spec_of(with(config_of("helium"), {{"head_dim", 32}})).layers[0].attention.key_dim,
            32u);
  EXPECT_EQ(spec_of(with(config_of("helium"), {{"head_dim", nullptr}})).layers[0].attention.key_dim,
            16u);
}

// The factors cannot change with the length of a text: keys in the cache were rotated before.
TEST(Disagreements, LongropeIsLongWhereTheModelIs) {
  Json rope = {{"rope_type", "longrope"},
               {"short_factor", {1.0, 2.0}},
               {"long_factor", {4.0, 8.0}},
               {"original_max_position_embeddings", 64}};
  EXPECT_EQ(frequencies(rope, 100, 4, 256), (std::vector<float>{0.25f, 0.1f / 8}));
  EXPECT_EQ(frequencies(rope, 100, 4, 64), (std::vector<float>{1.0f, 0.1f / 2}));
}

// All routers zero: every expert scores the same, and the first ones are chosen, in order.
TEST(Disagreements, EqualExpertsRankByNumber) {
  for (const char* fixture : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    auto tensors = read_tensors(golden(fixture) + "/model.safetensors");
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with("mlp.gate.weight") || name.ends_with("e_score_correction_bias") ||
          name.find("mlp.router.") != std::string::npos)
        std::fill(tensor.values.begin(), tensor.values.end(), 0.0f);
    }
    TempFolder temp;
    write_folder(temp / "model", config_of(fixture), tensors);
    ForwardLab lab(temp / "model", 1, 8, 1);
    ASSERT_FALSE(HasFailure());
    uint32_t calls = 0;
    lab.forward->on_route = [&](uint32_t, uint32_t rows, std::span<const uint32_t> chosen) {
      const size_t used = chosen.size() / rows;
      for (size_t i = 0; i < chosen.size(); ++i) EXPECT_EQ(chosen[i], i % used) << fixture;
      ++calls;
    };
    model::KvSequence sequence(*lab.kv);
    lab.run(sequence, {1, 2, 3, 4, 5}, 0, 5);
    EXPECT_GT(calls, 0u);
  }
}

TEST(Disagreements, GemmaEmbeddingsAreScaledInFloat) {
  const auto spec = spec_of(with(config_of("gemma3_text"), {{"hidden_size", 96}}));
  EXPECT_EQ(spec.embed_scale, std::sqrt(96.0f));  // 9.7979; in bf16 9.8125
}

// With the key, the config decides; without it, whether the file has a head.
TEST(Disagreements, TheFileSaysWhetherTheHeadIsTied) {
  for (const char* fixture : {"llama", "glm4", "qwen2", "llama_tied_bias", "gemma2"}) {
    auto source = format::open_source(golden(fixture));
    ASSERT_TRUE(source);
    const bool tied = config_of(fixture).at("tie_word_embeddings");
    EXPECT_EQ(tied, source->find("lm_head.weight") == nullptr) << fixture;
    Json config = config_of(fixture);
    const auto open = [&](model::ModelSpec* spec) {
      source->config = std::make_shared<const Json>(config);
      format::PieceTable table;
      return build_model(*source, spec, &table, nullptr);
    };
    model::ModelSpec spec;
    config.erase("tie_word_embeddings");
    ASSERT_TRUE(open(&spec)) << fixture;
    EXPECT_EQ(spec.tied, tied) << fixture;
    config["tie_word_embeddings"] = false;
    EXPECT_EQ(bool(open(&spec)), !tied) << fixture;
  }
}

// Layers that predict further tokens are left out on purpose: as many as the config says, and
// listed.
TEST(Disagreements, PredictingLayersAreDroppedByName) {
  struct Case {
    const char *fixture, *in, *out;
    Json more;
  };
  const Case cases[] = {
      {"deepseek_v3",
       "model.layers.4.eh_proj.weight",
       "model.layers.5.eh_proj.weight",
       {{"num_nextn_predict_layers", 1}}},
      {"deepseek_v3", "", "model.layers.4.eh_proj.weight", {{"num_nextn_predict_layers", 0}}},
      {"glm_moe_dsa",
       "model.layers.4.eh_proj.weight",
       "model.layers.6.eh_proj.weight",
       {{"num_nextn_predict_layers", 2}}},
      {"glm4_moe",
       "model.layers.4.shared_head.norm.weight",
       "model.layers.3.eh_proj.weight",
       {{"num_nextn_predict_layers", 1}}},
      {"mimo", "model.mtp_layers.0.input_proj.weight", "model.mtp.weight", Json::object()},
      {"qwen3_next", "mtp.fc.weight", "mt.fc.weight", Json::object()},
      {"nemotron_h", "mtp.layers.0.norm.weight", "model.mtp.weight", Json::object()},
  };
  for (const Case& c : cases) {
    const auto audit = [&](const std::string& extra, std::vector<std::string>* dropped) {
      auto source = format::open_source(golden(c.fixture));
      if (!source) return std::string("?");
      source->config = std::make_shared<const Json>(with(config_of(c.fixture), c.more));
      source->tensors.push_back(source->tensors.front());
      source->tensors.back().name = extra;
      model::ModelSpec spec;
      format::PieceTable table;
      model::WeightAudit result;
      auto built = build_model(*source, &spec, &table, &result);
      *dropped = result.dropped;
      return built ? std::string() : built.error().message;
    };
    std::vector<std::string> dropped;
    if (*c.in) {
      EXPECT_EQ(audit(c.in, &dropped), "") << c.fixture;
      EXPECT_EQ(dropped, std::vector<std::string>{c.in});
    }
    EXPECT_NE(audit(c.out, &dropped).find(c.out), std::string::npos) << c.fixture;
  }
}

}  // namespace
}  // namespace millrace::test
