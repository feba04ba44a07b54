// The mixer sublayer: norms around whatever mixes a layer's positions, and what the recurrent ones
// share.
#include <algorithm>

#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

Status Forward::Impl::mix(uint32_t layer) {
  const LayerSpec& l = spec.layers[layer];
  MILLRACE_ASSIGN(Held held, hold(mixer[layer]));
  uint32_t slot = 0;
  const auto readers = {Role::kQ,
                        Role::kK,
                        Role::kV,
                        Role::kMixIn,
                        Role::kMixGate,
                        Role::kMixBeta,
                        Role::kMixAlpha,
                        Role::kQDown,
                        Role::kKvDown,
                        Role::kIndexK,
                        Role::kIndexWeights,
                        Role::kAttentionGate};
  const bool quantized =
      std::any_of(readers.begin(), readers.end(), [&](Role r) { return quantizes(held, r); });
  RowBuffer in = b.h;
  if (l.mixer_in_norm) {
    norm_into(b.h, vector(held, Role::kMixerInNorm, &slot), quantized);
  } else {
    in.f32 = b.x;
    if (quantized) quantize(in, count);
  }
  if (l.attention.heads) attention(layer, held, in, false);
  if (l.mla) latent_attention(layer, held, in);
  if (l.conv) short_conv(layer, held, in);
  if (l.delta) gated_delta(layer, held, in);
  if (l.mamba) mamba(layer, held, in, l.attention.heads != 0);
  slot = 0;
  if (l.mixer_out_norm) norm(b.y, vector(held, Role::kMixerOutNorm, &slot), count, b.y, true);
  let_go(held);
  add_residual(b.y);
  return {};
}

// b.y = (b.attended W + bias) * scale, or added to b.y.
void Forward::Impl::mixed_output(const Held& held, Role weight, Role bias, uint32_t cols,
                                 float scale, bool add) {
  RowBuffer mixed = b.attended;
  mixed.cols = cols;
  if (quantizes(held, weight)) quantize(mixed, count);
  float* out = add ? b.h.f32 : b.y;  // the sublayer's input has been read by now
  push(held, weight, mixed.view(count), out, spec.hidden);
  flush();
  uint32_t slot = 0;
  add_bias(out, spec.hidden, spec.hidden, count, vector(held, bias, &slot));
  if (!add && scale == 1.0f) return;
  over_rows(count, spec.hidden, [&](uint32_t r) {
    const uint64_t at = uint64_t{r} * spec.hidden;
    if (add) {
      ops.add_scaled(b.y + at, out + at, scale, spec.hidden);
    } else {
      ops.scale(out + at, scale, spec.hidden);
    }
  });
}

Status Forward::Impl::begin_states() {
  if (kv.state_floats == 0) return {};
  row_order.resize(count);
  row_begin.assign(sequences.size() + 1, 0);
  for (uint32_t r = 0; r < count; ++r) ++row_begin[sequence_of[r] + 1];
  for (size_t s = 0; s < sequences.size(); ++s) row_begin[s + 1] += row_begin[s];
  auto next = row_begin;
  for (uint32_t r = 0; r < count; ++r) {
    const uint32_t s = sequence_of[r];
    const uint32_t expected = sequences[s]->state().position() + (next[s] - row_begin[s]);
    if (rows[r].position != expected) {
      return fail(Code::kInternal, "a row at position {} where the recurrent state wants {}",
                  rows[r].position, expected);
    }
    row_order[next[s]++] = r;
  }
  for (KvSequence* sequence : sequences) sequence->state().begin_advance();
  return {};
}

void Forward::Impl::end_states() {
  if (kv.state_floats == 0) return;
  for (size_t s = 0; s < sequences.size(); ++s) {
    sequences[s]->state().end_advance(rows[row_order[row_begin[s + 1] - 1]].position + 1);
  }
}

// Causal convolution of `channels` of each row, in place at x + row * stride; advances the tails.
void Forward::Impl::convolve(uint32_t layer, const Held& held, uint32_t kernel, uint32_t channels,
                             bool silu, float* x, uint64_t stride) {
  constexpr uint32_t kPart = 512;  // channels of a task
  uint32_t slot = 0;
  const float* weight = vector(held, Role::kConv, &slot);  // [channels, kernel]
  const float* bias = vector(held, Role::kConvBias, &slot);
  over_rows(kernel, channels, [&](uint32_t j) {
    for (uint32_t c = 0; c < channels; ++c)
      b.conv[uint64_t{j} * channels + c] = weight[uint64_t{c} * kernel + j];
  });
  over_sequences((channels + kPart - 1) / kPart, [&](uint32_t s, uint32_t part) {
    kernels::ConvArgs args;
    const uint32_t first = part * kPart;
    args.tail = sequences[s]->state().data() + kv.places[layer].tail + first;
    args.weight = b.conv + first;
    args.bias = bias ? bias + first : nullptr;
    args.kernel = kernel;
    args.stride = channels;
    args.n = std::min(kPart, channels - first);
    args.silu = silu;
    for (uint32_t i = row_begin[s]; i < row_begin[s + 1]; ++i) {
      args.x = args.out = x + row_order[i] * stride + first;
      ops.causal_conv(args);
    }
  });
}

}  // namespace millrace::model
