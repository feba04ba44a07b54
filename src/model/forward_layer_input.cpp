// Per-layer embeddings: each token has a small vector for every layer, mixed with a projection of
// its embedding, that gates an addition at the layer's end; and the scale of a layer's output.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

// The tokens' rows of the table, and a copy of their embeddings.
Status Forward::Impl::read_layer_table() {
  std::copy_n(b.x, uint64_t{count} * spec.hidden, b.start.f32);
  quantize(b.start, count);
  const auto factor = static_cast<float>(std::sqrt(static_cast<double>(spec.layer_input)));
  const uint64_t cols = spec.layers.size() * spec.layer_input;
  std::vector<uint32_t> order(count);
  for (uint32_t r = 0; r < count; ++r) order[r] = r;
  const auto part_of = [&](uint32_t r) {
    return static_cast<uint32_t>(rows[r].token) / lookup_rows;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t c) { return part_of(a) < part_of(c); });
  std::vector<uint32_t> parts;
  parts.reserve(count);
  for (const uint32_t r : order) {
    if (parts.empty() || parts.back() != lookup[part_of(r)]) parts.push_back(lookup[part_of(r)]);
  }
  std::span<const uint32_t> next = parts;
  for (uint32_t i = 0; i < count;) {
    const uint32_t part = part_of(order[i]);
    store.will_acquire(next);
    next = next.subspan(1);
    MILLRACE_ASSIGN(Held held, hold(lookup[part]));
    const auto& tensor = held.piece->tensors[0];
    for (; i < count && part_of(order[i]) == part; ++i) {
      float* out = b.layer_table + order[i] * cols;
      const auto row = static_cast<uint32_t>(rows[order[i]].token) - held.piece->row_begin;
      format::dequantize_row(tensor.view.layout, held.data + tensor.offset, row, out);
      ops.scale(out, factor, static_cast<uint32_t>(cols));
    }
    let_go(held);
  }
  return {};
}

// x += norm(out(gelu(gate(x)) * p)), where p = (norm(projection(embedding)) + table row) / sqrt(2).
void Forward::Impl::layer_input(uint32_t layer, const Held& held) {
  const uint32_t width = spec.layer_input;
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.hidden)));
  RowBuffer in = b.h;
  std::copy_n(b.x, uint64_t{count} * spec.hidden, in.f32);
  if (quantizes(held, Role::kLayerInGate)) quantize(in, count);
  push(held, Role::kLayerInProjection, b.start.view(count), b.layer_in.f32, width);
  push(held, Role::kLayerInGate, in.view(count), b.layer_gate, width);
  flush();
  over_rows(count, uint64_t{width} * 16, [&](uint32_t r) {
    float* p = b.layer_in.f32 + uint64_t{r} * width;
    ops.scale(p, factor, width);
    ops.rms_norm(p, b.layer_norm, spec.norm == NormKind::kRmsPlusOne, spec.norm_eps, width, p);
    ops.add(p, b.layer_table + (uint64_t{r} * spec.layers.size() + layer) * width, width);
    ops.scale(p, 0.70710678f, width);
    ops.gated(kernels::Activation::kGeluTanh, b.layer_gate + uint64_t{r} * width, p, 0, 0, width,
              p);
  });
  if (quantizes(held, Role::kLayerInOut)) quantize(b.layer_in, count);
  push(held, Role::kLayerInOut, b.layer_in.view(count), b.y, spec.hidden);
  flush();
  uint32_t slot = 0;
  norm(b.y, vector(held, Role::kLayerInOutNorm, &slot), count, b.y, true);
  over_rows(count, spec.hidden, [&](uint32_t r) {
    const uint64_t at = uint64_t{r} * spec.hidden;
    ops.add(b.x + at, b.y + at, spec.hidden);
  });
}

// What follows the feed-forward sublayer of some models.
void Forward::Impl::finish_layer(uint32_t layer, const Held& held) {
  if (spec.layer_input) layer_input(layer, held);
  if (!spec.layers[layer].scaled) return;
  uint32_t slot = 0;
  const float factor = *vector(held, Role::kLayerScale, &slot);
  over_rows(count, spec.hidden,
            [&](uint32_t r) { ops.scale(b.x + uint64_t{r} * spec.hidden, factor, spec.hidden); });
}

}  // namespace millrace::model
