// The table of families says what the reference models are made of, and every one of those is in
// it.
#include <map>
#include <set>

#include "api/model_impl.h"
#include "model/axes.h"
#include "tests/support/fixture_model.h"
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
      const std::string expected = golden(fixture) + "/expected.safetensors";
      const auto got = logits_of(temp / "model", read_tensor<int32_t>(expected, "input_ids"),
                                 ActivationPrecision::kF32, TieOrder::kReference);
      EXPECT_LE(off(read_tensor<float>(expected, "logits"), got), 2e-3)
          << type << " with " << fixture;
      ++names;
    }
  }
  EXPECT_GE(names, 7);
}

}  // namespace
}  // namespace millrace::test
