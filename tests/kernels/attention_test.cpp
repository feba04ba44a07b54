// Attention: the same bits on every instruction set, near the exact softmax, and blind to
// everything outside begin..end and to where blocks lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/numeric.h"
#include "kernels/ops.h"
#include "tests/kernels/every_ops.h"

namespace millrace::kernels {
namespace {

// Keys and values of one head for a number of positions, in blocks.
class Cache {
 public:
  Cache(KvType type, uint32_t key_dim, uint32_t value_dim, uint32_t positions, uint64_t seed)
      : type_(type), key_dim_(key_dim), value_dim_(value_dim), blocks_((positions + 63) / 64) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    const size_t bytes = type == KvType::kF16 ? 2 : 4;
    for (uint32_t b = 0; b < blocks_; ++b) {
      // Unwritten places hold NaN: they must not matter.
      k_.emplace_back(kKvBlock * key_dim * bytes, uint8_t{0xff});
      v_.emplace_back(kKvBlock * value_dim * bytes, uint8_t{0xff});
    }
    for (uint32_t p = 0; p < positions; ++p) {
      std::vector<float> k(key_dim), v(value_dim);
      for (float& x : k) x = normal(random);
      for (float& x : v) x = normal(random);
      scalar_ops().store_kv(type, k.data(), key_dim, v.data(), value_dim, p % kKvBlock,
                            k_[p / kKvBlock].data(), v_[p / kKvBlock].data());
      keys_.push_back(k);
      values_.push_back(v);
    }
    for (uint32_t b = 0; b < blocks_; ++b) {
      k_blocks_.push_back(k_[b].data());
      v_blocks_.push_back(v_[b].data());
    }
  }

  AttentionArgs args(const std::vector<float>& q, uint32_t begin, uint32_t end,
                     std::vector<float>& out) const {
    AttentionArgs a;
    a.q = q.data();
    a.key_dim = key_dim_;
    a.value_dim = value_dim_;
    a.kv_type = type_;
    a.k_blocks = k_blocks_.data();
    a.v_blocks = v_blocks_.data();
    a.begin = begin;
    a.end = end;
    a.scale = 1.0f / std::sqrt(static_cast<float>(key_dim_));
    out.assign(value_dim_, -7.0f);
    a.out = out.data();
    return a;
  }

  float rounded(float x) const { return type_ == KvType::kF16 ? f16_to_f32(f32_to_f16(x)) : x; }

  std::vector<double> exact(const AttentionArgs& a) const {
    std::vector<double> s;
    double most = a.sink ? double{*a.sink} : -1e30;
    for (uint32_t p = a.begin; p < a.end; ++p) {
      double dot = 0.0;
      for (uint32_t d = 0; d < key_dim_; ++d) dot += double{a.q[d]} * rounded(keys_[p][d]);
      dot *= a.scale;
      if (a.softcap > 0.0f) dot = a.softcap * std::tanh(dot / a.softcap);
      s.push_back(dot);
      most = std::max(most, dot);
    }
    double total = a.sink ? std::exp(*a.sink - most) : 0.0;
    std::vector<double> out(value_dim_, 0.0);
    for (uint32_t p = a.begin; p < a.end; ++p) {
      const double w = std::exp(s[p - a.begin] - most);
      total += w;
      for (uint32_t d = 0; d < value_dim_; ++d) out[d] += w * rounded(values_[p][d]);
    }
    for (double& x : out) x /= total;
    return out;
  }

 private:
  KvType type_;
  uint32_t key_dim_, value_dim_, blocks_;
  std::vector<std::vector<uint8_t>> k_, v_;
  std::vector<const void*> k_blocks_, v_blocks_;
  std::vector<std::vector<float>> keys_, values_;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

std::vector<float> random_query(uint32_t dim, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> q(dim);
  for (float& x : q) x = normal(random);
  return q;
}

struct Span {
  uint32_t begin, end;
};
const Span kSpans[] = {{0, 1},    {0, 63},   {0, 64},  {0, 65},    {5, 6},   {60, 70},
                       {63, 128}, {64, 128}, {31, 33}, {100, 190}, {0, 200}, {127, 129},
                       {7, 40},   {40, 64},  {0, 33},  {96, 97},   {32, 64}, {1, 200}};

class AttentionOn : public EveryOps {};
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionOn, testing::ValuesIn(runnable_ops()), ops_name);

TEST_P(AttentionOn, ScalarBitsAndNearExact) {
  const std::pair<uint32_t, uint32_t> dims[] = {{8, 8},     {12, 20}, {64, 64},
                                                {128, 128}, {96, 72}, {192, 128}};
  for (const auto& [key_dim, value_dim] : dims) {
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      const Cache cache(type, key_dim, value_dim, 200, key_dim);
      const auto q = random_query(key_dim, value_dim);
      const float sink = 0.7f;
      for (const Span span : kSpans) {
        for (const bool options : {false, true}) {
          std::vector<float> a, b;
          AttentionArgs args = cache.args(q, span.begin, span.end, a);
          args.softcap = options ? 3.0f : 0.0f;
          args.sink = options ? &sink : nullptr;
          scalar_ops().attention(args);
          AttentionArgs again = args;
          b.assign(value_dim, -9.0f);
          again.out = b.data();
          tested_ops().attention(again);
          ASSERT_TRUE(same(a, b)) << key_dim << " " << span.begin << ".." << span.end;
          const auto exact = cache.exact(args);
          for (uint32_t d = 0; d < value_dim; ++d) ASSERT_NEAR(a[d], exact[d], 2e-5);
        }
      }
    }
  }
}

