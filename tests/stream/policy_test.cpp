// Policies: what each gives up, and what replays of traces say of them.
#include "stream/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "stream/replay.h"
#include "stream/trace.h"

namespace millrace::stream {
namespace {

using testing::HasSubstr;

PolicyFacts facts(uint32_t layers, uint32_t experts, uint32_t slots) {
  PolicyFacts out;
  for (uint32_t p = 0; p < layers * experts; ++p) out.layer_of.push_back(p / experts);
  out.slots = slots;
  return out;
}

const auto kAny = [](uint32_t) { return true; };

void bring(Policy& policy, std::initializer_list<uint32_t> pieces) {
  for (const uint32_t piece : pieces) {
    policy.admitted(piece);
    policy.used(piece, 1);
  }
}

TEST(Policy, LruGivesUpWhatWasUsedLongestAgo) {
  auto policy = make_policy(PolicyKind::kLru, facts(1, 8, 3));
  bring(*policy, {0, 1, 2});
  policy->used(0, 1);
  EXPECT_EQ(policy->victim(kAny), 1u);
  EXPECT_EQ(policy->victim([](uint32_t p) { return p == 0; }), 0u);
  EXPECT_EQ(policy->victim([](uint32_t) { return false; }), kNone);
}

TEST(Policy, LfuKeepsWhatIsUsedOftenAndForgetsOldUses) {
  auto policy = make_policy(PolicyKind::kLfu, facts(1, 8, 3));
  bring(*policy, {0, 1});
  for (int i = 0; i < 20; ++i) policy->used(0, 1);
  EXPECT_EQ(policy->victim(kAny), 1u);
  for (int i = 0; i < 1000; ++i) policy->used(1, 1);  // 15 half-lives
  EXPECT_EQ(policy->victim(kAny), 0u);
}

TEST(Policy, S3FifoLetsAScanPass) {
  auto policy = make_policy(PolicyKind::kS3Fifo, facts(1, 200, 10));
  std::set<uint32_t> resident;
  const auto use = [&](uint32_t piece) {
    if (resident.count(piece) == 0) {
      if (resident.size() == 10) {
        const uint32_t gone = policy->victim(kAny);
        policy->removed(gone);
        resident.erase(gone);
      }
      policy->admitted(piece);
      resident.insert(piece);
    }
    policy->used(piece, 1);
  };
  for (int round = 0; round < 4; ++round)
    for (uint32_t piece = 0; piece < 5; ++piece) use(piece);
  for (uint32_t piece = 100; piece < 140; ++piece) use(piece);
  for (uint32_t piece = 0; piece < 5; ++piece) EXPECT_EQ(resident.count(piece), 1u) << piece;
}

TEST(Policy, NextUseIsBeladyOnACycle) {
  // Ten layers with one expert each, all used in every pass, room for six: five stay for good.
  const uint32_t layers = 10;
  auto policy = make_policy(PolicyKind::kNextUse, facts(layers, 1, 6));
  std::set<uint32_t> resident;
  int hits = 0, uses = 0;
  for (int pass = 0; pass < 50; ++pass) {
    for (uint32_t piece = 0; piece < layers; ++piece) {
      policy->began(piece, 1);
      if (pass >= 10) ++uses, hits += resident.count(piece) != 0;
      if (resident.count(piece) == 0) {
        if (resident.size() == 6) {
          const uint32_t gone = policy->victim(kAny);
          policy->removed(gone);
          resident.erase(gone);
        }
        policy->admitted(piece);
        resident.insert(piece);
      }
      policy->used(piece, 1);
    }
  }
  // Belady: (6 - 1) / (10 - 1) of the uses; LRU: none.
  EXPECT_GE(hits, uses * 5 / 9 - 10);
}

TEST(Policy, UsesWeighByTheRowsOfTheirPass) {
  for (const PolicyKind kind : {PolicyKind::kLfu, PolicyKind::kNextUse}) {
    auto policy = make_policy(kind, facts(1, 8, 3));
    const auto pass = [&](uint32_t rows,
                          std::initializer_list<std::pair<uint32_t, uint32_t>> uses) {
      policy->began(0, rows);
      for (const auto& [piece, of] : uses) policy->used(piece, of);
    };
    for (const uint32_t piece : {0u, 1u, 2u}) policy->admitted(piece);
    pass(1000, {{0, 900}, {1, 30}, {2, 500}});
    EXPECT_EQ(policy->victim(kAny), 1u) << name(kind);
    EXPECT_EQ(policy->order(), (std::vector<uint32_t>{1, 2, 0})) << name(kind);
    // A prompt outweighs no more than a token does: two tokens are more than half of its rows.
    pass(1, {{1, 1}});
    pass(1, {{1, 1}});
    EXPECT_EQ(policy->victim(kAny), 2u) << name(kind);
  }
}

TEST(Policy, PassesOfManyRowsAreAScan) {
  // In a pass of a thousand rows both layers' experts fire for sure, so the one whose layer has just
  // been goes, although it fires more often; in passes of one row the other one would.
  for (const uint32_t rows : {1u, 1000u}) {
    auto policy = make_policy(PolicyKind::kNextUse, facts(2, 1, 2));
    policy->admitted(0);
    policy->admitted(1);
    for (int i = 0; i < 200; ++i) {
      policy->began(0, rows);
      policy->used(0, rows);
      policy->began(1, rows);
      if (i % 4 == 0 || rows > 1) policy->used(1, (rows + 3) / 4);
    }
    policy->began(0, rows);
    policy->used(0, rows);
    EXPECT_EQ(policy->victim(kAny), rows == 1 ? 1u : 0u);
  }
}

TEST(Policy, NamesAreFoundAndOthersAreNot) {
  for (const PolicyName& entry : policy_names()) EXPECT_EQ(*find_policy(entry.name), entry.kind);
  const auto unknown = find_policy("fifo");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message, HasSubstr("lru"));
}

class TraceFile : public testing::Test {
 protected:
  TraceFile() {
    path_ = (std::filesystem::temp_directory_path() /
             ("millrace_trace_" + std::to_string(::getpid()) + ".txt"))
                .string();
  }
  ~TraceFile() override { std::filesystem::remove(path_); }
  // Tokens that keep some experts: a favourite set that drifts, and noise.
  void write(uint32_t layers, uint32_t experts, uint32_t used, int tokens) {
    auto writer = TraceWriter::create(path_, {"m", layers, experts, used, 1000});
    ASSERT_TRUE(writer);
    std::mt19937 random(7);
    for (int t = 0; t < tokens; ++t) {
      for (uint32_t layer = 0; layer < layers; ++layer) {
        std::set<uint32_t> row;
        while (row.size() < used) {
          const uint32_t favourite = (layer * 7 + static_cast<uint32_t>(t) / 50 + random() % 6);
          row.insert((random() % 4 != 0 ? favourite : random()) % experts);
        }
        (*writer)->add(layer, std::vector<uint32_t>(row.begin(), row.end()));
      }
    }
    ASSERT_TRUE((*writer)->close());
  }
  std::string path_;
};

TEST_F(TraceFile, IsReadAsItWasWritten) {
  {
    auto writer = TraceWriter::create(path_, {"a \"model\"", 3, 8, 2, 4096});
    ASSERT_TRUE(writer);
    (*writer)->add(0, std::vector<uint32_t>{5, 1, 7, 0});  // two rows
    (*writer)->add(2, std::vector<uint32_t>{3, 4});
    (*writer)->add(0, std::vector<uint32_t>{6, 2});
  }
  const auto trace = read_trace(path_);
  ASSERT_TRUE(trace) << trace.error().message;
  EXPECT_EQ(trace->head.model, "a \"model\"");
  EXPECT_EQ(trace->head.expert_bytes, 4096u);
  ASSERT_EQ(trace->passes.size(), 3u);
  EXPECT_EQ(trace->passes[0].experts, (std::vector<uint32_t>{5, 1, 7, 0}));
  EXPECT_EQ(trace->passes[1].layer, 2u);
  EXPECT_EQ(trace->passes[1].step, 0u);
  EXPECT_EQ(trace->passes[2].step, 1u);
}

TEST_F(TraceFile, DamageIsNamedByLine) {
  const auto message = [&](const std::string& text) {
    std::ofstream(path_) << text;
    const auto trace = read_trace(path_);
    return trace ? std::string("read") : trace.error().message;
  };
  const std::string head = "{\"millrace_trace\":1,\"layers\":2,\"experts\":8,\"used\":2}\n";
  EXPECT_THAT(message("hello\n"), HasSubstr("line 1: this is no trace"));
  EXPECT_THAT(message("{\"millrace_trace\":1,\"layers\":0,\"experts\":8,\"used\":2}\n0 0 1,2\n"),
              HasSubstr("line 1"));
  EXPECT_THAT(message(head + "0 0 1,2\n0 2 1,2\n"), HasSubstr("line 3: layer 2 of 2"));
  EXPECT_THAT(message(head + "0 0 1,8\n"), HasSubstr("line 2: an expert is not below 8"));
  EXPECT_THAT(message(head + "0 0 1\n"), HasSubstr("line 2: a row does not have 2"));
  EXPECT_THAT(message(head + "0 0 1,2,3\n"), HasSubstr("line 2"));
  EXPECT_THAT(message(head + "x\n"), HasSubstr("line 2: no step"));
  EXPECT_THAT(message(head + "4294967295 0 1,2\n"), HasSubstr("line 2: step 4294967295"));
  EXPECT_THAT(message(head), HasSubstr("no passes"));
  // Numbers that would wrap, or take the memory of a machine.
  const auto sized = [&](uint64_t layers, uint64_t experts) {
    return message(
        fmt::format("{{\"millrace_trace\":1,\"layers\":{},\"experts\":{},\"used\":2}}\n0 0 1,2\n",
                    layers, experts));
  };
  EXPECT_THAT(sized(65536, 65536), HasSubstr("line 1: 65536 layers of 65536 experts"));
  EXPECT_THAT(sized(65535, 65536), HasSubstr("line 1: 65535 layers"));
  EXPECT_THAT(sized((uint64_t{1} << 32) + 2, 8), HasSubstr("out of range"));
  EXPECT_EQ(sized(1024, 1024), "read");
  // A killed run leaves half a line.
  EXPECT_EQ(message(head + "0 0 1,2\n0 1 3"), "read");
}

TEST_F(TraceFile, NoPolicyBeatsBeladyAndAllHitOnceEverythingFits) {
  write(6, 32, 4, 300);
  const auto trace = read_trace(path_);
  ASSERT_TRUE(trace) << trace.error().message;
  for (const uint32_t slots : {4u, 12u, 40u, 100u, 192u}) {
    const auto best = replay(*trace, std::nullopt, {slots, 0});
    ASSERT_TRUE(best) << best.error().message;
    double highest = 0, shipped = 0;
    for (const PolicyName& entry : policy_names()) {
      const auto result = replay(*trace, entry.kind, {slots, 0});
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_EQ(result->uses, 300u * 6 * 4);
      EXPECT_LE(result->hits, best->hits) << entry.name;
      highest = std::max(highest, result->hit_rate());
      if (entry.kind == kDefaultPolicy) shipped = result->hit_rate();
      if (slots == 192) {
        EXPECT_EQ(result->hits, best->hits) << entry.name;
      }
    }
    EXPECT_GE(shipped, highest - 0.02) << slots;
  }
  EXPECT_FALSE(replay(*trace, std::nullopt, {3, 0}));
}

// A prompt of some hundred tokens in chunks of 128, then an answer of 400 (models/tiny-moe-4bit).
TEST(Replay, TheDefaultIsTheBestOfAllOnARecordedTrace) {
  const auto trace = read_trace("tests/data/traces/tiny-moe-4bit.txt");
  ASSERT_TRUE(trace) << trace.error().message;
  const uint32_t pieces = trace->head.layers * trace->head.experts;
  for (const uint32_t skipped : {0u, 7u})  // with the prompt, and the answer alone
    for (const uint32_t percent : {5u, 15u, 40u}) {
      const ReplayOptions options = {(pieces * percent + 50) / 100, skipped};
      const auto shipped = replay(*trace, kDefaultPolicy, options);
      ASSERT_TRUE(shipped) << shipped.error().message;
      for (const PolicyName& other : policy_names())
        EXPECT_GE(shipped->hits, replay(*trace, other.kind, options)->hits)
            << other.name << ", " << percent << " % resident, " << skipped << " passes skipped";
    }
}

TEST_F(TraceFile, BeladyIsTheOptimumOfASmallCase) {
  // One layer, one expert a row, two slots: 0 1 2 0 1 2: the best hits are 2.
  {
    auto writer = TraceWriter::create(path_, {"m", 1, 3, 1, 1});
    for (const uint32_t e : {0u, 1u, 2u, 0u, 1u, 2u}) (*writer)->add(0, std::vector<uint32_t>{e});
  }
  const auto trace = read_trace(path_);
  ASSERT_TRUE(trace);
  EXPECT_EQ(replay(*trace, std::nullopt, {2, 0})->hits, 2u);
  EXPECT_EQ(replay(*trace, PolicyKind::kLru, {2, 0})->hits, 0u);
}

}  // namespace
}  // namespace millrace::stream
