// The recurrent mixers' operations: causal convolution, the gated delta rule, the Mamba-2 step. One
// token at a time; lanes run over channels, so a lane's sums have one fixed order. Included by
// ops_impl.h.
#pragma once

#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

// log(1 + e) for 0 <= e <= 1, as 2 atanh(e / (2 + e)); the series is cut at 1e-8 of the result.
inline F8 log1p_small(F8 e) {
  const F8 s = e / (e + set1(2.0f));
  const F8 z = s * s;
  F8 p = fma(set1(1.0f / 13), z, set1(1.0f / 11));
  p = fma(p, z, set1(1.0f / 9));
  p = fma(p, z, set1(1.0f / 7));
  p = fma(p, z, set1(1.0f / 5));
  p = fma(p, z, set1(1.0f / 3));
  const F8 half = fma(s * z, p, s);
  return half + half;
}

// log(1 + exp(x))
inline F8 softplus(F8 x) { return max(set1(0.0f), x) + log1p_small(exp(negate(abs(x)))); }

void multiply(const float* x, const float* y, uint32_t n, float* out) {
  map(
      n, out, [](F8 a, F8 b) { return a * b; }, x, y);
}

void time_steps(const DecayArgs& a) {
  const F8 least = set1(a.least), most = set1(a.most);
  map(
      a.n, a.dt, [&](F8 x, F8 bias) { return min(most, max(least, softplus(x + bias))); }, a.x,
      a.bias);
  if (a.logarithm) {
    map(
        a.n, a.decay, [](F8 dt, F8 w) { return exp(negate(exp(w) * dt)); },
        static_cast<const float*>(a.dt), a.rate);
  } else {
    map(
        a.n, a.decay, [](F8 dt, F8 w) { return exp(w * dt); }, static_cast<const float*>(a.dt),
        a.rate);
  }
}

// Eight channels at `c`, of which `n` are there.
inline void conv_lanes(const ConvArgs& a, uint32_t c, uint32_t n) {
  const auto get = [&](const float* p) { return n == 8 ? load(p) : load_part(p, n); };
  const auto put = [&](float* p, F8 v) { return n == 8 ? store(p, v) : store_part(p, v, n); };
  const F8 x = get(a.x + c);
  F8 sum = a.bias ? get(a.bias + c) : set1(0.0f);
  float* tail = a.tail + c;
  for (uint32_t j = 0; j + 1 < a.kernel; ++j) {
    const F8 past = get(tail + uint64_t{j} * a.stride);
    sum = fma(get(a.weight + uint64_t{j} * a.stride + c), past, sum);
    if (j > 0) put(tail + uint64_t{j - 1} * a.stride, past);
  }
  sum = fma(get(a.weight + uint64_t{a.kernel - 1} * a.stride + c), x, sum);
  if (a.kernel > 1) put(tail + uint64_t{a.kernel - 2} * a.stride, x);
  put(a.out + c, a.silu ? silu(sum) : sum);
}

void causal_conv(const ConvArgs& a) {
  uint32_t c = 0;
  for (; c + 8 <= a.n; c += 8) conv_lanes(a, c, 8);
  if (c < a.n) conv_lanes(a, c, a.n - c);
}

// kRegisters * 8 columns of the state (or, in the last block, the n < 8 that are left): the state
// is read once for S k and once for the update.
template <int kRegisters>
inline void delta_columns(const DeltaArgs& a, uint32_t c, uint32_t n) {
  const auto get = [&](const float* p) { return n == 8 ? load(p) : load_part(p, n); };
  const auto put = [&](float* p, F8 v) { return n == 8 ? store(p, v) : store_part(p, v, n); };
  F8 u[kRegisters], y[kRegisters];
  for (int i = 0; i < kRegisters; ++i) u[i] = y[i] = set1(0.0f);
  const float* row = a.state + c;
  for (uint32_t d = 0; d < a.key_dim; ++d, row += a.value_dim) {
    const F8 k = set1(a.k[d]);
    for (int i = 0; i < kRegisters; ++i) u[i] = fma(get(row + 8 * i), k, u[i]);
  }
  const F8 decay = set1(a.decay), beta = set1(a.beta);
  for (int i = 0; i < kRegisters; ++i) u[i] = (get(a.v + c + 8 * i) - decay * u[i]) * beta;
  float* to = a.state + c;
  for (uint32_t d = 0; d < a.key_dim; ++d, to += a.value_dim) {
    const F8 k = set1(a.k[d]), q = set1(a.q[d]);
    for (int i = 0; i < kRegisters; ++i) {
      const F8 s = fma(k, u[i], get(to + 8 * i) * decay);
      put(to + 8 * i, s);
      y[i] = fma(s, q, y[i]);
    }
  }
  for (int i = 0; i < kRegisters; ++i) put(a.out + c + 8 * i, y[i]);
}

void delta_step(const DeltaArgs& a) {
  uint32_t c = 0;
  for (; c + 32 <= a.value_dim; c += 32) delta_columns<4>(a, c, 8);
  for (; c + 8 <= a.value_dim; c += 8) delta_columns<1>(a, c, 8);
  if (c < a.value_dim) delta_columns<1>(a, c, a.value_dim - c);
}

template <int kRegisters>
inline void ssm_columns(const SsmArgs& a, uint32_t c, uint32_t n) {
  const auto get = [&](const float* p) { return n == 8 ? load(p) : load_part(p, n); };
  const auto put = [&](float* p, F8 v) { return n == 8 ? store(p, v) : store_part(p, v, n); };
  const F8 decay = set1(a.decay), dt = set1(a.dt), skip = set1(a.skip);
  F8 x[kRegisters], fresh[kRegisters], y[kRegisters];
  for (int i = 0; i < kRegisters; ++i) {
    x[i] = get(a.x + c + 8 * i);
    fresh[i] = x[i] * dt;
    y[i] = set1(0.0f);
  }
  float* row = a.state + c;
  for (uint32_t d = 0; d < a.state_dim; ++d, row += a.head_dim) {
    const F8 in = set1(a.b[d]), out = set1(a.c[d]);
    for (int i = 0; i < kRegisters; ++i) {
      const F8 s = fma(fresh[i], in, get(row + 8 * i) * decay);
      put(row + 8 * i, s);
      y[i] = fma(s, out, y[i]);
    }
  }
  for (int i = 0; i < kRegisters; ++i) put(a.out + c + 8 * i, fma(skip, x[i], y[i]));
}

void ssm_step(const SsmArgs& a) {
  uint32_t c = 0;
  for (; c + 32 <= a.head_dim; c += 32) ssm_columns<4>(a, c, 8);
  for (; c + 8 <= a.head_dim; c += 8) ssm_columns<1>(a, c, 8);
  if (c < a.head_dim) ssm_columns<1>(a, c, a.head_dim - c);
}

}  // namespace
}  // namespace millrace::kernels
