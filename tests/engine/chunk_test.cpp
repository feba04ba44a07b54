// Contract C1 at the level of the forward pass, for every family: logits are the same bits however
// a prompt is cut into steps, and rows that were taken back leave no trace.
#include <algorithm>
#include <cstring>
#include <memory>

#include "api/sizing.h"
#include "base/threads.h"
#include "model/forward.h"
#include "stream/ledger.h"
#include "stream/reader_in_place.h"
#include "stream/store.h"
#include "tests/support/engine_run.h"

namespace millrace::test {
namespace {

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(repo("tests/data/golden")))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// A model opened down to its forward pass.
class Pass {
 public:
  Status open(const std::string& path, kernels::Activations activations) {
    EngineOptions options;
    options.model = path;
    options.prefill_chunk = 32;
    options.context = 128;
    MILLRACE_ASSIGN(model_, Model::open(path));
    Model::Impl& m = model_->impl();
    MILLRACE_ASSIGN(Sizing sizing, size_model(m, options));
    ledger_ = std::make_unique<stream::Ledger>(uint64_t{4} << 30);
    MILLRACE_ASSIGN(reader_, stream::make_in_place_reader(m.source(), m.table, {}));
    MILLRACE_ASSIGN(store_, stream::PieceStore::create(m.table, sizing.residency, *reader_,
                                                       *ledger_, stream::StoreOptions()));
    MILLRACE_ASSIGN(
        kv_, model::KvPool::create(model::KvShape::make(m.spec, sizing.kv.type, 128, 32, 1, 1),
                                   *ledger_));
    threads_ = std::make_unique<Threads>(2);
    MILLRACE_TRY(store_->load_pinned({}));
    sizing.forward.activations = activations;
    MILLRACE_ASSIGN(forward_,
                    model::Forward::create(m.spec, m.table, *store_, kv_->shape(), *threads_,
                                           Cpu::detect(), *ledger_, sizing.forward));
    vocab_ = m.spec.vocab;
    return {};
  }

  model::KvPool& kv() { return *kv_; }
  uint32_t vocab() const { return vocab_; }

  // Logits of the rows [begin, end) of `ids`, in steps of `chunk`. Commits them unless told not to.
  Expected<std::vector<float>> run(model::KvSequence& sequence, const std::vector<int32_t>& ids,
                                   uint32_t begin, uint32_t end, uint32_t chunk,
                                   bool commit = true) {
    std::vector<float> all;
    for (uint32_t at = begin; at < end;) {
      const uint32_t next = std::min(end, at + chunk);
      std::vector<model::Row> rows;
      for (uint32_t i = at; i < next; ++i) rows.push_back({&sequence, i, ids[i], true});
      MILLRACE_TRY(sequence.reserve(next));
      MILLRACE_ASSIGN(const auto logits, forward_->run(rows));
      all.insert(all.end(), logits.begin(), logits.end());
      if (commit) sequence.commit(next);
      at = next;
    }
    return all;
  }

 private:
  std::shared_ptr<Model> model_;
  std::unique_ptr<stream::Ledger> ledger_;
  std::unique_ptr<stream::PieceReader> reader_;
  std::unique_ptr<stream::PieceStore> store_;
  std::unique_ptr<model::KvPool> kv_;
  std::unique_ptr<Threads> threads_;
  std::unique_ptr<model::Forward> forward_;
  uint32_t vocab_ = 0;
};

class Chunk : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string folder = repo("tests/data/golden/" + GetParam());
    ids_ = read_tensor<int32_t>(folder + "/expected.safetensors", "input_ids");
    auto opened = pass_.open(folder, kernels::Activations::kF32);
    ASSERT_TRUE(opened) << opened.error().message;
  }
  std::vector<float> logits(uint32_t chunk) {
    model::KvSequence sequence(pass_.kv());
    auto out = pass_.run(sequence, ids_, 0, static_cast<uint32_t>(ids_.size()), chunk);
    EXPECT_TRUE(out) << out.error().message;
    return out ? *out : std::vector<float>();
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  std::vector<int32_t> ids_;
  Pass pass_;
};

TEST_P(Chunk, AnyCutGivesTheSameBits) {
  const auto whole = logits(static_cast<uint32_t>(ids_.size()));
  ASSERT_EQ(whole.size(), ids_.size() * pass_.vocab());
  for (const uint32_t chunk : {1u, 3u, 8u})
    EXPECT_TRUE(same(logits(chunk), whole)) << "chunk " << chunk;
}

// A round of other tokens is run and partly or wholly taken back; what follows is as without it.
TEST_P(Chunk, RowsTakenBackLeaveNoTrace) {
  const auto end = static_cast<uint32_t>(ids_.size());
  const auto whole = logits(end);
  const uint32_t half = end / 2, extra = 5;
  for (const uint32_t kept : {0u, 2u}) {
    auto drafted = ids_;
    for (uint32_t i = half + kept; i < half + extra; ++i)
      drafted[i] = (drafted[i] + 7) % static_cast<int32_t>(pass_.vocab());
    model::KvSequence sequence(pass_.kv());
    auto out = pass_.run(sequence, ids_, 0, half, 4);
    ASSERT_TRUE(out) << out.error().message;
    ASSERT_TRUE(sequence.begin_round());
    auto round = pass_.run(sequence, drafted, half, half + extra, extra, false);
    ASSERT_TRUE(round) << round.error().message;
    auto from = sequence.rollback(half + kept);
    ASSERT_TRUE(from) << from.error().message;
    // With recurrent state, the rows that stay run again; their logits are those of the round.
    auto rest = pass_.run(sequence, ids_, *from, end, 3);
    ASSERT_TRUE(rest) << rest.error().message;
    const std::vector<float> expected(
        whole.begin() + static_cast<std::ptrdiff_t>(*from * pass_.vocab()), whole.end());
    EXPECT_TRUE(same(*rest, expected)) << "kept " << kept;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Chunk, testing::ValuesIn(fixtures()),
                         [](const auto& fixture) { return fixture.param; });

}  // namespace
}  // namespace millrace::test
