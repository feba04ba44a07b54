// Gated DeltaNet: q, k, v through a convolution, then the delta rule on one matrix a value head.
#include <cmath>
#include <cstring>

#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

namespace {

// Where a row's parts lie behind its projections [in | z | beta | alpha], for value head h.
struct DeltaRow {
  const DeltaSpec& d;
  uint32_t ratio = d.value_heads / d.key_heads;
  uint32_t inner = d.value_heads * d.value_dim;
  uint32_t in = d.channels() + inner;                           // begin of beta
  uint32_t cols = in + 2 * d.value_heads;                       // of the whole row
  uint32_t key_part = 2 * d.key_dim + 2 * ratio * d.value_dim;  // [q | k | v | z] of a key head

  uint32_t key_head(uint32_t h) const { return d.tiled ? h % d.key_heads : h / ratio; }
  uint32_t gate(uint32_t h) const {
    if (!d.fused_qkvz) return d.channels() + h * d.value_dim;
    return h / ratio * key_part + 2 * d.key_dim + (ratio + h % ratio) * d.value_dim;
  }
  uint32_t beta(uint32_t h) const {
    return in + (d.fused_ba ? h / ratio * 2 * ratio + h % ratio : h);
  }
  uint32_t alpha(uint32_t h) const { return beta(h) + (d.fused_ba ? ratio : d.value_heads); }
};

// [q | k | v | z] by key head to [all q | all k | all v].
void take_apart(const DeltaRow& row, const float* from, float* to) {
  const DeltaSpec& d = row.d;
  const uint32_t keys = d.key_heads * d.key_dim, values = row.ratio * d.value_dim;
  for (uint32_t h = 0; h < d.key_heads; ++h, from += row.key_part) {
    std::memcpy(to + h * d.key_dim, from, d.key_dim * sizeof(float));
    std::memcpy(to + keys + h * d.key_dim, from + d.key_dim, d.key_dim * sizeof(float));
    std::memcpy(to + 2 * keys + h * values, from + 2 * d.key_dim, values * sizeof(float));
  }
}

}  // namespace

void Forward::Impl::gated_delta(uint32_t layer, const Held& held, RowBuffer in) {
  const DeltaSpec& d = *spec.layers[layer].delta;
  const DeltaRow row{d};
  const uint32_t channels = d.channels(), heads = d.value_heads;
  push(held, Role::kMixIn, in.view(count), b.mix, row.cols);
  if (!d.fused_qkvz) push(held, Role::kMixGate, in.view(count), b.mix + channels, row.cols);
  push(held, Role::kMixBeta, in.view(count), b.mix + row.in, row.cols);
  if (!d.fused_ba) push(held, Role::kMixAlpha, in.view(count), b.mix + row.in + heads, row.cols);
  flush();
  over_rows(count, channels, [&](uint32_t r) {
    const float* from = b.mix + uint64_t{r} * row.cols;
    float* to = b.channels + uint64_t{r} * channels;
    if (d.fused_qkvz) {
      take_apart(row, from, to);
    } else {
      std::memcpy(to, from, channels * sizeof(float));
    }
  });
  convolve(layer, held, d.kernel, channels, true, b.channels, channels);

  uint32_t slot = 0;
  kernels::DecayArgs decay;
  decay.bias = vector(held, Role::kTimeBias, &slot);
  decay.rate = vector(held, Role::kDecay, &slot);
  decay.logarithm = d.log_decay;
  decay.n = heads;
  const auto root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d.key_dim)));
  const float epsilon = 1e-6f / static_cast<float>(d.key_dim);  // 1e-6 on the sum of squares
  over_rows(count, uint64_t{channels} * 2, [&](uint32_t r) {
    // q / |q| / sqrt(key_dim) and k / |k|.
    for (uint32_t h = 0; h < 2 * d.key_heads; ++h) {
      float* x = b.channels + uint64_t{r} * channels + h * d.key_dim;
      ops.rms_norm(x, nullptr, false, epsilon, d.key_dim, x);
      ops.scale(x, h < d.key_heads ? root * root : root, d.key_dim);
    }
    // dt first holds alpha, and then, as it is not needed any more, beta.
    const float* from = b.mix + uint64_t{r} * row.cols;
    kernels::DecayArgs own = decay;
    float* alpha = b.dt + uint64_t{r} * heads;
    for (uint32_t h = 0; h < heads; ++h) alpha[h] = from[row.alpha(h)];
    own.x = own.dt = alpha;
    own.decay = b.decay + uint64_t{r} * heads;
    ops.time_steps(own);
    for (uint32_t h = 0; h < heads; ++h) alpha[h] = from[row.beta(h)];
    ops.sigmoid(alpha, heads, alpha);
  });
  delta_rule(layer, vector(held, Role::kMixNorm, &slot));
  mixed_output(held, Role::kMixOut, Role::kMixOutBias, row.inner, 1.0f, false);
}

// The rows of each sequence in order, each value head by itself: rule, norm, gate.
void Forward::Impl::delta_rule(uint32_t layer, const float* norm) {
  const DeltaSpec& d = *spec.layers[layer].delta;
  const DeltaRow row{d};
  const uint32_t channels = d.channels(), keys = d.key_heads * d.key_dim;
  over_sequences(d.value_heads, [&](uint32_t s, uint32_t h) {
    kernels::DeltaArgs args;
    args.state = sequences[s]->state().data() + kv.places[layer].matrices +
                 uint64_t{h} * d.key_dim * d.value_dim;
    args.key_dim = d.key_dim;
    args.value_dim = d.value_dim;
    for (uint32_t i = row_begin[s]; i < row_begin[s + 1]; ++i) {
      const uint64_t r = row_order[i];
      const float* in = b.channels + r * channels;
      args.q = in + row.key_head(h) * d.key_dim;
      args.k = args.q + keys;
      args.v = in + 2 * keys + h * d.value_dim;
      args.decay = b.decay[r * d.value_heads + h];
      args.beta = b.dt[r * d.value_heads + h];
      args.out = b.attended.f32 + r * row.inner + h * d.value_dim;
      ops.delta_step(args);
      ops.rms_norm(args.out, norm, false, spec.norm_eps, d.value_dim, args.out);
      ops.gated(kernels::Activation::kSilu, b.mix + r * row.cols + row.gate(h), args.out, 0.0f,
                0.0f, d.value_dim, args.out);
    }
  });
}

}  // namespace millrace::model
