// Mamba-2: x, B, C through a convolution, then one decaying matrix a head.
#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

void Forward::Impl::mamba(uint32_t layer, const Held& held, RowBuffer in, bool add) {
  const Mamba2Spec& m = *spec.layers[layer].mamba;
  const uint32_t inner = m.inner(), cols = m.columns(), states = m.groups * m.state_dim;
  push(held, Role::kMixIn, in.view(count), b.mix, cols);
  flush();
  uint32_t slot = 0;
  add_bias(b.mix, cols, cols, count, vector(held, Role::kMixInBias, &slot));
  const std::array<uint32_t, 5> parts = {inner, inner, states, states, m.heads};
  over_rows(count, cols, [&](uint32_t r) {
    float* part = b.mix + uint64_t{r} * cols;
    for (size_t i = 0; i < parts.size(); part += parts[i++]) {
      if (m.in_scale[i] != 1.0f) ops.scale(part, m.in_scale[i], parts[i]);
    }
  });
  convolve(layer, held, m.kernel, m.channels(), true, b.mix + inner, cols);

  slot = 0;
  kernels::DecayArgs decay;
  decay.bias = vector(held, Role::kTimeBias, &slot);
  decay.rate = vector(held, Role::kDecay, &slot);
  decay.logarithm = m.log_decay;
  decay.least = m.least_dt;
  decay.most = m.most_dt;
  decay.n = m.heads;
  for (uint32_t r = 0; r < count; ++r) {
    kernels::DecayArgs own = decay;
    own.x = b.mix + uint64_t{r} * cols + inner + m.channels();
    own.dt = b.dt + uint64_t{r} * m.heads;
    own.decay = b.decay + uint64_t{r} * m.heads;
    ops.time_steps(own);
  }
  const float* skip = vector(held, Role::kSkip, &slot);
  ssm(layer, skip, vector(held, Role::kMixNorm, &slot));
  mixed_output(held, Role::kMixOut, Role::kMixOutBias, inner, m.out_scale, add);
}

// The rows of each sequence in order, each head by itself; then the gate and the norm by group.
void Forward::Impl::ssm(uint32_t layer, const float* skip, const float* norm) {
  const Mamba2Spec& m = *spec.layers[layer].mamba;
  const uint32_t inner = m.inner(), cols = m.columns(), states = m.groups * m.state_dim;
  over_sequences(m.heads, [&](uint32_t s, uint32_t h) {
    kernels::SsmArgs args;
    args.state = sequences[s]->state().data() + kv.places[layer].matrices +
                 uint64_t{h} * m.state_dim * m.head_dim;
    args.head_dim = m.head_dim;
    args.state_dim = m.state_dim;
    args.skip = skip[h];
    for (uint32_t i = row_begin[s]; i < row_begin[s + 1]; ++i) {
      const uint64_t r = row_order[i];
      const float* x = b.mix + r * cols + inner;
      args.x = x + h * m.head_dim;
      args.b = x + inner + h / (m.heads / m.groups) * m.state_dim;
      args.c = args.b + states;
      args.decay = b.decay[r * m.heads + h];
      args.dt = b.dt[r * m.heads + h];
      args.out = b.attended.f32 + r * inner + h * m.head_dim;
      ops.ssm_step(args);
    }
  });
  over_rows(count, uint64_t{inner} * 8, [&](uint32_t r) {
    const float* gate = b.mix + uint64_t{r} * cols;
    float* y = b.attended.f32 + uint64_t{r} * inner;
    const uint32_t group = inner / m.groups;
    const auto by_gate = [&] {
      ops.gated(kernels::Activation::kSilu, gate, y, 0.0f, 0.0f, inner, y);
    };
    if (!m.norm_before_gate) by_gate();
    for (uint32_t g = 0; norm && g < m.groups; ++g) {
      ops.rms_norm(y + g * group, norm + g * group, false, spec.norm_eps, group, y + g * group);
    }
    if (m.norm_before_gate) by_gate();
  });
}

}  // namespace millrace::model
