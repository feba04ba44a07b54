// Recurrent state: the same bits for any chunks and company, exact rollback, bytes in the ledger.
#include "model/state.h"
#include "tests/support/forward_lab.h"

namespace millrace::test {
namespace {

std::string golden(const std::string& name) { return repo("tests/data/golden/" + name); }

std::vector<int32_t> ids_of(const std::string& name) {
  return read_tensor<int32_t>(golden(name) + "/expected.safetensors", "input_ids");
}

using Logits = std::vector<float>;

void append(Logits* to, const Logits& more) { to->insert(to->end(), more.begin(), more.end()); }

// Logits of all positions from rows of `chunk` at a time.
Logits in_chunks(ForwardLab& lab, const std::vector<int32_t>& ids, uint32_t chunk) {
  model::KvSequence sequence(*lab.kv);
  Logits all;
  const auto n = static_cast<uint32_t>(ids.size());
  for (uint32_t at = 0; at < n; at += chunk)
    append(&all, lab.run(sequence, ids, at, std::min(n, at + chunk)));
  return all;
}

class Recurrent : public testing::TestWithParam<std::string> {};

TEST_P(Recurrent, AnyChunksGiveTheSameBits) {
  ForwardLab lab(golden(GetParam()), 1, 32, 0);
  const auto ids = ids_of(GetParam());
  const Logits whole = in_chunks(lab, ids, 32);
  ASSERT_EQ(whole.size(), ids.size() * lab.vocab());
  ForwardLab threaded(golden(GetParam()), 1, 32, 0, 3);
  for (const uint32_t chunk : {1u, 3u, 8u}) {
    EXPECT_EQ(in_chunks(lab, ids, chunk), whole) << chunk;
    EXPECT_EQ(in_chunks(threaded, ids, chunk), whole) << chunk << ", 3 threads";
  }
}

TEST_P(Recurrent, SequencesInOneStepDoNotMeet) {
  ForwardLab lab(golden(GetParam()), 2, 32, 0);
  const auto ids = ids_of(GetParam());
  const std::vector<int32_t> other(ids.rbegin(), ids.rend());
  const Logits alone = in_chunks(lab, ids, 32), other_alone = in_chunks(lab, other, 32);
  model::KvSequence a(*lab.kv), b(*lab.kv);
  // Rows of both, interleaved: 1, then 2 and 3 a step.
  Logits got_a, got_b;
  uint32_t at_a = 0, at_b = 0;
  for (uint32_t step = 0; at_a + 2 < ids.size() && at_b + 3 < ids.size(); ++step) {
    std::vector<model::Row> rows;
    std::vector<bool> of_a;
    for (uint32_t i = 0; i < (step ? 3u : 1u); ++i) {
      if (i < 2) rows.push_back({&a, at_a, ids[at_a], true}), of_a.push_back(true), ++at_a;
      rows.push_back({&b, at_b, other[at_b], true}), of_a.push_back(false), ++at_b;
    }
    const Logits logits = lab.run(rows);
    ASSERT_EQ(logits.size(), rows.size() * lab.vocab());
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r * lab.vocab());
      append(of_a[r] ? &got_a : &got_b, Logits(begin, begin + lab.vocab()));
    }
  }
  EXPECT_TRUE(std::equal(got_a.begin(), got_a.end(), alone.begin()));
  EXPECT_TRUE(std::equal(got_b.begin(), got_b.end(), other_alone.begin()));
}

// Every number of rows kept of a round of wrong ones, at several places, two rounds in a row.
TEST_P(Recurrent, RollbackIsAsIfNeverRun) {
  ForwardLab lab(golden(GetParam()), 1, 32, 1);
  const auto ids = ids_of(GetParam());
  const Logits whole = in_chunks(lab, ids, 32);
  const auto row = [&](uint32_t position) {
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(position * lab.vocab());
    return Logits(begin, begin + lab.vocab());
  };
  constexpr uint32_t kDrafted = 4;
  for (const uint32_t start : {0u, 1u, 9u}) {
    for (uint32_t kept = 0; kept <= kDrafted; ++kept) {
      model::KvSequence sequence(*lab.kv);
      if (start) lab.run(sequence, ids, 0, start);
      uint32_t length = start;
      for (int round = 0; round < 2; ++round) {
        ASSERT_TRUE(sequence.begin_round());
        auto drafted = ids;  // right up to `kept`, then wrong
        for (uint32_t p = length + kept; p < length + kDrafted; ++p) drafted[p] ^= 1;
        lab.run(sequence, drafted, length, length + kDrafted, false);
        const uint32_t target = length + kept;
        const auto from = sequence.rollback(target);
        ASSERT_TRUE(from) << from.error().message;
        EXPECT_LE(*from, target);
        EXPECT_EQ(*from, kept == kDrafted ? target : length);
        if (*from < target) lab.run(sequence, ids, *from, target, false);
        sequence.commit(target);
        length = target;
      }
      EXPECT_EQ(lab.run(sequence, ids, length, length + 1), row(length))
          << "start " << start << ", kept " << kept;
    }
  }
}

TEST_P(Recurrent, RowsOutOfOrderAreRefused) {
  ForwardLab lab(golden(GetParam()), 1, 8, 1);
  const auto ids = ids_of(GetParam());
  model::KvSequence sequence(*lab.kv);
  lab.run(sequence, ids, 0, 3);
  ASSERT_TRUE(sequence.reserve(6));
  const model::Row skipped{&sequence, 4, ids[4], true};
  const auto logits = lab.forward->run({&skipped, 1});
  ASSERT_FALSE(logits);
  EXPECT_EQ(logits.error().code, Code::kInternal);
  // Nothing to go back to before a round began; nor to a place before it did.
  EXPECT_FALSE(sequence.rollback(1));
  ASSERT_TRUE(sequence.begin_round());
  EXPECT_FALSE(sequence.rollback(1));
  EXPECT_TRUE(sequence.rollback(3));
}

TEST_P(Recurrent, StateIsInTheLedger) {
  EngineOptions options;
  options.model = golden(GetParam());
  options.context = 64;
  auto one = Engine::open(options);
  options.max_requests = 3;
  auto three = Engine::open(options);
  ASSERT_TRUE(one && three);
  EXPECT_EQ((*one)->memory().kv, (*one)->plan().kv_bytes);
  EXPECT_EQ((*three)->memory().kv, (*three)->plan().kv_bytes);

  ForwardLab lab(golden(GetParam()), 2, 8, 1);
  EXPECT_EQ(lab.ledger.held(stream::Use::kKv), lab.kv->shape().bytes());
  EXPECT_EQ(lab.kv->states()->free_slabs(), 4u);
  {
    model::KvSequence a(*lab.kv), b(*lab.kv);
    ASSERT_TRUE(a.reserve(1) && b.reserve(1) && a.begin_round() && b.begin_round());
    EXPECT_EQ(lab.kv->states()->free_slabs(), 0u);
    model::KvSequence c(*lab.kv);
    const auto full = c.reserve(1);
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().code, Code::kNoMemory);
  }
  EXPECT_EQ(lab.kv->states()->free_slabs(), 4u);
}

INSTANTIATE_TEST_SUITE_P(Families, Recurrent,
                         testing::Values("lfm2", "lfm2_moe", "qwen3_5_text", "qwen3_next",
                                         "qwen3_5_moe_text", "nemotron_h", "falcon_h1"),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace millrace::test
