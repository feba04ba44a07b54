// Keys of a config that change the math and that a family does not know are refused by name, in
// every family; values that make no sense are errors and never more than that.
#include <functional>

#include "api/model_impl.h"
#include "tests/support/fixtures.h"

namespace millrace::test {
namespace {

using Json = nlohmann::json;

class ConfigKeys : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto source = format::open_source(golden(GetParam()));
    ASSERT_TRUE(source) << source.error().message;
    source_ = std::move(*source);
    ASSERT_EQ(with([](Json&) {}), "");
  }
  // The error of opening the fixture with a changed config, or nothing.
  std::string with(const std::function<void(Json&)>& change) const {
    format::ModelSource source = source_;
    Json config = *source_.config;
    change(config);
    source.config = std::make_shared<const Json>(std::move(config));
    model::ModelSpec spec;
    format::PieceTable table;
    auto status = build_model(source, &spec, &table, nullptr);
    return status ? "" : status.error().message;
  }
  // The object that the family reads: all, or what is inside a wrapper.
  static Json& inner(Json& config) {
    return config.contains("text_config") ? config["text_config"] : config;
  }
  static void expect_named(const std::string& message, const std::string& key) {
    EXPECT_NE(message.find("'" + key + "'"), std::string::npos) << key << ": " << message;
  }
  format::ModelSource source_;
};

TEST_P(ConfigKeys, UnknownOnesAreRefused) {
  for (const Json& value : {Json(true), Json(2), Json("x"), Json::array({1}), Json{{"a", 1}}})
    expect_named(with([&](Json& c) { inner(c)["made_up_key"] = value; }), "made_up_key");
  // Absent in all but name.
  EXPECT_EQ(with([](Json& c) { inner(c)["made_up_key"] = nullptr; }), "");
  for (const char* rope : {"rope_parameters", "rope_scaling"}) {
    Json config = *source_.config;
    if (!inner(config).contains(rope) || !inner(config)[rope].is_object()) continue;
    expect_named(with([&](Json& c) { inner(c)[rope]["made_up_key"] = 2; }), "made_up_key");
    for (const auto& [kind, object] : inner(config)[rope].items()) {
      if (!object.is_object()) continue;
      expect_named(with([&, k = kind](Json& c) { inner(c)[rope][k]["made_up_key"] = 2; }),
                   "made_up_key");
    }
  }
}

TEST_P(ConfigKeys, OnlyTheSupportedValueOfAKeyIsTaken) {
  auto config = model::Config::from_source(source_);
  ASSERT_TRUE(config);
  auto family = model::find_family(*config);
  ASSERT_TRUE(family);
  model::ModelSpec spec;
  ASSERT_TRUE((*family)->build(*config, &spec));
  EXPECT_FALSE(config->expected().empty());
  for (const auto& [key, only] : config->expected()) {
    const Json other = only.is_boolean()  ? Json(!only.get<bool>())
                       : only.is_number() ? Json(only.get<double>() + 7)
                       : only.is_string() ? Json("another")
                                          : Json::array({3});
    expect_named(with([&, k = key](Json& c) { inner(c)[k] = other; }), key);
  }
}

// A value of another type under every key: an error, or the key says nothing about the math.
TEST_P(ConfigKeys, NonsenseIsAnErrorAndNoMore) {
  const std::vector<Json> nonsense = {Json("x"),       Json(-1),
                                      Json(1e30),      Json(0.5),
                                      Json::array(),   Json::array({"x", Json::object()}),
                                      Json{{"a", "b"}}};
  const auto each = [&](const std::function<Json&(Json&)>& at) {
    Json config = *source_.config;
    for (const auto& [key, value] : at(config).items()) {
      for (const Json& bad : nonsense) {
        std::string message;
        EXPECT_NO_THROW(message = with([&, k = key](Json& c) { at(c)[k] = bad; }))
            << key << " = " << bad.dump();
      }
      if (!value.is_object()) continue;
      for (const auto& [sub, ignored] : value.items()) {
        for (const Json& bad : nonsense) {
          EXPECT_NO_THROW(with([&, k = key, s = sub](Json& c) { at(c)[k][s] = bad; }))
              << key << "." << sub << " = " << bad.dump();
        }
      }
    }
  };
  each([](Json& c) -> Json& { return c; });
  if (source_.config->contains("text_config")) each([](Json& c) -> Json& { return inner(c); });
  for (const char* key : {"hidden_size", "num_attention_heads", "vocab_size"})
    expect_named(with([&](Json& c) { inner(c)[key] = "x"; }), key);
}

