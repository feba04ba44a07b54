// The recurrent mixers' operations: the same bits on every instruction set, near double, and parts
// of a row the same as the whole.
#include "kernels/recurrent.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "tests/kernels/every_ops.h"

namespace millrace::kernels {
namespace {

using Floats = std::vector<float>;

Floats random_floats(uint64_t n, float spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  Floats x(n);
  for (float& v : x) v = normal(random);
  return x;
}

bool same(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Floats joined(const Floats& a, const Floats& b) {
  Floats all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

class RecurrentOn : public EveryOps {};
INSTANTIATE_TEST_SUITE_P(Kernels, RecurrentOn, testing::ValuesIn(runnable_ops()), ops_name);

TEST_P(RecurrentOn, Multiply) {
  for (const uint32_t n : {1u, 7u, 8u, 19u, 64u}) {
    const Floats x = random_floats(n, 1.0f, n), y = random_floats(n, 1.0f, n + 1);
    const auto run = [&](const Ops& ops) {
      Floats out(n);
      ops.multiply(x.data(), y.data(), n, out.data());
      return out;
    };
    EXPECT_TRUE(same(run(scalar_ops()), run(tested_ops())));
    EXPECT_EQ(run(tested_ops())[n - 1], x[n - 1] * y[n - 1]);
  }
}

TEST_P(RecurrentOn, TimeSteps) {
  for (const uint32_t n : {1u, 4u, 8u, 13u, 64u, 3000u}) {
    Floats x = random_floats(n, 12.0f, n);
    const Floats bias = random_floats(n, 3.0f, n + 1), rate = random_floats(n, 1.0f, n + 2);
    for (const bool logarithm : {true, false}) {
      const auto run = [&](const Ops& ops) {
        Floats dt(n), decay(n);
        DecayArgs args;
        args.x = x.data(), args.bias = bias.data(), args.rate = rate.data();
        args.logarithm = logarithm;
        args.least = 1e-3f, args.most = 20.0f;
        args.n = n;
        args.dt = dt.data(), args.decay = decay.data();
        ops.time_steps(args);
        return joined(dt, decay);
      };
      const Floats got = run(tested_ops());
      EXPECT_TRUE(same(run(scalar_ops()), got));
      for (uint32_t i = 0; i < n; ++i) {
        const double dt =
            std::min(20.0, std::max(1e-3, std::log1p(std::exp(double{x[i] + bias[i]}))));
        EXPECT_NEAR(got[i], dt, 4e-7 * dt);
        const double a = logarithm ? -std::exp(double{rate[i]}) : double{rate[i]};
        const double decay = std::exp(a * dt);
        // exp amplifies the relative error of its argument.
        EXPECT_NEAR(got[n + i], decay, decay * 4e-7 * (2.0 + std::fabs(a) * dt) + 1e-37);
      }
    }
  }
}

TEST_P(RecurrentOn, CausalConvolution) {
  for (const uint32_t channels : {1u, 8u, 13u, 40u}) {
    for (const uint32_t kernel : {1u, 2u, 3u, 4u}) {
      for (const bool silu : {false, true}) {
        constexpr uint32_t kTokens = 6;
        const Floats x = random_floats(kTokens * channels, 1.0f, channels + kernel);
        const Floats w = random_floats(kernel * channels, 1.0f, 7),
                     bias = random_floats(channels, 1.0f, 9);
        // All channels at once, or one by one: the same bits.
        const auto run = [&](const Ops& ops, uint32_t part) {
          Floats out = x, tail((kernel - 1) * channels + 1, 0.0f);
          for (uint32_t t = 0; t < kTokens; ++t) {
            for (uint32_t c = 0; c < channels; c += part) {
              ConvArgs args;
              args.tail = tail.data() + c, args.weight = w.data() + c, args.bias = bias.data() + c;
              args.x = args.out = out.data() + t * channels + c;
              args.kernel = kernel, args.stride = channels, args.silu = silu;
              args.n = std::min(part, channels - c);
              ops.causal_conv(args);
            }
          }
          return joined(out, tail);
        };
        const Floats got = run(tested_ops(), channels);
        EXPECT_TRUE(same(run(scalar_ops(), channels), got));
        EXPECT_TRUE(same(run(tested_ops(), 1), got));
        for (uint32_t t = 0; t < kTokens; ++t) {
          for (uint32_t c = 0; c < channels; ++c) {
            double sum = bias[c];
            for (uint32_t j = 0; j < kernel; ++j) {
              if (t + j + 1 >= kernel)
                sum += double{w[j * channels + c]} * x[(t + j + 1 - kernel) * channels + c];
            }
            const double exact = silu ? sum / (1.0 + std::exp(-sum)) : sum;
            EXPECT_NEAR(got[t * channels + c], exact, 2e-6);
          }
        }
      }
    }
  }
}

TEST_P(RecurrentOn, DeltaRule) {
  for (const uint32_t keys : {1u, 8u, 16u}) {
    for (const uint32_t values : {1u, 8u, 13u, 32u, 61u}) {
      const Floats q = random_floats(keys, 0.3f, 1), k = random_floats(keys, 0.3f, 2),
                   v = random_floats(values, 1.0f, 3), s = random_floats(keys * values, 1.0f, 4);
      const auto run = [&](const Ops& ops) {
        Floats state = s, out(values);
        DeltaArgs args;
        args.state = state.data(), args.q = q.data(), args.k = k.data(), args.v = v.data();
        args.decay = 0.75f, args.beta = 0.4f;
        args.key_dim = keys, args.value_dim = values, args.out = out.data();
        ops.delta_step(args);
        return joined(out, state);
      };
      const Floats got = run(tested_ops());
      EXPECT_TRUE(same(run(scalar_ops()), got));
      for (uint32_t j = 0; j < values; ++j) {
        double memory = 0, y = 0;
        for (uint32_t i = 0; i < keys; ++i) memory += 0.75 * s[i * values + j] * k[i];
        const double u = (v[j] - memory) * 0.4f;
        for (uint32_t i = 0; i < keys; ++i) {
          const double fresh = 0.75 * s[i * values + j] + u * k[i];
          EXPECT_NEAR(got[values + i * values + j], fresh, 2e-6);
          y += fresh * q[i];
        }
        EXPECT_NEAR(got[j], y, 4e-6);
      }
    }
  }
}

TEST_P(RecurrentOn, StateSpaceStep) {
  for (const uint32_t states : {1u, 16u, 33u}) {
    for (const uint32_t dim : {1u, 8u, 13u, 32u, 61u}) {
      const Floats x = random_floats(dim, 1.0f, 1), b = random_floats(states, 1.0f, 2),
                   c = random_floats(states, 0.3f, 3), s = random_floats(states * dim, 1.0f, 4);
      const auto run = [&](const Ops& ops) {
        Floats state = s, out(dim);
        SsmArgs args;
        args.state = state.data(), args.x = x.data(), args.b = b.data(), args.c = c.data();
        args.decay = 0.75f, args.dt = 0.1f, args.skip = 0.5f;
        args.head_dim = dim, args.state_dim = states, args.out = out.data();
        ops.ssm_step(args);
        return joined(out, state);
      };
      const Floats got = run(tested_ops());
      EXPECT_TRUE(same(run(scalar_ops()), got));
      for (uint32_t j = 0; j < dim; ++j) {
        double y = 0.5 * x[j];
        for (uint32_t i = 0; i < states; ++i) {
          const double fresh = 0.75 * s[i * dim + j] + 0.1 * x[j] * b[i];
          EXPECT_NEAR(got[dim + i * dim + j], fresh, 2e-6);
          y += fresh * c[i];
        }
        EXPECT_NEAR(got[j], y, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
