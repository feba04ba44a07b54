// Gated short convolution: [B | C | x] = in(h); out(C * conv(B * x)).
#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

void Forward::Impl::short_conv(uint32_t layer, const Held& held, RowBuffer in) {
  const ShortConvSpec& c = *spec.layers[layer].conv;
  const uint32_t n = spec.hidden;
  push(held, Role::kMixIn, in.view(count), b.mix, 3 * n);
  flush();
  uint32_t slot = 0;
  add_bias(b.mix, 3 * n, 3 * n, count, vector(held, Role::kMixInBias, &slot));
  over_rows(count, n, [&](uint32_t r) {
    float* row = b.mix + uint64_t{r} * 3 * n;
    ops.multiply(row, row + 2 * n, n, row);
  });
  convolve(layer, held, c.kernel, n, false, b.mix, 3 * n);
  over_rows(count, n, [&](uint32_t r) {
    const float* row = b.mix + uint64_t{r} * 3 * n;
    ops.multiply(row, row + n, n, b.attended.f32 + uint64_t{r} * n);
  });
  mixed_output(held, Role::kMixOut, Role::kMixOutBias, n, 1.0f, false);
}

}  // namespace millrace::model