TEST_P(AttentionOn, NothingVisibleGivesZeros) {
  const Cache cache(KvType::kF16, 16, 16, 64, 1);
  const auto q = random_query(16, 2);
  std::vector<float> out;
  for (const Ops* ops : {&scalar_ops(), &tested_ops()}) {
    ops->attention(cache.args(q, 9, 9, out));
    EXPECT_EQ(out, std::vector<float>(16, 0.0f));
  }
}

// The positions after `end` may be written or not, and hold anything.
TEST_P(AttentionOn, LaterPositionsDoNotMatter) {
  const Cache whole(KvType::kF16, 64, 64, 200, 3), part(KvType::kF16, 64, 64, 70, 3);
  const auto q = random_query(64, 4);
  for (const Ops* ops : {&scalar_ops(), &tested_ops()}) {
    for (const Span span : {Span{0, 70}, Span{3, 65}, Span{64, 70}}) {
      std::vector<float> a, b;
      ops->attention(whole.args(q, span.begin, span.end, a));
      ops->attention(part.args(q, span.begin, span.end, b));
      EXPECT_TRUE(same(a, b));
    }
  }
}

// Any set of spans together gives each query the bits it gets alone.
TEST_P(AttentionOn, GroupHasTheBitsOfEachAlone) {
  std::mt19937 random(11);
  const std::pair<uint32_t, uint32_t> dims[] = {{8, 8}, {12, 20}, {64, 64}, {96, 72}};
  for (const auto& [key_dim, value_dim] : dims) {
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      const Cache cache(type, key_dim, value_dim, 200, key_dim);
      for (uint32_t trial = 0; trial < 40; ++trial) {
        const uint32_t count = 1 + trial % 7;
        const float sink = 0.3f;
        std::vector<std::vector<float>> q, out(count), alone(count);
        std::vector<AttentionArgs> group;
        for (uint32_t i = 0; i < count; ++i) q.push_back(random_query(key_dim, 10 * trial + i));
        for (uint32_t i = 0; i < count; ++i) {
          // Neighbouring rows of a pass, or anything.
          uint32_t begin = trial % 2 == 0 ? 0 : random() % 200;
          uint32_t end = trial % 2 == 0 ? 60 + trial + i : begin + random() % (201 - begin);
          group.push_back(cache.args(q[i], begin, end, out[i]));
          if (trial % 3 == 0) group[i].sink = &sink;
          AttentionArgs one = group[i];
          alone[i].assign(value_dim, 5.0f);
          one.out = alone[i].data();
          scalar_ops().attention(one);
        }
        for (const Ops* ops : {&scalar_ops(), &tested_ops()}) {
          for (auto& o : out) o.assign(value_dim, 9.0f);
          ops->attention_group(group.data(), count);
          for (uint32_t i = 0; i < count; ++i) ASSERT_TRUE(same(out[i], alone[i])) << trial;
        }
      }
    }
  }
}

TEST_P(AttentionOn, StoreKvSameBytes) {
  for (const KvType type : {KvType::kF16, KvType::kF32}) {
    for (const uint32_t dim : {8u, 20u, 64u}) {
      std::vector<uint8_t> blocks[2];
      const Ops* ops[2] = {&scalar_ops(), &tested_ops()};
      for (size_t i = 0; i < 2; ++i) {
        blocks[i].assign(2 * kKvBlock * dim * 4, 0xee);
        for (uint32_t slot : {0u, 5u, 63u}) {
          auto k = random_query(dim, slot), v = random_query(dim, slot + 100);
          k[0] = 1e6f;  // overflows to infinity in f16
          v[1] = 1e-7f;
          ops[i]->store_kv(type, k.data(), dim, v.data(), dim, slot, blocks[i].data(),
                           blocks[i].data() + kKvBlock * dim * 4);
        }
      }
      EXPECT_EQ(blocks[0], blocks[1]);
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
