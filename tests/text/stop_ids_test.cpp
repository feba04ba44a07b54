#include "text/stop_ids.h"

#include "tests/text/fixtures.h"

namespace millrace {
namespace {

using testing::Ids;

Tokenizer bundled() {
  auto tokenizer = Tokenizer::from_folder(MILLRACE_SOURCE_DIR "/models/tiny-moe-4bit");
  EXPECT_TRUE(tokenizer.has_value());
  return *tokenizer;
}

TEST(StopIds, AreTheUnionOfAllSources) {
  const Tokenizer tokenizer = bundled();  // its own: 0
  const auto ids = [&](const char* generation, const char* config) {
    return stop_ids(std::string_view(generation), std::string_view(config), tokenizer);
  };
  EXPECT_EQ(ids("", "").value(), (Ids{0}));
  EXPECT_EQ(ids(R"({"eos_token_id":[7,5]})", R"({"eos_token_id":9})").value(), (Ids{0, 5, 7, 9}));
  EXPECT_EQ(ids(R"({"eos_token_id":null})", R"({"text_config":{"eos_token_id":[3]}})").value(),
            (Ids{0, 3}));
  EXPECT_EQ(ids(R"({"eos_token_id":-1})", "{}").value(), (Ids{0}));
  for (const char* bad : {R"({"eos_token_id":"x"})", R"({"eos_token_id":1.5})", "[]", "{"}) {
    const auto result = ids(bad, "");
    ASSERT_FALSE(result.has_value()) << bad;
    EXPECT_NE(result.error().message.find("generation_config.json"), std::string::npos);
  }
}

TEST(StopIds, OfTheBundledModel) {
  const auto ids =
      stop_ids(std::filesystem::path(MILLRACE_SOURCE_DIR "/models/tiny-moe-4bit"), bundled());
  ASSERT_TRUE(ids.has_value()) << ids.error().message;
  EXPECT_NE(std::find(ids->begin(), ids->end(), 0u), ids->end());
}

}  // namespace
}  // namespace millrace