std::string error_of(const std::string& fixture, const Json& changes) {
  Json values = config_of(fixture);
  for (const auto& [key, value] : changes.items()) {
    if (value.is_object() && values.contains(key)) {
      values[key].update(value);
    } else {
      values[key] = value;
    }
  }
  model::Config config(values, "config");
  model::ModelSpec spec;
  auto family = model::find_family(config);
  auto built =
      family ? (*family)->build(config, &spec) : Status(tl::make_unexpected(family.error()));
  if (built) built = config.finish();
  return built ? "" : built.error().message;
}

// Keys that say something only when others do not, or only of one kind of rope or layer.
TEST(ConfigCases, WhatWouldChangeTheMathIsRefused) {
  EXPECT_EQ(error_of("gemma3_text", {{"_sliding_window_pattern", 4}}), "");  // layer_types decide
  EXPECT_NE(error_of("gemma3_text", {{"_sliding_window_pattern", 4}, {"layer_types", nullptr}})
                .find("'_sliding_window_pattern'"),
            std::string::npos);
  const std::pair<const char*, Json> cases[] = {
      {"phi3_longrope", {{"rope_scaling", {{"long_mscale", 1.2}}}}},
      {"llama", {{"rope_parameters", {{"rope_type", "unheard_of"}}}}},
      {"gemma3_text", {{"use_bidirectional_attention", true}}},
      {"gemma4_text", {{"use_bidirectional_attention", "all"}}},
      {"mimo", {{"use_sliding_window", true}}},
      {"minimax_m2", {{"attn_type_list", {1, 0, 1, 1}}}},
      {"glm_moe_dsa", {{"mlp_layer_types", {"dense", "other", "sparse", "sparse"}}}},
      {"deepseek_v2", {{"topk_method", "noaux_tc"}}},
      {"deepseek_v2_groups", {{"n_group", 3}}},
      {"deepseek_v2_groups", {{"topk_group", 5}}},
      {"apertus", {{"qk_norm", false}}},
      {"ernie4_5", {{"use_rmsnorm", false}}},
      {"olmo3", {{"rope_parameters", {{"third_kind", Json::object()}}}}},
      {"mistral3", {{"text_config", {{"model_type", "another"}}}}},
  };
  for (const auto& [fixture, changes] : cases) {
    std::string key = changes.begin().key();
    Json value = changes.begin().value();
    const std::string inner = value.is_object() ? value.begin().key() : "";
    const std::string message = error_of(fixture, changes);
    EXPECT_NE(message, "") << fixture << " " << changes.dump();
    // Values of a rope's type are named by what they are.
    if (inner == "rope_type")
      key = "unheard_of";
    else if (!inner.empty())
      key = inner;
    EXPECT_NE(message.find("'" + key + "'"), std::string::npos) << key << ": " << message;
  }
  EXPECT_EQ(error_of("gemma4_text", {{"use_bidirectional_attention", "vision"}}), "");
  EXPECT_EQ(error_of("glm_moe_dsa", {{"mlp_layer_types", {"dense", "dense", "sparse", "sparse"}}}),
            "");
}

INSTANTIATE_TEST_SUITE_P(Families, ConfigKeys, testing::ValuesIn(fixtures()),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace millrace::test
