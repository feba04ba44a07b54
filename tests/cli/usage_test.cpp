// The command line itself: help, wrong flags, exit codes, and that docs/cli.md tells the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "process.h"

namespace millrace::test {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kCommands = {"run",      "pack",   "plan",     "doctor",
                                            "verify",   "unpack", "tokenize", "check",
                                            "families", "bench",  "replay",   "soak"};
const char* const kModel = "models/tiny-moe-4bit";

TEST(Usage, NoArgumentsPrintsHelpOnStandardError) {
  const Outcome outcome = millrace({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  for (const std::string& command : kCommands) EXPECT_THAT(outcome.err, HasSubstr("  " + command));
}

TEST(Usage, HelpIsOnStandardOutput) {
  const Outcome outcome = millrace({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("A first session"));
  for (const std::string& command : kCommands) {
    const Outcome help = millrace({command, "--help"});
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Usage: millrace " + command));
    EXPECT_EQ(help.err, "") << command;
  }
}

TEST(Usage, HelpFitsOnATerminal) {
  for (const std::string& command : kCommands) {
    std::istringstream lines(millrace({command, "--help"}).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(Usage, VersionIsOneLine) {
  const Outcome outcome = millrace({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

struct Wrong {
  std::vector<std::string> arguments;
  std::string named;  // must be in the message
};
void PrintTo(const Wrong& wrong, std::ostream* to) {
  for (const auto& argument : wrong.arguments) *to << argument << ' ';
}

class WrongUsage : public testing::TestWithParam<Wrong> {};

TEST_P(WrongUsage, ExitsWithTwoAndNamesTheFlag) {
  const Outcome outcome = millrace(GetParam().arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().named));
  EXPECT_THAT(outcome.err, HasSubstr("--help"));
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongUsage,
    testing::Values(Wrong{{"frobnicate"}, "frobnicate"}, Wrong{{"run"}, "MODEL"},
                    Wrong{{"pack", "x"}, "OUT"},
                    Wrong{{"run", kModel, "--frobnicate"}, "--frobnicate"},
                    Wrong{{"plan", kModel, "--budget", "lots"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", ""}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "-4G"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "0"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "0.0000001K"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "4X"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "4GG"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "1.G"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "0x10"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "1e9"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "99999999999999999999"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "9999999T"}, "--budget"},
                    Wrong{{"plan", kModel, "--budget", "1G", "--budget", "2G"}, "--budget"},
                    Wrong{{"plan", kModel, "--memory", "4 GB of it"}, "--memory"},
                    Wrong{{"run", kModel, "-p", "x", "-n", "-5"}, "--max-tokens"},
                    Wrong{{"run", kModel, "-p", "x", "-n", "0"}, "--max-tokens"},
                    Wrong{{"run", kModel, "-p", "x", "-n", "5x"}, "--max-tokens"},
                    Wrong{{"run", kModel, "-p", "x", "--threads", "4.5"}, "--threads"},
                    Wrong{{"run", kModel, "-p", "x", "--threads", "99999999999999999999"},
                          "--threads"},
                    Wrong{{"run", kModel, "-p", "x", "--temperature", "nan"}, "--temperature"},
                    Wrong{{"run", kModel, "-p", "x", "--temperature", "inf"}, "--temperature"},
                    Wrong{{"bench", kModel, "--streaming", "--depth", "64"}, "--depth"},
                    Wrong{{"bench", kModel, "--prompts", "2", "--context", "20"}, "--context"},
                    Wrong{{"bench", kModel, "--rows", "a"}, "not a list of numbers"},
                    Wrong{{"soak", kModel, "--minutes", "0"}, "--minutes"},
                    Wrong{{"run", kModel, "-p", "x", "--top-p", "0"}, "--top-p"},
                    Wrong{{"run", kModel, "-p", "x", "--top-p", "1.5"}, "--top-p"},
                    Wrong{{"run", kModel, "-p", "x", "--min-p", "-0.1"}, "--min-p"},
                    Wrong{{"run", kModel, "-p", "x", "--seed", "-1"}, "--seed"},
                    Wrong{{"run", kModel, "-p", "x", "--activations", "int4"}, "--activations"},
                    Wrong{{"run", kModel, "-p", "x", "--kv", "q5"}, "--kv"},
                    Wrong{{"run", kModel, "-p", "x", "--io", "tape"}, "--io"},
                    Wrong{{"run", kModel, "--prompt-ids", "1,two"}, "--prompt-ids"},
                    Wrong{{"run", kModel, "--prompt-ids", "1 2"}, "--prompt-ids"},
                    Wrong{{"run", kModel, "--prompt-ids", "-1"}, "--prompt-ids"},
                    Wrong{{"run", kModel, "--prompt-ids", "99999999999"}, "--prompt-ids"},
                    Wrong{{"run", kModel, "--prompt-ids", ""}, "--prompt-ids"},
                    Wrong{{"run", kModel, "--prompt-ids", "1", "--chat"}, "--prompt-ids"},
                    Wrong{{"run", kModel, "-p", "x", "-f", "y"}, "--prompt"},
                    Wrong{{"run", kModel, "-p", "x", "--system", "be brief"}, "--system"},
                    Wrong{{"bench", kModel, "--rows", "0"}, "--rows"},
                    Wrong{{"bench", kModel, "--prompt", "x"}, "--prompt"},
                    Wrong{{"bench", kModel, "--json", "--markdown"}, "--markdown"},
                    Wrong{{"run", kModel, "-p", "x", "--policy", "fifo"}, "--policy"},
                    Wrong{{"replay", "trace.txt", "--policy", "lru,fifo"}, "--policy"},
                    Wrong{{"replay", "trace.txt", "--resident", "5,0"}, "--resident"},
                    Wrong{{"-q", "-v", "families"}, "--quiet"}));

TEST(Sizes, UnitsArePowersOf1024) {
  const std::pair<const char*, uint64_t> kSizes[] = {
      {"67108864", 67108864}, {"65536K", 67108864}, {"64M", 67108864},     {"64m", 67108864},
      {"64MB", 67108864},     {"64MiB", 67108864},  {"64 MiB", 67108864},  {"0.0625G", 67108864},
      {"1.5G", 1610612736},   {"700M", 734003200},  {"1T", 1099511627776}, {"67108864B", 67108864},
  };
  for (const auto& [text, bytes] : kSizes) {
    const Outcome outcome =
        millrace({"plan", source_path(kModel), "--no-probe", "--json", "--budget", text});
    ASSERT_EQ(outcome.exit_code, 0) << text << outcome.err;
    EXPECT_EQ(outcome.json()["asked"]["budget"], bytes) << text;
  }
  const Outcome outcome =
      millrace({"plan", source_path(kModel), "--no-probe", "--json", "--budget", "auto"});
  EXPECT_TRUE(outcome.json()["asked"]["budget"].is_null());
}

// The flags of a command as its --help lists them.
std::set<std::string> flags_in_help(const std::string& command) {
  std::set<std::string> flags;
  std::istringstream lines(millrace(command.empty() ? std::vector<std::string>{"--help"}
                                                    : std::vector<std::string>{command, "--help"})
                               .out);
  const std::regex flag("(^|,)(--?[a-z][a-z0-9-]*)");
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  -", 0) != 0) continue;
    const std::string names = line.substr(2, line.find(' ', 2) - 2);
    for (std::sregex_iterator at(names.begin(), names.end(), flag), end; at != end; ++at)
      flags.insert((*at)[2]);
  }
  flags.erase("-h");
  flags.erase("--help");
  return flags;
}

// The flags of a command in docs/cli.md: the first cells of the tables in its section.
std::set<std::string> flags_in_docs(const std::string& command) {
  std::set<std::string> flags;
  std::ifstream file(source_path("docs/cli.md"));
  const std::regex flag("(--?[a-z][a-z0-9-]*)");
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) section = line.substr(3);
    if (section != (command.empty() ? "millrace" : "millrace " + command)) continue;
    if (line.rfind("| `-", 0) != 0) continue;
    const std::string cell = line.substr(0, line.find('|', 1));
    for (std::sregex_iterator at(cell.begin(), cell.end(), flag), end; at != end; ++at)
      flags.insert((*at)[1]);
  }
  return flags;
}

TEST(Docs, EveryFlagIsDocumentedAndEveryDocumentedFlagExists) {
  std::vector<std::string> commands = kCommands;
  commands.emplace_back();
  for (const std::string& command : commands) {
    const auto help = flags_in_help(command);
    EXPECT_GE(help.size(), 1u) << command;
    EXPECT_EQ(help, flags_in_docs(command)) << "millrace " << command;
  }
}

}  // namespace
}  // namespace millrace::test
