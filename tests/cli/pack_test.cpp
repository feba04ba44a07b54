// millrace pack, verify, unpack and plan: the whole way round, damage, and stopping in the middle.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "millrace/millrace.h"
#include "process.h"

namespace millrace::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kModel = source_path("models/tiny-moe-4bit");

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Pack, GivesTheSourceBackByteForByte) {
  const TempFolder folder;
  const Outcome packed = millrace({"pack", kModel, folder / "packed"});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_EQ(packed.out, "");
  const Outcome verified = millrace({"verify", folder / "packed"});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  const Outcome unpacked = millrace({"unpack", folder / "packed", folder / "again"});
  ASSERT_EQ(unpacked.exit_code, 0) << unpacked.err;
  size_t compared = 0;
  for (const auto& entry : fs::directory_iterator(kModel)) {
    const fs::path name = entry.path().filename();
    if (name.string().rfind("expected", 0) == 0) continue;  // values for tests, no part of a model
    EXPECT_TRUE(read_file(entry.path()) == read_file(folder.path() / "again" / name)) << name;
    ++compared;
  }
  EXPECT_GE(compared, 5u);

  const std::vector<std::string> rest = {"-p", "def f(x):", "-n", "8", "--json"};
  const auto ids = [&rest](const std::string& model) {
    std::vector<std::string> arguments = {"run", model};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    return millrace(arguments).json()["token_ids"];
  };
  EXPECT_EQ(ids(folder / "packed"), ids(kModel));
}

TEST(Pack, WillNotReplaceWithoutBeingAsked) {
  const TempFolder folder;
  ASSERT_EQ(millrace({"pack", kModel, folder / "packed"}).exit_code, 0);
  const Outcome again = millrace({"pack", kModel, folder / "packed"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("packed"));
  EXPECT_EQ(millrace({"pack", kModel, folder / "packed", "--overwrite"}).exit_code, 0);
}

TEST(Pack, ReportsAsJson) {
  const TempFolder folder;
  const Outcome packed = millrace({"pack", kModel, folder / "packed", "--json"});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_GT(packed.json()["pieces"], 0);
  EXPECT_GT(packed.json()["bytes"], 0);
}

TEST(Verify, NamesTheDamagedPiece) {
  const TempFolder folder;
  ASSERT_EQ(millrace({"pack", kModel, folder / "packed"}).exit_code, 0);
  const std::string weights = folder / "packed/weights-00001.bin";
  ASSERT_TRUE(fs::exists(weights));
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto middle = file.tellg() / 2;
  file.seekg(middle);
  const char flipped = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(flipped);
  file.close();
  const Outcome verified = millrace({"verify", folder / "packed"});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.err, HasSubstr("weights-00001.bin"));
  EXPECT_EQ(verified.out, "");
}

TEST(Pack, InterruptedAtAnyTimeLeavesNothingHalfWritten) {
  int stopped = 0;
  for (int tenth = 1; tenth <= 12; ++tenth) {
    const TempFolder folder;
    const Outcome outcome =
        millrace({"pack", kModel, folder / "packed"}, {.interrupt_after = 0.02 * tenth});
    if (outcome.exit_code == 0) {
      EXPECT_EQ(millrace({"verify", folder / "packed"}).exit_code, 0);
      continue;
    }
    ++stopped;
    // 130: we said so ourselves; 128 + SIGINT: it came before main().
    EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    EXPECT_FALSE(fs::exists(folder / "packed"));
    const Outcome again = millrace({"pack", kModel, folder / "packed"});
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(millrace({"verify", folder / "packed"}).exit_code, 0);
  }
  EXPECT_GT(stopped, 0);
}

TEST(Pack, BadSourcesAreErrors) {
  const TempFolder folder;
  const Outcome missing = millrace({"pack", "/no/such/model", folder / "packed"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/model"));
  EXPECT_FALSE(fs::exists(folder / "packed"));
  EXPECT_EQ(millrace({"verify", kModel}).exit_code, 1);
  EXPECT_EQ(millrace({"unpack", kModel, folder / "out"}).exit_code, 1);
}

TEST(Plan, SaysWhatFits) {
  const Outcome outcome = millrace({"plan", kModel, "--no-probe", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json plan = outcome.json();
  EXPECT_TRUE(plan["fits"]);
  EXPECT_LT(plan["smallest_budget"], plan["total_bytes"]);
  EXPECT_LE(plan["smallest_budget"], plan["comfortable_budget"]);
  uint64_t bytes = 0;
  for (const json& kind : plan["kinds"]) bytes += kind["bytes"].get<uint64_t>();
  EXPECT_EQ(bytes, plan["total_bytes"]);

  const Outcome tight = millrace({"plan", kModel, "--no-probe", "--json", "--budget", "4K"});
  EXPECT_EQ(tight.exit_code, 1);
  const Outcome words = millrace({"plan", kModel, "--no-probe"});
  EXPECT_THAT(words.out, HasSubstr("smallest --budget that runs"));
  EXPECT_THAT(words.out, Not(HasSubstr("were asked for")));
  const Outcome much = millrace({"plan", kModel, "--no-probe", "--memory", "900000G"});
  EXPECT_EQ(much.exit_code, 0) << much.err;
  EXPECT_THAT(much.out, HasSubstr("921600000 MiB were asked for, and there are"));
}

TEST(Plan, MeasuresTheMachine) {
  const Outcome outcome = millrace({"plan", kModel, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json measured = outcome.json()["measured"];
  ASSERT_TRUE(measured.is_object()) << outcome.err;
  EXPECT_GT(measured["disk_bytes_per_s"], 1e6);
  EXPECT_GT(measured["memory_bytes_per_s"], 1e8);
  EXPECT_LE(measured["decode_tps_least"], measured["decode_tps_most"]);
}

TEST(Doctor, LooksAtTheMachineAndLeavesNoFile) {
  const TempFolder folder;
  const Outcome outcome = millrace({"doctor", "--json", "--path", folder.path().string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> names;
  const json findings = outcome.json()["findings"];
  for (const json& finding : findings) {
    names.push_back(finding["name"]);
    EXPECT_NE(finding["meaning"], "") << finding["name"];
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"processor", "memory", "disk", "io_uring"}));
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_EQ(millrace({"doctor", "--path", "/no/such/folder"}).exit_code, 1);
}

TEST(Families, ListsEachOnce) {
  const json rows = millrace({"families", "--json"}).json()["families"];
  EXPECT_FALSE(rows.empty());
  std::set<std::string> names;
  for (const json& row : rows) EXPECT_TRUE(names.insert(row["name"]).second) << row["name"];
  // Every cell, in the table for people too.
  const std::vector<FamilyInfo> expected = families();
  ASSERT_EQ(rows.size(), expected.size());
  const std::string table = millrace({"families"}).out;
  for (size_t i = 0; i < expected.size(); ++i) {
    const FamilyInfo& family = expected[i];
    const std::pair<const char*, std::string> cells[] = {{"name", family.name},
                                                         {"mixer", family.mixer},
                                                         {"ffn", family.ffn},
                                                         {"streaming", family.streaming},
                                                         {"kv", family.kv},
                                                         {"drafter_ports", family.drafter_ports},
                                                         {"fixtures", family.fixtures}};
    for (const auto& [key, cell] : cells) {
      EXPECT_NE(cell, "") << family.name << " has no " << key;
      EXPECT_EQ(rows[i][key], cell);
      EXPECT_THAT(table, HasSubstr(cell));
    }
  }
}

}  // namespace
}  // namespace millrace::test
