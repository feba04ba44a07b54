// Which experts the next layer will probably fire: its router, applied to this layer's input. Only read
// ahead by it (stream/prefetch.h): what is computed never depends on the guess.
#include <algorithm>

#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

void Forward::Impl::look_ahead(uint32_t layer) {
  constexpr uint32_t kMostRows = 8;  // more rows fire most of what there is
  if (store.prefetch() != stream::PrefetchKind::kRouter || count > kMostRows) return;
  const uint32_t next = layer + 1;
  if (next >= spec.layers.size() || !spec.layers[next].ffn.moe || spec.layers[next].ffn.moe->apart)
    return;
  const std::byte* data = store.peek(ffn[next]);
  if (!data) return;
  const LayerSpec& l = spec.layers[next];
  const MoeSpec& m = *l.ffn.moe;
  const Held held{ffn[next], &table.pieces[ffn[next]], data};
  // Buffers that the experts of this layer have not begun to use.
  RowBuffer in = b.gathered;
  uint32_t slot = 0;
  if (l.ffn_in_norm) {
    norm(b.x, vector(held, Role::kFfnInNorm, &slot), count, in.f32);
  } else {
    std::copy_n(b.x, uint64_t{count} * spec.hidden, in.f32);
  }
  if (quantizes(held, Role::kRouter)) quantize(in, count);
  push(held, Role::kRouter, in.view(count), b.choice, m.experts);
  flush();
  add_bias(b.choice, m.experts, m.experts, count, vector(held, Role::kRouterBias, &slot));
  const float* correction = vector(held, Role::kRouterCorrection, &slot);
  guessed.clear();
  std::vector<uint32_t> best(uint64_t{count} * m.used);
  for (uint32_t r = 0; r < count; ++r) {
    float* scores = b.choice + uint64_t{r} * m.experts;
    if (m.score == RouterScore::kSigmoid) ops.sigmoid(scores, m.experts, scores);
    if (correction) ops.add(scores, correction, m.experts);
    kernels::top_k(scores, m.experts, m.used, best.data() + uint64_t{r} * m.used);
  }
  for (uint32_t rank = 0; rank < m.used; ++rank) {
    for (uint32_t r = 0; r < count; ++r) {
      const uint32_t piece = first_expert[next] + best[uint64_t{r} * m.used + rank];
      if (std::find(guessed.begin(), guessed.end(), piece) == guessed.end())
        guessed.push_back(piece);
    }
  }
  store.suggest(guessed);
}

}  // namespace millrace::model
