// Attention: the same bits on every instruction set, near the exact softmax, and blind to
// everything outside begin..end and to where blocks lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/numeric.h"
#include "kernels/ops.h"
#include "tests/kernels/every_ops.h"

namespace millrace::kernels {
namespace {

// H x by definition, for each run of the channels that q8 and q4 turn together.
std::vector<double> turned(const std::vector<double>& x) {
  size_t n = 1;
  while (n < 128 && x.size() % (2 * n) == 0) n *= 2;
  std::vector<double> y(x.size(), 0.0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < n; ++j) {
      const bool minus = std::popcount((i % n) & j) % 2 != 0;
      y[i] += minus ? -x[i / n * n + j] : x[i / n * n + j];
    }
  }
  return y;
}
// Its inverse.
std::vector<double> turned_back(const std::vector<double>& x) {
  std::vector<double> y = turned(x);
  size_t n = 1;
  while (n < 128 && x.size() % (2 * n) == 0) n *= 2;
  for (double& v : y) v /= static_cast<double>(n);
  return y;
}

int nibble(uint8_t byte, bool high) {
  const int code = high ? byte >> 4 : byte & 15;
  return code < 8 ? code : code - 16;
}

// Keys and values of one head for a number of positions, in blocks.
class Cache {
 public:
  Cache(KvType type, uint32_t key_dim, uint32_t value_dim, uint32_t positions, uint64_t seed)
      : type_(type), key_dim_(key_dim), value_dim_(value_dim), blocks_((positions + 63) / 64) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    for (uint32_t b = 0; b < blocks_; ++b) {
      // Unwritten places hold NaN, in q8 and q4 in the scales: they must not matter.
      k_.emplace_back(kv_key_bytes(type, key_dim), uint8_t{0xff});
      v_.emplace_back(kv_value_bytes(type, value_dim), uint8_t{0xff});
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

  const std::vector<float>& key(uint32_t p) const { return keys_[p]; }
  const std::vector<float>& value(uint32_t p) const { return values_[p]; }
  const void* key_block(uint32_t b) const { return k_blocks_[b]; }

  // What the block says of a position, read as kv_layout.h describes it.
  std::vector<double> stored_key(uint32_t p) const {
    std::vector<double> x(key_dim_);
    for (uint32_t d = 0; d < key_dim_; ++d) {
      x[d] = element(k_[p / kKvBlock], kv_key_code_bytes(type_, key_dim_), p % kKvBlock, d,
                     uint64_t{d} * kKvBlock + p % kKvBlock,
                     uint64_t{d / 2} * kKvBlock + p % kKvBlock, d % 2 != 0);
    }
    return is_scaled(type_) ? turned_back(x) : x;
  }
  std::vector<double> stored_value(uint32_t p) const {
    std::vector<double> x(value_dim_);
    const uint64_t slot = p % kKvBlock;
    for (uint32_t d = 0; d < value_dim_; ++d) {
      x[d] = element(v_[p / kKvBlock], kv_value_code_bytes(type_, value_dim_), p % kKvBlock, d,
                     slot * value_dim_ + d,
                     slot * ((value_dim_ + 15) / 16 * 8) + d / 16 * 8 + d % 8, d % 16 >= 8);
    }
    return is_scaled(type_) ? turned_back(x) : x;
  }
  // The scale of channel d of a stored key.
  double key_scale(uint32_t p, uint32_t d) const {
    return scale(k_[p / kKvBlock], kv_key_code_bytes(type_, key_dim_), p % kKvBlock, d);
  }

  // `seen`: which positions of begin..end count; none: all.
  std::vector<double> exact(const AttentionArgs& a) const {
    std::vector<double> s;
    double most = a.sink ? double{*a.sink} : -1e30;
    const auto sees = [&](uint32_t p) {
      return a.selected == nullptr || (a.selected[p / 64] >> (p % 64) & 1) != 0;
    };
    for (uint32_t p = a.begin; p < a.end; ++p) {
      double dot = 0.0;
      const auto key = stored_key(p);
      for (uint32_t d = 0; d < key_dim_; ++d) dot += double{a.q[d]} * key[d];
      dot *= a.scale;
      if (a.softcap > 0.0f) dot = a.softcap * std::tanh(dot / a.softcap);
      s.push_back(dot);
      if (sees(p)) most = std::max(most, dot);
    }
    double total = a.sink ? std::exp(*a.sink - most) : 0.0;
    std::vector<double> out(value_dim_, 0.0);
    for (uint32_t p = a.begin; p < a.end; ++p) {
      if (!sees(p)) continue;
      const double w = std::exp(s[p - a.begin] - most);
      const auto value = stored_value(p);
      total += w;
      for (uint32_t d = 0; d < value_dim_; ++d) out[d] += w * value[d];
    }
    for (double& x : out) x /= total;
    return out;
  }

 private:
  using Bytes = std::vector<uint8_t>;
  double element(const Bytes& block, uint64_t scales, uint32_t slot, uint32_t channel, uint64_t at,
                 uint64_t half, bool high) const {
    uint16_t narrow = 0;
    float wide = 0.0f;
    switch (type_) {
      case KvType::kF16:
        std::memcpy(&narrow, &block[2 * at], 2);
        return f16_to_f32(narrow);
      case KvType::kF32:
        std::memcpy(&wide, &block[4 * at], 4);
        return wide;
      case KvType::kQ8:
        return static_cast<int8_t>(block[at]) * scale(block, scales, slot, channel);
      case KvType::kQ4:
        return nibble(block[half], high) * scale(block, scales, slot, channel);
    }
    return 0.0;
  }
  static double scale(const Bytes& block, uint64_t scales, uint32_t slot, uint32_t channel) {
    uint16_t narrow = 0;
    std::memcpy(&narrow, &block[scales + 2 * (channel / 32 * kKvBlock + slot)], 2);
    return f16_to_f32(narrow);
  }

  KvType type_;
  uint32_t key_dim_, value_dim_, blocks_;
  std::vector<Bytes> k_, v_;
  std::vector<const void*> k_blocks_, v_blocks_;
  std::vector<std::vector<float>> keys_, values_;
};

constexpr KvType kTypes[] = {KvType::kF16, KvType::kF32, KvType::kQ8, KvType::kQ4};

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
  const std::pair<uint32_t, uint32_t> dims[] = {{8, 8},   {12, 20},   {7, 9},   {64, 64},
                                                {80, 80}, {128, 128}, {96, 72}, {192, 128}};
  for (const auto& [key_dim, value_dim] : dims) {
    for (const KvType type : kTypes) {
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
  for (const KvType type : kTypes) {
    const Cache cache(type, 16, 16, 64, 1);
    const auto q = random_query(16, 2);
    std::vector<float> out;
    for (const Ops* ops : {&scalar_ops(), &tested_ops()}) {
      ops->attention(cache.args(q, 9, 9, out));
      EXPECT_EQ(out, std::vector<float>(16, 0.0f));
    }
  }
}

// The positions after `end` may be written or not, and hold anything.
TEST_P(AttentionOn, LaterPositionsDoNotMatter) {
  for (const KvType type : kTypes) {
    const Cache whole(type, 64, 64, 200, 3), part(type, 64, 64, 70, 3);
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
}

// Any set of spans together gives each query the bits it gets alone.
TEST_P(AttentionOn, GroupHasTheBitsOfEachAlone) {
  std::mt19937 random(11);
  const std::pair<uint32_t, uint32_t> dims[] = {{8, 8}, {12, 20}, {64, 64}, {96, 72}, {80, 48}};
  for (const auto& [key_dim, value_dim] : dims) {
    for (const KvType type : kTypes) {
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

// Attention over a selection: scalar bits, near the exact one, and with everything selected the
// bits of plain attention.
TEST_P(AttentionOn, SelectedHasScalarBits) {
  std::mt19937_64 random(5);
  const std::pair<uint32_t, uint32_t> dims[] = {{12, 20}, {64, 64}, {96, 72}, {80, 48}};
  for (const auto& [key_dim, value_dim] : dims) {
    for (const KvType type : kTypes) {
      const Cache cache(type, key_dim, value_dim, 200, key_dim);
      const auto q = random_query(key_dim, value_dim);
      for (const Span span : {Span{0, 200}, Span{3, 65}, Span{60, 130}}) {
        for (const bool all : {false, true}) {
          uint64_t selected[4];
          for (uint64_t& word : selected) word = all ? ~uint64_t{0} : random() | uint64_t{1} << 62;
          std::vector<float> a, b, plain;
          AttentionArgs args = cache.args(q, span.begin, span.end, a);
          args.selected = selected;
          scalar_ops().attention_selected(args);
          const auto exact = cache.exact(args);
          for (uint32_t d = 0; d < value_dim; ++d) ASSERT_NEAR(a[d], exact[d], 2e-5);
          b.assign(value_dim, -9.0f);
          args.out = b.data();
          tested_ops().attention_selected(args);
          ASSERT_TRUE(same(a, b)) << kv_name(type) << " " << key_dim;
          if (!all) continue;
          scalar_ops().attention(cache.args(q, span.begin, span.end, plain));
          ASSERT_TRUE(same(a, plain)) << kv_name(type) << " " << key_dim;
        }
      }
    }
  }
}

TEST_P(AttentionOn, IndexScoresHaveScalarBits) {
  for (const uint32_t dim : {8u, 20u, 64u, 128u}) {
    for (const KvType type : kTypes) {
      const Cache cache(type, dim, 0, 64, dim);
      constexpr uint32_t kHeads = 3;
      const auto q = random_query(kHeads * dim, 3), weights = random_query(kHeads, 4);
      float a[kKvBlock], b[kKvBlock];
      IndexArgs args;
      args.q = q.data();
      args.weights = weights.data();
      args.heads = kHeads;
      args.dim = dim;
      args.scale = 0.125f;
      args.kv_type = type;
      args.keys = cache.key_block(0);
      args.out = a;
      scalar_ops().index_scores(args);
      args.out = b;
      tested_ops().index_scores(args);
      ASSERT_EQ(std::memcmp(a, b, sizeof a), 0) << kv_name(type) << " " << dim;
      for (uint32_t p = 0; p < kKvBlock; ++p) {
        double score = 0.0;
        const auto key = cache.stored_key(p);
        for (uint32_t h = 0; h < kHeads; ++h) {
          double dot = 0.0;
          for (uint32_t d = 0; d < dim; ++d) dot += double{q[h * dim + d]} * key[d];
          score += double{weights[h]} * std::max(0.0, 0.125 * dot);
        }
        ASSERT_NEAR(a[p], score, 1e-4) << kv_name(type) << " " << dim;
      }
    }
  }
}

// What is stored is near what was given: half a step, in q4 a whole one where 8 would be needed,
// in the turned channels.
TEST(KvTypes, StoredIsNear) {
  for (const uint32_t dim : {7u, 8u, 20u, 64u, 80u, 128u, 256u}) {
    for (const KvType type : kTypes) {
      const Cache cache(type, dim, dim, 70, dim);
      for (uint32_t p = 0; p < 70; ++p) {
        std::vector<double> given(cache.key(p).begin(), cache.key(p).end());
        std::vector<double> stored = cache.stored_key(p);
        if (is_scaled(type)) given = turned(given), stored = turned(stored);
        for (uint32_t d = 0; d < dim; ++d) {
          const double step = type == KvType::kQ8   ? 0.505 * std::abs(cache.key_scale(p, d))
                              : type == KvType::kQ4 ? 1.005 * std::abs(cache.key_scale(p, d))
                                                    : 2e-3 * std::abs(given[d]);
          ASSERT_NEAR(stored[d], given[d], step + 1e-6) << kv_name(type) << " " << dim;
        }
        const auto& value = cache.value(p);
        const auto kept = cache.stored_value(p);
        double error = 0.0, size = 0.0;
        for (uint32_t d = 0; d < dim; ++d) {
          error += (kept[d] - value[d]) * (kept[d] - value[d]);
          size += double{value[d]} * value[d];
        }
        ASSERT_LT(error, size * (type == KvType::kQ4 ? 0.03 : 1e-4)) << kv_name(type) << " " << dim;
      }
    }
  }
}

// A value that is not finite makes all NaN that is turned with it, and no more.
TEST_P(AttentionOn, NotFiniteStaysVisible) {
  for (const KvType type : {KvType::kQ8, KvType::kQ4}) {
    std::vector<float> k(128, 1.0f), v(160, 1.0f);
    k[3] = std::numeric_limits<float>::infinity();
    v[40] = std::numeric_limits<float>::quiet_NaN();
    std::vector<uint8_t> keys(kv_key_bytes(type, 128)), values(kv_value_bytes(type, 160));
    tested_ops().store_kv(type, k.data(), 128, v.data(), 160, 2, keys.data(), values.data());
    const auto is_nan = [&](const std::vector<uint8_t>& block, uint64_t scales, uint32_t group) {
      uint16_t narrow = 0;
      std::memcpy(&narrow, &block[scales + 2 * (group * kKvBlock + 2)], 2);
      return std::isnan(f16_to_f32(narrow));
    };
    // All 128 channels of the key are turned together, of the value 32.
    for (uint32_t g = 0; g < 4; ++g) EXPECT_TRUE(is_nan(keys, kv_key_code_bytes(type, 128), g));
    for (uint32_t g = 0; g < 5; ++g)
      EXPECT_EQ(is_nan(values, kv_value_code_bytes(type, 160), g), g == 1);
  }
}

TEST_P(AttentionOn, StoreKvSameBytes) {
  for (const KvType type : kTypes) {
    for (const uint32_t dim : {7u, 8u, 20u, 64u, 80u, 192u}) {
      std::vector<uint8_t> blocks[2];
      const Ops* ops[2] = {&scalar_ops(), &tested_ops()};
      for (size_t i = 0; i < 2; ++i) {
        blocks[i].assign(2 * kKvBlock * (dim + 32) * 4, 0xee);
        for (uint32_t slot : {0u, 5u, 63u}) {
          auto k = random_query(dim, slot), v = random_query(dim, slot + 100);
          k[0] = 1e6f;  // overflows to infinity in f16
          v[1] = 1e-7f;
          ops[i]->store_kv(type, k.data(), dim, v.data(), dim, slot, blocks[i].data(),
                           blocks[i].data() + kKvBlock * (dim + 32) * 4);
        }
      }
      EXPECT_EQ(blocks[0], blocks[1]);
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
