// Loading the fixtures of tests/data/text, and turning a tokenizer.json into the GGUF keys that a
// converter would write for it.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace millrace::testing {

using json = nlohmann::ordered_json;
using Ids = std::vector<std::uint32_t>;

inline std::string read_text(const std::string& path) {
  std::ifstream in(std::string(MILLRACE_SOURCE_DIR "/") + path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline json fixture(const std::string& name) {
  return json::parse(read_text("tests/data/text/" + name));
}

inline const std::vector<std::string>& corpus() {
  static const auto texts = fixture("corpus.json").get<std::vector<std::string>>();
  return texts;
}

inline GgufVocab to_gguf(const json& tokenizer, std::string model, std::string pre) {
  GgufVocab vocab;
  vocab.model = std::move(model);
  vocab.pre = std::move(pre);
  const auto put = [&](std::uint32_t id, const std::string& text, std::int32_t type) {
    if (id >= vocab.tokens.size()) {
      vocab.tokens.resize(id + 1);
      vocab.token_types.resize(id + 1, 5);
    }
    vocab.tokens[id] = text;
    vocab.token_types[id] = type;
  };
  const json& entries = tokenizer["model"]["vocab"];
  if (entries.is_object()) {
    for (const auto& [text, id] : entries.items()) {
      const bool byte = vocab.model == "llama" && text.size() == 6 && text.starts_with("<0x");
      put(id.get<std::uint32_t>(), text, byte ? 6 : 1);
    }
    for (const json& merge : tokenizer["model"]["merges"]) {
      if (vocab.model == "llama") break;  // SentencePiece files have scores instead
      vocab.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    }
  } else {
    for (std::uint32_t id = 0; id < entries.size(); ++id) {
      put(id, entries[id][0].get<std::string>(), 1);
      vocab.scores.push_back(entries[id][1].get<float>());
    }
  }
  for (const json& token : tokenizer["added_tokens"]) {
    const auto text = token["content"].get<std::string>();
    const bool special = token["special"].get<bool>();
    put(token["id"].get<std::uint32_t>(), text, !special ? 4 : text == "<unk>" ? 2 : 3);
  }
  return vocab;
}

// Checks ids, literal ids, decoding and the frame against what the library gave in Python.
inline void expect_equal(const Tokenizer& tokenizer, const json& expected) {
  const auto prefix = expected["prefix"].get<Ids>();
  const auto suffix = expected["suffix"].get<Ids>();
  for (std::size_t i = 0; i < corpus().size(); ++i) {
    const std::string& text = corpus()[i];
    const json& want = expected["cases"][i];
    SCOPED_TRACE(json(text).dump());
    const auto ids = want["ids"].get<Ids>();
    const auto got = tokenizer.encode(text, {.add_special = false});
    ASSERT_TRUE(got.has_value()) << got.error().message;
    EXPECT_EQ(*got, ids);

    const auto literal =
        tokenizer.encode(text, {.add_special = false, .control = ControlText::kLiteral});
    ASSERT_TRUE(literal.has_value()) << literal.error().message;
    EXPECT_EQ(*literal, want.value("literal", json(ids)).get<Ids>());

    Ids framed = prefix;
    framed.insert(framed.end(), ids.begin(), ids.end());
    framed.insert(framed.end(), suffix.begin(), suffix.end());
    const auto got_framed = tokenizer.encode(text);
    ASSERT_TRUE(got_framed.has_value()) << got_framed.error().message;
    EXPECT_EQ(*got_framed, framed);
  }
}

}  // namespace millrace::testing
