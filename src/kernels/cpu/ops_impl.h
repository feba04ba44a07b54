// The operations of kernels/ops.h, compiled once per instruction set: included after a vec_*.h and
// ops_math.h, everything local to the including file.
#pragma once

#include "kernels/cpu/attention_impl.h"
#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

// The first n (< 8) floats, the other lanes 0.
inline F8 load_part(const float* p, uint32_t n) {
  float t[8] = {};
  for (uint32_t i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
}
inline void store_part(float* p, F8 a, uint32_t n) {
  float t[8];
  store(t, a);
  for (uint32_t i = 0; i < n; ++i) p[i] = t[i];
}

// out[i] = f(in[i]...) over n elements; lanes past the end hold 0.
template <class F, class... In>
inline void map(uint32_t n, float* out, F f, const In*... in) {
  uint32_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, f(load(in + i)...));
  if (i < n) store_part(out + i, f(load_part(in + i, n - i)...), n - i);
}

// Sum of f(x[i], partial) in 16 partial sums. f must leave the partial as it is for a lane of zeros
// or mask the lanes itself: it is given the index of the first lane.
template <class F>
inline float reduce(const float* x, uint32_t n, F f) {
  F8 low = set1(0.0f), high = set1(0.0f);
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    low = f(load(x + i), low, i);
    high = f(load(x + i + 8), high, i + 8);
  }
  if (i + 8 <= n) {
    low = f(load(x + i), low, i);
    i += 8;
    if (i < n) high = f(load_part(x + i, n - i), high, i);
  } else if (i < n) {
    low = f(load_part(x + i, n - i), low, i);
  }
  return sum(low + high);
}

