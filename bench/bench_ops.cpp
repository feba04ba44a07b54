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

// `queries` heads over the same `positions` keys and values of 128 dims, as one group.
void attention(benchmark::State& state, const Ops* ops, KvType type, uint32_t queries,
               uint32_t positions) {
  constexpr uint32_t kDim = 128;
  const uint32_t blocks = (positions + kKvBlock - 1) / kKvBlock;
  const uint64_t block_bytes = uint64_t{kKvBlock} * kDim * (type == KvType::kF16 ? 2 : 4);
  std::vector<std::vector<std::byte>> keys(blocks), values(blocks);
  std::vector<const void*> k(blocks), v(blocks);
  for (uint32_t b = 0; b < blocks; ++b) {
    keys[b].resize(block_bytes);
    values[b].resize(block_bytes);
    k[b] = keys[b].data();
    v[b] = values[b].data();
  }
  for (uint32_t p = 0; p < positions; ++p) {
    const auto key = random_floats(kDim, p), value = random_floats(kDim, p + 1000000);
    ops->store_kv(type, key.data(), kDim, value.data(), kDim, p % kKvBlock,
                  keys[p / kKvBlock].data(), values[p / kKvBlock].data());
  }
  const auto q = random_floats(uint64_t{queries} * kDim, 5);
  std::vector<float> out(uint64_t{queries} * kDim);
  std::vector<AttentionArgs> args(queries);
  for (uint32_t i = 0; i < queries; ++i) {
    args[i].q = q.data() + uint64_t{i} * kDim;
    args[i].key_dim = args[i].value_dim = kDim;
    args[i].kv_type = type;
    args[i].k_blocks = k.data();
    args[i].v_blocks = v.data();
    args[i].end = positions;
    args[i].scale = 0.09f;
    args[i].out = out.data() + uint64_t{i} * kDim;
  }
  for (auto _ : state) {
    ops->attention_group(args.data(), queries);
    benchmark::ClobberMemory();
  }
  state.counters["MAC/s"] = benchmark::Counter(2.0 * queries * positions * kDim,
                                               benchmark::Counter::kIsIterationInvariantRate);
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
    for (const uint32_t queries : {1u, 4u, 8u}) {
      for (const auto type : {kernels::KvType::kF16, kernels::KvType::kF32}) {
        const char* kv = type == kernels::KvType::kF16 ? "f16" : "f32";
        const std::string title =
            fmt::format("attention/{}/queries:{}/{}", kv, queries, rung.ops->name);
        benchmark::RegisterBenchmark(title.c_str(), bench::attention, rung.ops, type, queries,
                                     1024u);
      }
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
