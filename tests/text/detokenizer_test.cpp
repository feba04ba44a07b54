// A stream of tokens gives the text of the whole sequence, on every prefix, in whole characters.

#include "text/detokenizer.h"

#include <random>

#include "tests/text/fixtures.h"
#include "text/utf8.h"

namespace millrace {
namespace {

using testing::corpus;
using testing::fixture;
using testing::Ids;
using testing::json;

std::vector<std::pair<std::string, Tokenizer>> all_tokenizers() {
  std::vector<std::pair<std::string, Tokenizer>> out;
  const auto add = [&](std::string name, const json& source) {
    auto tokenizer = Tokenizer::from_json(source.dump());
    EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
    out.emplace_back(std::move(name), *tokenizer);
  };
  add("bytes", fixture("byte_bpe.json")["tokenizer"]);
  const json pieces = fixture("sentencepiece.json");
  for (const auto& [name, parts] : pieces["variants"].items()) {
    json source = pieces["tokenizer"];
    for (const char* key : {"normalizer", "pre_tokenizer", "decoder"}) source[key] = parts[key];
    add(name, source);
  }
  json unigram = fixture("unigram.json")["tokenizer"];
  add("unigram", unigram);
  unigram["decoder"] = nullptr;  // the library joins with blanks; no table can say that
  add("by_library", unigram);
  return out;
}

void expect_stream_equals_whole(const Tokenizer& tokenizer, const Ids& ids, DecodeOptions options) {
  Detokenizer stream(tokenizer, options);
  std::string so_far;
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const std::string text = stream.push(ids[n]);
    EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
    so_far += text;
    const std::span<const std::uint32_t> prefix(ids.data(), n + 1);
    const std::string whole = tokenizer.decode(prefix, options);
    ASSERT_TRUE(whole.starts_with(so_far)) << n;
    Detokenizer again(tokenizer, options);
    std::string streamed;
    for (const std::uint32_t id : prefix) streamed += again.push(id);
    ASSERT_EQ(streamed + again.flush(), whole) << n;
  }
}

TEST(Detokenizer, EveryPrefixOfTheCorpus) {
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    SCOPED_TRACE(name);
    for (const std::string& text : corpus()) {
      SCOPED_TRACE(json(text).dump());
      auto ids = tokenizer.encode(text, {.add_special = false});
      ASSERT_TRUE(ids.has_value());
      if (ids->size() > 40) ids->resize(40);
      for (const bool skip : {true, false}) {
        for (const bool continuation : {true, false}) {
          expect_stream_equals_whole(tokenizer, *ids, {skip, continuation});
        }
      }
    }
  }
}

TEST(Detokenizer, EveryPrefixOfRandomTokens) {
  std::mt19937 random(5);
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    SCOPED_TRACE(name);
    for (int round = 0; round < 40; ++round) {
      Ids ids(24);
      // Half of the rounds draw from the low ids, where the single bytes are.
      const std::uint32_t limit = round % 2 == 0 ? 260 : tokenizer.vocab_size() + 5;
      for (std::uint32_t& id : ids) id = random() % limit;
      expect_stream_equals_whole(tokenizer, ids, {.skip_special = round % 3 == 0});
    }
  }
}

TEST(Detokenizer, EqualsTheLibraryWhereItIsSound) {
  std::mt19937 random(11);
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    // Metaspace decoders lose leading blanks in the library; byte runs are compared below.
    if (name == "metaspace" || name == "unigram") continue;
    SCOPED_TRACE(name);
    int compared = 0;
    for (int round = 0; round < 400; ++round) {
      Ids ids(12);
      for (std::uint32_t& id : ids) id = random() % tokenizer.vocab_size();
      const auto library = tokenizer.decode_by_library(ids, true);
      ASSERT_TRUE(library.has_value());
      // The library turns a whole run of byte tokens into replacement characters if any part of
      // it is not UTF-8; a stream cannot take back what it has shown.
      if (name != "bytes" && library->find("\xEF\xBF\xBD") != std::string::npos) continue;
      ASSERT_EQ(tokenizer.decode(ids), *library);
      ++compared;
    }
    EXPECT_GT(compared, 20);
  }
}

TEST(Detokenizer, HoldsHalfCharactersBack) {
  const auto tokenizer = Tokenizer::from_json(fixture("byte_bpe.json")["tokenizer"].dump());
  ASSERT_TRUE(tokenizer.has_value());
  const auto byte = [&](const char* spelled) { return *tokenizer->find(spelled); };
  // U+1F600 is F0 9F 98 80.
  Detokenizer stream(*tokenizer);
  EXPECT_EQ(stream.push(byte("ð")), "");
  EXPECT_EQ(stream.push(byte("Ł")), "");
  EXPECT_EQ(stream.push(byte("ĺ")), "");
  EXPECT_EQ(stream.push(byte("Ģ")), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.flush(), "");

  Detokenizer cut(*tokenizer);
  EXPECT_EQ(cut.push(byte("ð")), "");
  EXPECT_EQ(cut.push(byte("a")),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(cut.push(byte("Ł")), "\xEF\xBF\xBD");
  EXPECT_EQ(cut.push(byte("ð")), "");
  EXPECT_EQ(cut.flush(), "\xEF\xBF\xBD");
}

TEST(Utf8, ReplacesEachMaximalPartOnce) {
  const auto all = [](std::string_view bytes) {
    std::string whole;
    Utf8Stream at_once;
    at_once.push(bytes, whole);
    at_once.flush(whole);
    std::string pieces;
    Utf8Stream one_by_one;
    for (const char byte : bytes) one_by_one.push(std::string_view(&byte, 1), pieces);
    one_by_one.flush(pieces);
    EXPECT_EQ(whole, pieces);
    return whole;
  };
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(all("abc"), "abc");
  EXPECT_EQ(all("\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80"), "\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80");
  EXPECT_EQ(all("\xE4\xBD"), r);
  EXPECT_EQ(all("\xE4\xBDx"), r + "x");
  EXPECT_EQ(all("\xC0\x80"), r + r);          // overlong
  EXPECT_EQ(all("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(all("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(all("\x80\xBF"), r + r);
  EXPECT_EQ(all("\xF0\x9F\x98\xF0\x9F\x98\x80"), r + "\xF0\x9F\x98\x80");
  EXPECT_EQ(find_invalid_utf8("ab\xC3\xA9\xFF"), 4u);
}

}  // namespace
}  // namespace millrace
