// millrace run and tokenize: outputs, prompts, the JSON that programs read, and that a budget
// changes nothing but speed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "process.h"

namespace millrace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = source_path("models/tiny-moe-4bit");
const std::string kPrompt = "def fibonacci(n):";

std::vector<std::string> run_arguments(std::vector<std::string> more) {
  std::vector<std::string> all = {"run", kModel, "-n", "12"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

json run_json(std::vector<std::string> more, const std::string& input = "") {
  more.push_back("--json");
  const Outcome outcome = millrace(run_arguments(std::move(more)), {.input = input});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.exit_code == 0 ? outcome.json() : json::object();
}

TEST(Run, TextGoesToStandardOutputAndTheRestDoesNot) {
  const Outcome outcome = millrace(run_arguments({"-p", kPrompt, "--metrics", "--explain"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json expected = run_json({"-p", kPrompt});
  EXPECT_EQ(outcome.out, expected["text"].get<std::string>() +
                             (expected["text"].get<std::string>().back() == '\n' ? "" : "\n"));
  EXPECT_THAT(outcome.err, HasSubstr("tok/s"));
  EXPECT_THAT(outcome.err, HasSubstr("what was chosen"));
}

TEST(Run, KernelsOfASetGiveTheSameTokensAndAreExplained) {
  const json expected = run_json({"-p", kPrompt});
  EXPECT_EQ(run_json({"-p", kPrompt, "--kernels", "scalar"})["token_ids"], expected["token_ids"]);
  const Outcome outcome =
      millrace(run_arguments({"-p", kPrompt, "--kernels", "scalar", "--explain"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("i8_scalar"));
  EXPECT_THAT(outcome.err, HasSubstr("kernels not taken"));
  EXPECT_THAT(outcome.err, HasSubstr(": not to be used"));
}

// Flags of memory and reading change what is printed of the choices, never the tokens.
TEST(Run, FlagsOfReadingAndMemoryDoWhatTheySay) {
  const json expected = run_json({"-p", kPrompt})["token_ids"];
  const auto choices = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> more = {"-p", kPrompt, "--budget", "6M"};
    more.insert(more.end(), flags.begin(), flags.end());
    const json run = run_json(more);
    EXPECT_EQ(run["token_ids"], expected) << testing::PrintToString(flags);
    return run["choices"];
  };
  EXPECT_THAT(choices({"--io-backend", "pread", "--io-threads", "3"})["reads"],
              HasSubstr("pread pool, 3 reads in flight"));
  EXPECT_THAT(choices({"--prefetch", "router"})["prefetch"], HasSubstr("router"));
  EXPECT_THAT(choices({"--prefetch", "auto"})["prefetch"], HasSubstr("auto"));
  EXPECT_THAT(choices({"--huge-pages", "off"})["huge pages"], HasSubstr("turned off"));
  EXPECT_THAT(choices({"--pressure", "off"})["pressure"], HasSubstr("turned off"));
  EXPECT_EQ(choices({"--kv", "q8"})["kv"], "q8");
}

TEST(Run, VerifyReadsAndMirrorsOfAPackedModel) {
  const TempFolder dir;
  const std::string packed = dir / "packed", copy = dir / "copy";
  ASSERT_EQ(millrace({"pack", kModel, packed}).exit_code, 0);
  std::filesystem::copy(packed, copy);
  const json expected = run_json({"-p", kPrompt})["token_ids"];
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"run",   packed,     "-n", "12",    "-p",
                                    kPrompt, "--budget", "6M", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return millrace(all);
  };
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--verify-reads"}, {"--mirror", copy}, {"--mirror", copy, "--verify-reads"}}) {
    const Outcome outcome = run(flags);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["token_ids"], expected);
  }
  const std::string trace = dir / "reads.txt";
  ASSERT_EQ(run({"--io-trace", trace}).exit_code, 0);
  std::ifstream lines(trace);
  std::string head;
  EXPECT_TRUE(std::getline(lines, head) && head.find("millrace_io_trace") != std::string::npos)
      << head;
  const Outcome refused = run({"--mirror", dir / "nowhere"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("nowhere"));
  EXPECT_THAT(refused.json()["error"].get<std::string>(), HasSubstr("no such folder"));
  EXPECT_THAT(run({"--mirror", copy}).err, HasSubstr("same disk"));
  // A plan refuses what a run would.
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--mirror", dir / "nowhere"}, {"--verify-reads"}}) {
    std::vector<std::string> all = {"plan", kModel, "--no-probe"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Outcome plan = millrace(all);
    EXPECT_EQ(plan.exit_code, 1) << flags[0];
    EXPECT_EQ(plan.out, "") << flags[0];
  }
}

TEST(Run, TheOneFileOfAModelMayBeAMirror) {
  const TempFolder dir;
  const std::string model = source_path("tests/data/gguf/qwen3_moe.gguf");
  const std::string copy = dir / "qwen3_moe.gguf", other = dir / "other.gguf";
  std::filesystem::copy(model, copy);
  std::filesystem::copy(model, other);
  const auto plan = [&](const std::string& mirror) {
    return millrace({"plan", model, "--no-probe", "--mirror", mirror});
  };
  EXPECT_EQ(plan(copy).exit_code, 0) << plan(copy).err;
  EXPECT_EQ(plan(other).exit_code, 1);
  EXPECT_THAT(plan(other).err, HasSubstr("the name of the model's file"));
}

TEST(Run, WhatIsCutIsSaid) {
  const auto said = [](std::vector<std::string> flags) {
    std::vector<std::string> all = {"plan", kModel, "--no-probe"};
    all.insert(all.end(), flags.begin(), flags.end());
    return millrace(all).err;
  };
  EXPECT_THAT(said({"--memory", "200M", "--budget", "300M"}), HasSubstr("is above the ceiling"));
  EXPECT_THAT(said({"--context", "64", "--prefill-chunk", "100"}),
              HasSubstr("above the context of 64 positions"));
  EXPECT_EQ(said({"--memory", "200M", "--budget", "20M"}), "");
  // The least that works is printed as it can be given.
  const Outcome small = millrace(run_arguments({"-p", kPrompt, "--memory", "20M"}));
  EXPECT_EQ(small.exit_code, 1);
  const size_t at = small.err.find("works is --memory ");
  ASSERT_NE(at, std::string::npos) << small.err;
  const std::string least = small.err.substr(at + 18, small.err.find(';', at) - at - 18);
  const Outcome enough = millrace(run_arguments({"-p", kPrompt, "--memory", least}));
  EXPECT_EQ(enough.exit_code, 0) << enough.err;
}

TEST(Run, UnknownKernelsAreRefused) {
  const Outcome outcome = millrace(run_arguments({"-p", kPrompt, "--kernels", "avx1024"}));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("no kernels are called 'avx1024'; this processor runs scalar"));
}

TEST(Run, QuietSaysNothing) {
  const Outcome outcome = millrace(run_arguments({"-p", kPrompt, "--quiet"}));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(Run, JsonHasEveryPromisedKey) {
  const json run = run_json({"-p", kPrompt});
  const std::map<std::string, std::vector<std::string>> kKeys = {
      {"timings", {"load_s", "prefill_s", "decode_s", "ttft_s", "prefill_tps", "decode_tps"}},
      {"memory", {"ceiling", "arena", "kv", "peak_rss"}},
      {"io",
       {"mode", "bytes_read", "reads", "expert_hits", "expert_misses", "hit_rate",
        "bytes_per_token", "stall_s"}},
  };
  for (const char* key : {"model", "prompt_ids", "token_ids", "text", "finish_reason", "choices"})
    EXPECT_TRUE(run.contains(key)) << key;
  for (const auto& [group, keys] : kKeys)
    for (const std::string& key : keys) EXPECT_TRUE(run[group].contains(key)) << group << key;
  EXPECT_EQ(run["token_ids"].size(), 12u);
  EXPECT_EQ(run["finish_reason"], "length");
  EXPECT_FALSE(run["choices"].empty());
  EXPECT_GT(run["memory"]["peak_rss"], 0);
  EXPECT_GT(run["io"]["bytes_read"], 0);
}

TEST(Run, PromptComesFromTextFileIdsOrStandardInput) {
  const json from_text = run_json({"-p", kPrompt});
  const TempFolder folder;
  std::ofstream(folder / "prompt.txt") << kPrompt;
  EXPECT_EQ(run_json({"-f", folder / "prompt.txt"})["token_ids"], from_text["token_ids"]);
  EXPECT_EQ(run_json({}, kPrompt)["token_ids"], from_text["token_ids"]);
  const std::string ids = id_list(from_text["prompt_ids"]);
  EXPECT_EQ(run_json({"--prompt-ids", ids})["token_ids"], from_text["token_ids"]);
}

TEST(Run, PromptMayBeginWithADash) {
  EXPECT_EQ(millrace(run_arguments({"-p", "-- comment"})).exit_code, 0);
}

TEST(Run, TheBudgetChangesNoToken) {
  const json plan = millrace({"plan", kModel, "--no-probe", "--json"}).json();
  const json free = run_json({"-p", kPrompt});
  const json tight = run_json({"-p", kPrompt, "--budget", plan["smallest_budget"].dump(),
                               "--threads", "1", "--prefill-chunk", "3"});
  EXPECT_EQ(tight["token_ids"], free["token_ids"]);
  EXPECT_LE(tight["memory"]["arena"], plan["smallest_budget"]);
  EXPECT_GT(tight["io"]["expert_misses"], free["io"]["expert_misses"]);
}

TEST(Run, SamplingRepeatsWithItsSeed) {
  const auto sampled = [](const char* seed) {
    return run_json({"-p", kPrompt, "--temperature", "1.2", "--seed", seed})["token_ids"];
  };
  EXPECT_EQ(sampled("7"), sampled("7"));
  EXPECT_NE(sampled("7"), sampled("8"));
}

TEST(Run, StopTextEndsTheAnswer) {
  const std::string text = run_json({"-p", kPrompt})["text"];
  ASSERT_GT(text.size(), 8u);
  const std::string stop = text.substr(text.size() / 2, 3);
  const json stopped = run_json({"-p", kPrompt, "--stop", stop});
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
}

TEST(Run, ChatGoesThroughTheTemplate) {
  const json chat = run_json({"--chat", "-p", "hello", "--system", "be brief"});
  const json piped = run_json({"--chat", "--system", "be brief"}, "hello");
  EXPECT_EQ(piped["prompt_ids"], chat["prompt_ids"]);
  const std::string ids = id_list(chat["prompt_ids"]);
  const Outcome text = millrace({"tokenize", kModel, "--ids", ids});
  EXPECT_THAT(text.out, HasSubstr("be brief"));
  EXPECT_THAT(text.out, HasSubstr("hello"));
  EXPECT_THAT(text.out, HasSubstr("assistant"));
}

TEST(Run, ErrorsAreOneExitAndNameTheThing) {
  const Outcome missing = millrace({"run", "/no/such/model", "-p", "x"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/model"));
  EXPECT_EQ(missing.out, "");

  const TempFolder folder;
  EXPECT_EQ(millrace({"run", folder.path().string(), "-p", "x"}).exit_code, 1);
  std::ofstream(folder / "bad.gguf") << "GGUF and then nothing of use";
  EXPECT_EQ(millrace({"run", folder / "bad.gguf", "-p", "x"}).exit_code, 1);

  const Outcome file = millrace(run_arguments({"-f", folder / "absent.txt"}));
  EXPECT_EQ(file.exit_code, 1);
  EXPECT_THAT(file.err, HasSubstr("absent.txt"));
  EXPECT_EQ(millrace(run_arguments({"-f", folder.path().string()})).exit_code, 1);

  const Outcome small = millrace(run_arguments({"-p", "x", "--budget", "4K"}));
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.err, HasSubstr("budget"));

  const Outcome range = millrace(run_arguments({"--prompt-ids", "123456789"}));
  EXPECT_EQ(range.exit_code, 1);
  EXPECT_THAT(range.err, HasSubstr("123456789"));
}

TEST(Run, InterruptStopsAtOnce) {
  const Outcome outcome = millrace({"run", kModel, "-p", kPrompt, "-n", "1000000", "--ignore-eos"},
                                   {.after_output = true});
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_NE(outcome.out, "");
  EXPECT_LT(outcome.seconds, 30);
}

TEST(Tokenize, RoundTrip) {
  const std::string text = "def quicksort(items):\n    return sorted(items)  # caf\u00e9";
  const Outcome there = millrace({"tokenize", kModel, "--text", text, "--plain", "--json"});
  ASSERT_EQ(there.exit_code, 0) << there.err;
  const json tokens = there.json();
  EXPECT_EQ(tokens["count"], tokens["ids"].size());
  EXPECT_EQ(tokens["pieces"].size(), tokens["ids"].size());
  const std::string ids = id_list(tokens["ids"]);
  EXPECT_EQ(millrace({"tokenize", kModel, "--ids", ids}).out, text + "\n");
  EXPECT_EQ(millrace({"tokenize", kModel, "--plain", "--json"}, {.input = text}).json(), tokens);
}

TEST(Tokenize, PlainTextHoldsNoSpecialTokens) {
  const auto count = [](const char* flag) {
    std::vector<std::string> arguments = {"tokenize", kModel, "--text", "<|im_end|>", "--json"};
    if (*flag != '\0') arguments.emplace_back(flag);
    return millrace(arguments).json()["count"].get<int>();
  };
  EXPECT_EQ(count(""), 1);
  EXPECT_GT(count("--plain"), 1);
}

}  // namespace
}  // namespace millrace::test
