// Contract C1 at the level of the forward pass, for every fixture and a quantized model: logits are
// the same bits however a prompt is cut into steps, rows that were taken back leave no trace, and
// the state that a model keeps is what was planned.
#include <cstring>

#include "base/numeric.h"
#include "tests/support/fixtures.h"
#include "tests/support/forward_lab.h"

namespace millrace::test {
namespace {

using Logits = std::vector<float>;

constexpr char kQuantized[] = "tiny-moe-4bit";
// Past the 64 positions of a KV page and several times any fixture's window.
constexpr uint32_t kLength = 84, kStart = 60;

using kernels::KvType;

struct Case {
  std::string name;
  std::optional<KvType> kv;  // none: as the engine chooses

  // The fixtures compute in floats; the quantized model with the defaults, int8 activations and f16
  // KV.
  ActivationPrecision activations() const {
    return name == kQuantized ? ActivationPrecision::kInt8 : ActivationPrecision::kF32;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& name : fixtures()) all.push_back({name, {}});
  all.push_back({kQuantized, {}});
  // Groups, windows, softcap, sinks, layers that share keys, recurrent state beside them.
  for (const char* name : {"llama", "gemma2", "gpt_oss", "gemma4", "qwen3_next", "falcon_h1"}) {
    all.push_back({name, KvType::kQ8});
    all.push_back({name, KvType::kQ4});
  }
  // Latents and index keys.
  for (const char* name : {"deepseek_v3", "deepseek_v32", "glm_moe_dsa_shared"})
    all.push_back({name, KvType::kQ8});
  all.push_back({kQuantized, KvType::kQ8});
  all.push_back({kQuantized, KvType::kQ4});
  return all;
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name << (c.kv ? kernels::kv_name(*c.kv) : "");
}

std::string folder_of(const std::string& name) {
  return name == kQuantized ? repo("models/" + name) : golden(name);
}

class Chunk : public testing::TestWithParam<Case> {
 protected:
  Chunk()
      : lab_(folder_of(GetParam().name), 1, kLength, 1, 2, GetParam().activations(),
             GetParam().kv) {
    if (HasFailure()) return;
    const uint32_t vocab = std::min(lab_.vocab(), 4096u);
    for (uint32_t i = 0; i < kLength; ++i)
      ids_.push_back(static_cast<int32_t>((11 * i * i + 17 * i + 3) % vocab));
  }
  // Logits of the rows [begin, end) of `ids`, in steps of `chunk`.
  Logits run(model::KvSequence& sequence, const std::vector<int32_t>& ids, uint32_t begin,
             uint32_t end, uint32_t chunk, bool commit = true) {
    Logits all;
    for (uint32_t at = begin; at < end; at += chunk) {
      const Logits more = lab_.run(sequence, ids, at, std::min(end, at + chunk), commit);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  Logits whole(uint32_t chunk) {
    model::KvSequence sequence(*lab_.kv);
    return run(sequence, ids_, 0, kLength, chunk);
  }
  // Position of the first row of `got` that differs from those of `whole` from `begin` on.
  int64_t first_difference(const Logits& got, const Logits& whole, uint32_t begin = 0) {
    const size_t vocab = lab_.vocab();
    if (got.size() != (kLength - begin) * vocab || whole.size() != kLength * vocab) return -2;
    for (uint32_t p = begin; p < kLength; ++p) {
      if (std::memcmp(&got[(p - begin) * vocab], &whole[p * vocab], vocab * sizeof(float)) != 0)
        return p;
    }
    return -1;
  }
  ForwardLab lab_;
  std::vector<int32_t> ids_;
};

TEST_P(Chunk, AnyCutGivesTheSameBits) {
  ASSERT_FALSE(HasFailure());
  const Logits all = whole(kLength);
  for (const uint32_t chunk : {1u, 3u, 8u})
    EXPECT_EQ(first_difference(whole(chunk), all), -1) << "chunk " << chunk;
}

// k rows of other tokens run and are taken back, all or all but the first of them; what follows is
// as if they never ran.
TEST_P(Chunk, RowsTakenBackLeaveNoTrace) {
  ASSERT_FALSE(HasFailure());
  const Logits all = whole(kLength);
  for (const uint32_t extra : {1u, 2u, 5u, 9u}) {
    for (const uint32_t kept : {0u, 1u}) {
      auto drafted = ids_;
      for (uint32_t i = kStart + kept; i < kStart + extra; ++i)
        drafted[i] = (drafted[i] + 7) % static_cast<int32_t>(lab_.vocab());
      model::KvSequence sequence(*lab_.kv);
      run(sequence, ids_, 0, kStart, 16);
      ASSERT_TRUE(sequence.begin_round());
      // In one step, or one by one.
      run(sequence, drafted, kStart, kStart + extra, extra == 5 ? 1 : extra, false);
      const auto from = sequence.rollback(kStart + kept);
      ASSERT_TRUE(from) << from.error().message;
      // With recurrent state, the rows that stay run again; their logits are those of the round.
      EXPECT_EQ(first_difference(run(sequence, ids_, *from, kLength, 5), all, *from), -1)
          << extra << " rows, " << kept << " kept";
    }
  }
}

// Pages and slabs that a pool hands out are the bytes that were planned and that the ledger holds.
TEST_P(Chunk, StateIsWhatWasPlanned) {
  for (const uint32_t requests : {1u, 3u}) {
    EngineOptions options;
    options.model = folder_of(GetParam().name);
    if (GetParam().kv)
      options.kv = *GetParam().kv == KvType::kQ8 ? KvPrecision::kQ8 : KvPrecision::kQ4;
    options.context = 128;
    options.threads = 1;
    options.max_requests = requests;
    auto engine = Engine::open(options);
    ASSERT_TRUE(engine) << engine.error().message;
    auto sizing = size_model((*engine)->model().impl(), options);
    ASSERT_TRUE(sizing);
    const uint64_t planned = (*engine)->plan().kv_bytes;
    EXPECT_EQ((*engine)->memory().kv, planned);
    EXPECT_EQ((*engine)->memory().activations, (*engine)->plan().activation_bytes);

    stream::Ledger ledger(uint64_t{1} << 30);
    auto pool = model::KvPool::create(sizing->kv, ledger);
    ASSERT_TRUE(pool);
    EXPECT_EQ(ledger.held(stream::Use::kKv), planned);
    uint64_t handed_out = 0;
    const auto& groups = (*pool)->shape().groups;
    for (uint32_t g = 0; g < groups.size(); ++g) {
      uint64_t bytes = 0;
      for (; (*pool)->free_pages(g) > 0; bytes += groups[g].page_bytes)
        ASSERT_TRUE((*pool)->take(g));
      handed_out += round_up(bytes, 4096);
    }
    uint64_t slabs = 0;
    if (auto* states = (*pool)->states()) {
      for (; states->free_slabs() > 0; ++slabs) ASSERT_TRUE(states->take());
      EXPECT_EQ(slabs, requests);
      handed_out += round_up(slabs * states->floats() * sizeof(float), 4096);
    }
    EXPECT_EQ(handed_out, planned);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Chunk, testing::ValuesIn(cases()), [](const auto& made) {
  const Case& c = made.param;
  const std::string name = c.name == kQuantized ? "quantized" : c.name;
  return c.kv ? name + "_kv_" + kernels::kv_name(*c.kv) : name;
});

}  // namespace
}  // namespace millrace::test