void rms_norm(const float* x, const float* w, bool plus_one, float eps, uint32_t n, float* y) {
  const float squares = reduce(x, n, [](F8 v, F8 acc, uint32_t) { return fma(v, v, acc); });
  const F8 inverse = set1(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  const F8 one = set1(1.0f);
  if (w == nullptr) {
    map(
        n, y, [&](F8 v) { return v * inverse; }, x);
  } else if (plus_one) {
    map(
        n, y, [&](F8 v, F8 g) { return (v * inverse) * (g + one); }, x, w);
  } else {
    map(
        n, y, [&](F8 v, F8 g) { return (v * inverse) * g; }, x, w);
  }
}

void layer_norm(const float* x, const float* w, const float* b, float eps, uint32_t n, float* y) {
  const auto count = static_cast<float>(n);
  const F8 mean = set1(reduce(x, n, [](F8 v, F8 acc, uint32_t) { return acc + v; }) / count);
  const float squares = reduce(x, n, [&](F8 v, F8 acc, uint32_t i) {
    const F8 d = v - mean;
    const I8 left = iset1(static_cast<int32_t>(n - i));
    return if_less(lane_numbers(), left, fma(d, d, acc), acc);
  });
  const F8 inverse = set1(1.0f / __builtin_sqrtf(squares / count + eps));
  map(
      n, y, [&](F8 v) { return (v - mean) * inverse; }, x);
  if (w)
    map(
        n, y, [](F8 v, F8 g) { return v * g; }, static_cast<const float*>(y), w);
  if (b)
    map(
        n, y, [](F8 v, F8 g) { return v + g; }, static_cast<const float*>(y), b);
}

void add(float* x, const float* y, uint32_t n) {
  map(
      n, x, [](F8 a, F8 b) { return a + b; }, static_cast<const float*>(x), y);
}

void add_scaled(float* x, const float* y, float s, uint32_t n) {
  const F8 k = set1(s);
  map(
      n, x, [&](F8 a, F8 b) { return fma(k, b, a); }, static_cast<const float*>(x), y);
}

void scale(float* x, float s, uint32_t n) {
  const F8 k = set1(s);
  map(
      n, x, [&](F8 a) { return a * k; }, static_cast<const float*>(x));
}

void gated(Activation act, const float* gate, const float* up, float alpha, float limit, uint32_t n,
           float* out) {
  switch (act) {
    case Activation::kSilu:
      return map(
          n, out, [](F8 g, F8 u) { return silu(g) * u; }, gate, up);
    case Activation::kGeluTanh:
      return map(
          n, out, [](F8 g, F8 u) { return gelu_tanh(g) * u; }, gate, up);
    case Activation::kGeluErf:
      return map(
          n, out, [](F8 g, F8 u) { return gelu_erf(g) * u; }, gate, up);
    case Activation::kRelu2:
      return map(
          n, out, [](F8 g, F8 u) { return relu2(g) * u; }, gate, up);
    case Activation::kSwigluOai: {
      const F8 most = set1(limit), least = set1(-limit), slope = set1(alpha), one = set1(1.0f);
      return map(
          n, out,
          [&](F8 g, F8 u) {
            g = min(most, g);
            u = max(least, min(most, u));
            return (g * sigmoid(slope * g)) * (u + one);
          },
          gate, up);
    }
  }
}

void activate(Activation act, const float* x, uint32_t n, float* out) {
  switch (act) {
    case Activation::kSilu:
      return map(
          n, out, [](F8 v) { return silu(v); }, x);
    case Activation::kGeluTanh:
      return map(
          n, out, [](F8 v) { return gelu_tanh(v); }, x);
    case Activation::kGeluErf:
      return map(
          n, out, [](F8 v) { return gelu_erf(v); }, x);
    case Activation::kRelu2:
      return map(
          n, out, [](F8 v) { return relu2(v); }, x);
    case Activation::kSwigluOai:
      return;  // gated only
  }
}

void xielu(const float* x, float positive, float negative, float beta, float eps, uint32_t n,
           float* out) {
  const F8 p = set1(positive), q = set1(negative), b = set1(beta), least = set1(eps);
  map(
      n, out,
      [&](F8 v) {
        const F8 m = min(least, v);
        const F8 curve = expm1_minus(m) + (m - v);
        return if_less(set1(0.0f), v, fma(p * v, v, b * v), fma(curve, q, b * v));
      },
      x);
}

void sigmoid_row(const float* x, uint32_t n, float* out) {
  map(
      n, out, [](F8 v) { return sigmoid(v); }, x);
}

void softmax(float* x, uint32_t n) {
  if (n == 0) return;
  float most = x[0];
  for (uint32_t i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
  const F8 top = set1(most);
  map(
      n, x, [&](F8 v) { return exp(v - top); }, static_cast<const float*>(x));
  const F8 total = set1(reduce(x, n, [](F8 v, F8 acc, uint32_t) { return acc + v; }));
  map(
      n, x, [&](F8 v) { return v / total; }, static_cast<const float*>(x));
}

void softcap(float* x, float cap, uint32_t n) {
  const F8 c = set1(cap);
  map(
      n, x, [&](F8 v) { return c * tanh(v / c); }, static_cast<const float*>(x));
}

void rope(float* x, const float* cos, const float* sin, uint32_t dims, bool interleaved) {
  const uint32_t pairs = dims / 2;
  uint32_t j = 0;
  if (!interleaved) {
    for (; j + 8 <= pairs; j += 8) {
      const F8 a = load(x + j), b = load(x + pairs + j), c = load(cos + j), s = load(sin + j);
      store(x + j, fma(a, c, negate(b * s)));
      store(x + pairs + j, fma(b, c, a * s));
    }
  }
  for (; j < pairs; ++j) {
    float* first = x + (interleaved ? 2 * j : j);
    float* second = interleaved ? first + 1 : first + pairs;
    const float a = *first, b = *second;
    *first = fma1(a, cos[j], -(b * sin[j]));
    *second = fma1(b, cos[j], a * sin[j]);
  }
}

// In double: the reduction and the polynomials (Taylor, error below 1e-13 on [-pi/4, pi/4]) are
// then far below half an ulp of the float result.
void rope_table(float position, const float* inv_freq, float factor, uint32_t pairs, float* cos,
                float* sin) {
  constexpr double kRoundDouble = 6755399441055744.0;  // 1.5 * 2^52
  for (uint32_t j = 0; j < pairs; ++j) {
    const float product = position * inv_freq[j];
    const auto angle = static_cast<double>(product);
    const double shifted = __builtin_fma(angle, 0x1.45f306dc9c883p-1, kRoundDouble);
    const double n = shifted - kRoundDouble;
    double r = __builtin_fma(n, -0x1.921fb54442d18p+0, angle);  // pi / 2 in two parts
    r = __builtin_fma(n, -0x1.1a62633145c07p-54, r);
    const double z = r * r;
    double s = 1.0 / 6227020800.0;
    s = __builtin_fma(s, z, -1.0 / 39916800.0);
    s = __builtin_fma(s, z, 1.0 / 362880.0);
    s = __builtin_fma(s, z, -1.0 / 5040.0);
    s = __builtin_fma(s, z, 1.0 / 120.0);
    s = __builtin_fma(s, z, -1.0 / 6.0);
    s = __builtin_fma(s * z, r, r);
    double c = -1.0 / 87178291200.0;
    c = __builtin_fma(c, z, 1.0 / 479001600.0);
    c = __builtin_fma(c, z, -1.0 / 3628800.0);
    c = __builtin_fma(c, z, 1.0 / 40320.0);
    c = __builtin_fma(c, z, -1.0 / 720.0);
    c = __builtin_fma(c, z, 1.0 / 24.0);
    c = __builtin_fma(c, z, -0.5);
    c = __builtin_fma(c, z, 1.0);
    const uint64_t quadrant = __builtin_bit_cast(uint64_t, shifted) & 3u;
    const double cos_abs = quadrant & 1u ? s : c;
    const double sin_abs = quadrant & 1u ? c : s;
    const auto cosine = static_cast<float>(quadrant == 1 || quadrant == 2 ? -cos_abs : cos_abs);
    const auto sine = static_cast<float>(quadrant & 2u ? -sin_abs : sin_abs);
    cos[j] = cosine * factor;
    sin[j] = sine * factor;
  }
}

void quantize_row_impl(const float* x, uint32_t cols, int8_t* q, float* scales, int16_t* sums) {
  constexpr int32_t kInfinity = 0x7f800000;
  constexpr int32_t kTiny = 0x04800000;  // 2^-118: 127 / amax is finite above it
  for (uint32_t g = 0; g < cols / 32; ++g, x += 32, q += 32, sums += 2) {
    const F8 v[4] = {load(x), load(x + 8), load(x + 16), load(x + 24)};
    // Magnitudes order like their bits, with NaN above infinity.
    const I8 magnitude =
        imax(imax(bits(abs(v[0])), bits(abs(v[1]))), imax(bits(abs(v[2])), bits(abs(v[3]))));
    const int32_t most = imax_lane(magnitude);
    if (most < kTiny || most >= kInfinity) {
      const int32_t special = most >= kInfinity ? 0x7fc00000 : 0;
      scales[g] = __builtin_bit_cast(float, special);
      for (int i = 0; i < 32; ++i) q[i] = 0;
      sums[0] = sums[1] = 0;
      continue;
    }
    const float amax = __builtin_bit_cast(float, most);
    const F8 inverse = set1(127.0f / amax);
    I8 codes[4];
    for (int i = 0; i < 4; ++i) {
      const I8 code = bits(v[i] * inverse + set1(kRound)) - bits(set1(kRound));
      codes[i] = imax(imin(code, iset1(127)), iset1(-127));
    }
    store_i8(q, codes);
    scales[g] = amax / 127.0f;
    sums[0] = static_cast<int16_t>(isum(codes[0] + codes[1]));
    sums[1] = static_cast<int16_t>(isum(codes[2] + codes[3]));
  }
}

void f16_row(const uint16_t* x, uint64_t n, float* y) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) store(y + i, load_f16(x + i));
  if (i == n) return;
  uint16_t part[8] = {};
  for (uint64_t j = i; j < n; ++j) part[j - i] = x[j];
  store_part(y + i, load_f16(part), static_cast<uint32_t>(n - i));
}

void bf16_row(const uint16_t* x, uint64_t n, float* y) {
  uint64_t i = 0;
  for (; i + 8 <= n; i += 8) store(y + i, load_bf16(x + i));
  if (i == n) return;
  uint16_t part[8] = {};
  for (uint64_t j = i; j < n; ++j) part[j - i] = x[j];
  store_part(y + i, load_bf16(part), static_cast<uint32_t>(n - i));
}

}  // namespace
}  // namespace millrace::kernels

#include "kernels/cpu/recurrent_impl.h"
#include "kernels/cpu/selected_impl.h"

namespace millrace::kernels {
namespace {

constexpr Ops make_ops(const char* name) {
  return {name,
          rms_norm,
          layer_norm,
          add,
          add_scaled,
          scale,
          gated,
          activate,
          sigmoid_row,
          softmax,
          softcap,
          rope,
          rope_table,
          store_kv,
          attention,
          attention_group,
          attention_selected,
          index_scores,
          xielu,
          quantize_row_impl,
          f16_row,
          bf16_row,
          multiply,
          time_steps,
          causal_conv,
          delta_step,
          ssm_step};
}

}  // namespace
}  // namespace millrace::kernels
