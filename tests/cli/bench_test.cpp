// millrace bench and millrace replay, and what is read from another engine's output.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/peer.h"
#include "process.h"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kTiny = source_path("models/tiny-moe-4bit");

std::vector<std::string> bench(std::vector<std::string> more) {
  std::vector<std::string> all = {"bench", kTiny, "--no-probe", "--threads", "2"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Bench, MeasuresEveryTestInEveryRepetition) {
  const Outcome outcome = millrace(bench({"--prompt", "8,16", "--gen", "4", "--depth", "0,100",
                                          "--rows", "1,3", "--repetitions", "2", "--json"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = outcome.json();
  std::vector<std::string> names;
  for (const json& test : report["tests"]) {
    names.push_back(test["test"]);
    EXPECT_EQ(test["values"].size(), 2u);
    EXPECT_GT(test["median"], 0);
    if (test["test"] == "rows 1") {
      EXPECT_EQ(test["cost"], 1.0);
    }
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"pp8", "pp16", "tg4", "tg4 @ 100", "rows 1", "rows 3"}));
}

TEST(Bench, CountsWhatIsReadUnderABudget) {
  const Outcome outcome = millrace(
      bench({"--prompt", "none", "--gen", "8", "--repetitions", "1", "--budget", "6M", "--json"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json test = outcome.json()["tests"][0];
  EXPECT_GT(test["bytes_read"], 0);
  EXPECT_GT(test["expert_misses"], 0);
}

TEST(Bench, HoldsAnotherEngineAgainstIt) {
  const Outcome outcome =
      millrace(bench({"--prompt", "8", "--gen", "4", "--repetitions", "2", "--compare",
                      "echo '| x | pp{prompt} | 10.5 |'; echo tg{gen} = 0.001"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("10.50 t/s"));
  EXPECT_THAT(outcome.out, HasSubstr("ratio"));
  const Outcome silent =
      millrace(bench({"--prompt", "8", "--repetitions", "1", "--compare", "true"}));
  EXPECT_EQ(silent.exit_code, 1);
  EXPECT_THAT(silent.err, HasSubstr("printed no speed"));
  const Outcome broken =
      millrace(bench({"--prompt", "8", "--repetitions", "1", "--compare", "echo pp8 1; exit 3"}));
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.err, HasSubstr("exit code 3"));
}

TEST(Bench, ReportIsBetweenItsLines) {
  const std::string out =
      millrace(bench({"--prompt", "8", "--gen", "none", "--repetitions", "1", "--markdown"})).out;
  EXPECT_EQ(out.rfind("<!-- BEGIN millrace bench -->", 0), 0u);
  EXPECT_THAT(out, HasSubstr("| pp8 |"));
  EXPECT_THAT(out, HasSubstr("<!-- END millrace bench -->"));
}

TEST(Bench, PromptsTogetherShareReads) {
  const Outcome outcome = millrace(bench({"--prompt", "none", "--gen", "none", "--prompts", "1,4",
                                          "--repetitions", "1", "--budget", "6M", "--json"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json prompts = outcome.json()["prompts"];
  ASSERT_EQ(prompts.size(), 2u);
  for (const json& test : prompts) {
    const uint64_t tokens = test["prompts"].get<uint64_t>() * 32;
    EXPECT_EQ(test["together"]["tokens"], tokens);
    EXPECT_EQ(test["one_after_another"]["tokens"], tokens);
    EXPECT_GT(test["ratio"], 0);
  }
  EXPECT_LT(prompts[1]["together"]["bytes_read"], prompts[1]["one_after_another"]["bytes_read"]);
}

TEST(Bench, StreamingReportTellsWhatWasReadColdAndWarm) {
  const std::vector<std::string> flags = {"--streaming", "--prompt",  "20", "--gen",
                                          "8",           "--prompts", "2",  "--repetitions",
                                          "2",           "--budget",  "6M"};
  std::vector<std::string> more = flags;
  more.emplace_back("--json");
  const Outcome outcome = millrace(bench(more));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = outcome.json();
  ASSERT_EQ(report["phases"].size(), 4u);
  const json& cold = report["phases"][1];
  const json& warm = report["phases"][3];
  EXPECT_EQ(cold["tokens"], 8);
  EXPECT_EQ(warm["tokens"], 16);
  EXPECT_EQ(warm["values"].size(), 2u);
  for (const json& phase : report["phases"]) {
    EXPECT_GT(phase["bytes_read"], 0) << phase;
    EXPECT_GT(phase["busy_s"], 0) << phase;
    EXPECT_GE(phase["seconds"], phase["stall_s"]) << phase;
  }
  EXPECT_GT(report["memory"]["peak_rss"], 0);
  EXPECT_LE(report["memory"]["peak_rss"], report["memory"]["ceiling"]);
  const std::string text = millrace(bench(flags)).out;
  EXPECT_EQ(text.rfind("<!-- BEGIN millrace-streaming -->", 0), 0u) << text;
  EXPECT_THAT(text, HasSubstr("| disk at rest while waited for |"));
  EXPECT_THAT(text, HasSubstr("<!-- END millrace-streaming -->"));
  const Outcome wrong = millrace(bench({"--streaming", "--rows", "2"}));
  EXPECT_EQ(wrong.exit_code, 2);
}

TEST(Bench, WhatDoesNotFitIsRefused) {
  const Outcome wide = millrace(bench({"--rows", "64", "--prefill-chunk", "16"}));
  EXPECT_EQ(wide.exit_code, 1);
  EXPECT_THAT(wide.err, HasSubstr("test 'rows 64'"));
  EXPECT_THAT(wide.err, HasSubstr("--prefill-chunk"));
  const Outcome longer = millrace(bench({"--gen", "40", "--context", "32"}));
  EXPECT_EQ(longer.exit_code, 1);
  EXPECT_THAT(longer.err, HasSubstr("do not fit a context of 32"));
  const Outcome outcome = millrace(bench({"--depth", "1000000", "--repetitions", "1"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--context"));
}

TEST(PeerOutput, IsReadInItsForms) {
  using cli::parse_speeds;
  using cli::Speeds;
  EXPECT_EQ(parse_speeds("[\n {\"n_prompt\": 256, \"n_gen\": 0, \"avg_ts\": 150.5},\n"
                         " {\"n_prompt\": 0, \"n_gen\": 48, \"avg_ts\": 26.7}\n]\n"),
            (Speeds{{"pp256", 150.5}, {"tg48", 26.7}}));
  EXPECT_EQ(parse_speeds("{\"n_prompt\":0,\"n_gen\":48,\"avg_ts\":26.7}\n"),
            (Speeds{{"tg48", 26.7}}));
  EXPECT_EQ(
      parse_speeds(
          "| model | pp256 |   167.10 \xc2\xb1 1.2 |\n| model | tg48 | 26.5 \xc2\xb1 0.1 |\n"),
      (Speeds{{"pp256", 167.1}, {"tg48", 26.5}}));
  EXPECT_EQ(parse_speeds("pp16: 3\ntg4=2.5"), (Speeds{{"pp16", 3}, {"tg4", 2.5}}));
  // Not speeds: both at once, words, zero, damage.
  EXPECT_EQ(parse_speeds("{\"n_prompt\":8,\"n_gen\":8,\"avg_ts\":1}\nppx 3\npp8 fast\npp8 0\n[{]"),
            Speeds{});
}

TEST(Replay, ComparesPoliciesOnATraceOfARun) {
  const TempFolder folder;
  const std::string trace = folder / "trace.txt";
  const Outcome run = millrace({"run", kTiny, "--prompt-ids", "1,2,3", "-n", "20", "--ignore-eos",
                                "--prefill-chunk", "1", "--trace", trace, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Outcome outcome = millrace({"replay", trace, "--resident", "20,100", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = outcome.json();
  EXPECT_EQ(report["experts"], 32);
  EXPECT_EQ(report["steps"], 22);  // the last token is not run through the model
  EXPECT_EQ(report["rows"].size(), 10u);
  for (const json& row : report["rows"]) EXPECT_EQ(row["uses"], 22 * 8 * 4);
  EXPECT_THAT(millrace({"replay", trace, "--policy", "lru"}).out, HasSubstr("of belady"));
  const json skipped = millrace({"replay", trace, "--skip", "20", "--json"}).json();
  for (const json& row : skipped["rows"]) EXPECT_EQ(row["uses"], 2 * 8 * 4);
  const json slots =
      millrace({"replay", trace, "--slots", "40,256", "--policy", "lru", "--json"}).json();
  ASSERT_EQ(slots["rows"].size(), 4u);
  EXPECT_EQ(slots["rows"][0]["slots"], 40);
  EXPECT_EQ(slots["rows"][0]["share"], 40.0 / 256);
  EXPECT_EQ(slots["rows"][2]["slots"], 256);
  const json both =
      millrace({"replay", trace, "--slots", "40", "--resident", "20", "--policy", "all", "--json"})
          .json();
  EXPECT_EQ(both["rows"].size(), 10u);
  EXPECT_THAT(millrace({"replay", trace, "--slots", "257"}).err, HasSubstr("the 256 experts"));
  EXPECT_THAT(millrace({"replay", trace, "--slots", "3"}).err, HasSubstr("4 experts of one row"));
  EXPECT_EQ(millrace({"replay", trace, "--slots", "0"}).exit_code, 2);
  const Outcome all_skipped = millrace({"replay", trace, "--skip", "22"});
  EXPECT_EQ(all_skipped.exit_code, 1);
  EXPECT_THAT(all_skipped.err, HasSubstr("22 cannot be skipped"));

  // Policies change what is read and nothing else.
  for (const char* policy : {"lru", "lfu", "s3-fifo", "next-use"}) {
    const Outcome other =
        millrace({"run", kTiny, "--prompt-ids", "1,2,3", "-n", "20", "--ignore-eos", "--json",
                  "--budget", "6M", "--policy", policy});
    ASSERT_EQ(other.exit_code, 0) << other.err;
    EXPECT_EQ(other.json()["token_ids"], run.json()["token_ids"]) << policy;
  }
}

TEST(Replay, BadTracesAreErrors) {
  const TempFolder folder;
  const Outcome none = millrace({"replay", folder / "none"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("No such file"));
  std::ofstream(folder / "bad") << "hello\n";
  const Outcome bad = millrace({"replay", folder / "bad"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("line 1"));
  const Outcome dense = millrace({"run", source_path("tests/data/golden/qwen3"), "--prompt-ids",
                                  "1,2", "--trace", folder / "trace.txt"});
  EXPECT_EQ(dense.exit_code, 1);
  EXPECT_THAT(dense.err, HasSubstr("no experts"));
  const Outcome nowhere =
      millrace({"run", kTiny, "--prompt-ids", "1,2", "--trace", folder / "no/such/trace.txt"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("cannot be written: No such file"));
  const Outcome full =
      millrace({"run", kTiny, "--prompt-ids", "1,2", "-n", "2", "--trace", "/dev/full"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("could not be written whole"));
}

}  // namespace
}  // namespace millrace::test
