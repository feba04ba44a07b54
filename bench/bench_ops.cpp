// The operations beside the matrix products (kernels/ops.h), on every instruction set that this
// processor has: one thread, data in cache.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "kernels/ops.h"

namespace millrace::bench {
namespace {

using kernels::AttentionArgs;
using kernels::kKvBlock;
using kernels::KvType;
using kernels::Ops;

std::vector<float> random_floats(uint64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// `queries` heads over the same `positions` keys and values, as one group.
struct AttentionCase {
  const char* name;
  uint32_t queries, key_dim, value_dim, positions;
};

void attention(benchmark::State& state, const Ops* ops, KvType type, const AttentionCase* c) {
  const uint32_t blocks = (c->positions + kKvBlock - 1) / kKvBlock;
  std::vector<std::vector<std::byte>> keys(blocks), values(blocks);
  std::vector<const void*> k(blocks), v(blocks);
  constexpr uint32_t kDifferent = 16;  // blocks, which the others repeat
  for (uint32_t b = 0; b < blocks; ++b) {
    if (b >= kDifferent) {
      keys[b] = keys[b % kDifferent];
      values[b] = values[b % kDifferent];
    } else {
      keys[b].resize(kernels::kv_key_bytes(type, c->key_dim));
      values[b].resize(kernels::kv_value_bytes(type, c->value_dim));
      for (uint32_t p = 0; p < kKvBlock; ++p) {
        const uint32_t seed = b * kKvBlock + p;
        const auto key = random_floats(c->key_dim, seed),
                   value = random_floats(c->value_dim, seed + 1000000);
        ops->store_kv(type, key.data(), c->key_dim, value.data(), c->value_dim, p, keys[b].data(),
                      values[b].data());
      }
    }
    k[b] = keys[b].data();
    v[b] = values[b].data();
  }
  const auto q = random_floats(uint64_t{c->queries} * c->key_dim, 5);
  std::vector<float> out(uint64_t{c->queries} * c->value_dim);
  std::vector<AttentionArgs> args(c->queries);
  for (uint32_t i = 0; i < c->queries; ++i) {
    args[i].q = q.data() + uint64_t{i} * c->key_dim;
    args[i].key_dim = c->key_dim;
    args[i].value_dim = c->value_dim;
    args[i].kv_type = type;
    args[i].k_blocks = k.data();
    args[i].v_blocks = v.data();
    args[i].end = c->positions;
    args[i].scale = 0.09f;
    args[i].out = out.data() + uint64_t{i} * c->value_dim;
  }
  for (auto _ : state) {
    ops->attention_group(args.data(), c->queries);
    benchmark::ClobberMemory();
  }
  const double macs = 1.0 * c->queries * c->positions * (c->key_dim + c->value_dim);
  state.counters["MAC/s"] = benchmark::Counter(macs, benchmark::Counter::kIsIterationInvariantRate);
  const auto bytes = static_cast<double>(blocks * (kernels::kv_key_bytes(type, c->key_dim) +
                                                   kernels::kv_value_bytes(type, c->value_dim)));
  state.counters["KV bytes/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

const AttentionCase kAttention[] = {
    {"attention", 1, 128, 128, 1024},
    {"attention", 2, 128, 128, 1024},
    {"attention", 4, 128, 128, 1024},
    {"attention", 8, 128, 128, 1024},
    // Far more than any cache holds.
    {"attention-deep", 1, 128, 128, 196608},
    {"attention-deep", 2, 128, 128, 196608},
    {"attention-deep", 4, 128, 128, 196608},
    {"attention-deep", 8, 128, 128, 196608},
    // The latent of DeepSeek-V3, for 16 of its 128 heads.
    {"attention-latent", 16, 576, 512, 1024},
};

// Writing the key and value of one position.
void store_kv(benchmark::State& state, const Ops* ops, KvType type) {
  constexpr uint32_t kDim = 128;
  std::vector<std::byte> keys(kernels::kv_key_bytes(type, kDim)),
      values(kernels::kv_value_bytes(type, kDim));
  const auto key = random_floats(kDim, 1), value = random_floats(kDim, 2);
  uint32_t slot = 0;
  for (auto _ : state) {
    ops->store_kv(type, key.data(), kDim, value.data(), kDim, slot, keys.data(), values.data());
    slot = (slot + 1) % kKvBlock;
    benchmark::ClobberMemory();
  }
}

// Operations on one row.
struct RowOp {
  const char* name;
  std::function<void(const Ops&, const float*, const float*, uint32_t, float*)> run;
};

const std::vector<RowOp>& row_ops() {
  static const std::vector<RowOp> ops = {
      {"rms_norm", [](const Ops& o, const float* x, const float* w, uint32_t n,
                      float* out) { o.rms_norm(x, w, false, 1e-5f, n, out); }},
      {"silu_gated",
       [](const Ops& o, const float* x, const float* w, uint32_t n, float* out) {
         o.gated(kernels::Activation::kSilu, x, w, 0.0f, 0.0f, n, out);
       }},
      {"softmax",
       [](const Ops& o, const float* x, const float* w, uint32_t n, float* out) {
         o.multiply(x, w, n, out);
         o.softmax(out, n);
       }},
      {"add_scaled", [](const Ops& o, const float* x, const float*, uint32_t n,
                        float* out) { o.add_scaled(out, x, 1e-3f, n); }},
      {"quantize_row",
       [](const Ops& o, const float* x, const float*, uint32_t n, float* out) {
         auto* codes = reinterpret_cast<int8_t*>(out);
         o.quantize_row(x, n, codes, out + n / 2, reinterpret_cast<int16_t*>(out + 3 * (n / 4)));
       }},
  };
  return ops;
}

void row(benchmark::State& state, const Ops* ops, const RowOp* op, uint32_t n) {
  const auto x = random_floats(n, 1), w = random_floats(n, 2);
  std::vector<float> out(n, 0.0f);
  for (auto _ : state) {
    op->run(*ops, x.data(), w.data(), n, out.data());
    benchmark::ClobberMemory();
  }
  state.counters["elements/s"] =
      benchmark::Counter(n, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  using namespace millrace;
  const Cpu cpu = Cpu::detect();
  for (const kernels::OpsRung& rung : kernels::ops_ladder()) {
    if (!cpu.has(rung.isa)) continue;
    for (const auto type : {kernels::KvType::kF16, kernels::KvType::kQ8, kernels::KvType::kQ4,
                            kernels::KvType::kF32}) {
      for (const auto& c : bench::kAttention) {
        const std::string title = fmt::format("{}/{}/queries:{}/{}", c.name, kernels::kv_name(type),
                                              c.queries, rung.ops->name);
        benchmark::RegisterBenchmark(title.c_str(), bench::attention, rung.ops, type, &c);
      }
      const std::string title =
          fmt::format("store_kv/{}/{}", kernels::kv_name(type), rung.ops->name);
      benchmark::RegisterBenchmark(title.c_str(), bench::store_kv, rung.ops, type);
    }
    for (const bench::RowOp& op : bench::row_ops()) {
      const std::string title = fmt::format("{}/2048/{}", op.name, rung.ops->name);
      benchmark::RegisterBenchmark(title.c_str(), bench::row, rung.ops, &op, 2048u);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
