// The table of families says what the reference models are made of, and every one of those is in
// it.
#include <cmath>
#include <map>
#include <set>

#include "api/model_impl.h"
#include "model/axes.h"
#include "tests/support/fixtures.h"

namespace millrace::test {
namespace {

using Words = std::set<std::string>;

Words split(const std::string& text, const std::string& by) {
  Words words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    words.insert(text.substr(at, end - at));
    at = end + by.size();
  }
  return words;
}

Words set_of(const std::vector<std::string>& list) { return {list.begin(), list.end()}; }

TEST(Families, TheTableSaysWhatTheFixturesAre) {
  Words listed;
  for (const FamilyInfo& row : families()) {
    model::Axes axes;
    const Words names = split(row.fixtures, " ");
    EXPECT_FALSE(names.empty()) << row.name << " has no fixture";
    for (const auto& name : names) {
      EXPECT_TRUE(listed.insert(name).second) << name << " is listed twice";
      auto model = Model::open(golden(name));
      ASSERT_TRUE(model) << model.error().message;
      EXPECT_EQ((*model)->info().architecture, row.name) << name;
      add_axes((*model)->impl().spec, &axes);
    }
    EXPECT_EQ(split(row.mixer, ", "), set_of(axes.mixer)) << row.name;
    EXPECT_EQ(split(row.ffn, ", "), set_of(axes.ffn)) << row.name;
    EXPECT_EQ(split(row.streaming, ", "), set_of(axes.streaming)) << row.name;
    EXPECT_EQ(split(row.kv, ", "), set_of(axes.kv)) << row.name;
    Words ports = split(row.drafter_ports, ", ");
    ports.erase("mtp");  // a matter of files, not of specs
    EXPECT_EQ(ports, set_of(axes.ports)) << row.name;
  }
  EXPECT_EQ(listed, set_of(fixtures()));
}

TEST(Families, SomeRowsByHand) {
  std::map<std::string, FamilyInfo> rows;
  for (const FamilyInfo& row : families()) rows[row.name] = row;
  EXPECT_EQ(rows["llama"].mixer, "attention");
  EXPECT_EQ(rows["llama"].streaming, "layer");
  EXPECT_EQ(rows["llama"].drafter_ports, "embedding, head, taps, kv");
  EXPECT_EQ(rows["gpt_oss"].mixer, "sliding attention, attention");
  EXPECT_EQ(rows["gpt_oss"].streaming, "expert");
  EXPECT_EQ(rows["glm_moe_dsa"].mixer, "sparse latent attention");
  EXPECT_EQ(rows["glm_moe_dsa"].kv, "latent, index keys");
  EXPECT_EQ(rows["glm_moe_dsa"].drafter_ports, "embedding, head, taps, mtp");
  EXPECT_EQ(rows["falcon_h1"].mixer, "attention + mamba2");
  EXPECT_EQ(rows["falcon_h1"].kv, "full, state");
}

// Largest difference of the logits of the model at `path` from the fixture's, over their range.
double off(const std::string& path, const std::string& fixture) {
  const std::string expected = golden(fixture) + "/expected.safetensors";
  const auto ids = read_tensor<int32_t>(expected, "input_ids");
  const auto logits = read_tensor<float>(expected, "logits");
  const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
  EngineOptions options;
  options.model = path;
  options.activations = ActivationPrecision::kF32;
  options.threads = 1;
  auto engine = Engine::open(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return 1;
  }
  const size_t vocab = logits.size() / ids.size();
  double worst = 0;
  const auto status = (*engine)->score(
      std::vector<Token>(ids.begin(), ids.end()),
      [&](uint32_t position, const float* row) {
        for (size_t v = 0; v < vocab; ++v)
          worst = std::max(worst, std::abs(double{row[v]} - logits[position * vocab + v]));
      },
      TieOrder::kReference);
  EXPECT_TRUE(status);
  return worst / (double{*high} - *low);
}

// "minicpm5" is "llama", "youtu_llm" is "youtu", and so on: the same weights under each name.
TEST(Families, EveryNameRunsTheFixture) {
  int names = 0;
  for (const auto& family : model::all_families()) {
    const std::string fixture = *split(family.fixtures, " ").begin();
    nlohmann::json config = config_of(fixture);
    for (const char* type : family.model_types) {
      if (config["model_type"] == type) continue;
      TempFolder temp;
      fs::create_directories(temp / "model");
      fs::copy(golden(fixture) + "/model.safetensors", temp / "model/model.safetensors");
      config["model_type"] = type;
      std::ofstream(temp / "model/config.json") << config;
      EXPECT_LE(off(temp / "model", fixture), 2e-3) << type << " with " << fixture;
      ++names;
    }
  }
  EXPECT_GE(names, 7);
}

}  // namespace
}  // namespace millrace::test
