// A mixture of experts: the router's choice, then the experts as the store hands them out, as many at a
// time as are there.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

namespace {

constexpr FeedRoles kSharedRoles = {Role::kSharedGate, Role::kSharedUp, Role::kSharedDown};

// Leaves the scores of the best groups alone and makes the others' -infinity.
void keep_best_groups(const MoeSpec& m, float* scores) {
  const uint32_t size = m.experts / m.groups;
  std::array<float, 256> sums;
  std::array<uint32_t, 256> best;
  for (uint32_t g = 0; g < m.groups; ++g) {
    uint32_t two[2] = {0, 0};
    const uint32_t count = m.group_best ? 1 : std::min(size, 2u);
    kernels::top_k(scores + g * size, size, count, two);
    sums[g] = scores[g * size + two[0]];
    if (count > 1) sums[g] += scores[g * size + two[1]];
  }
  kernels::top_k(sums.data(), m.groups, m.groups_used, best.data());
  std::array<bool, 256> kept = {};
  for (uint32_t j = 0; j < m.groups_used; ++j) kept[best[j]] = true;
  for (uint32_t e = 0; e < m.experts; ++e) {
    if (!kept[e / size]) scores[e] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

// Scores, the chosen experts in rank order, and their weights, for every row.
void Forward::Impl::route(const MoeSpec& m, const Held& held) {
  push(held, Role::kRouter, b.h.view(count), b.router, m.experts);
  flush();
  uint32_t slot = 0;
  add_bias(b.router, m.experts, m.experts, count, vector(held, Role::kRouterBias, &slot));
  const float* correction = vector(held, Role::kRouterCorrection, &slot);
  const float* expert_scale = vector(held, Role::kExpertScale, &slot);
  over_rows(count, uint64_t{m.experts} * 16, [&](uint32_t r) {
    float* scores = b.router + uint64_t{r} * m.experts;
    float* weights = b.weights + uint64_t{r} * m.used;
    uint32_t* chosen = b.chosen + uint64_t{r} * m.used;
    if (m.score == RouterScore::kSoftmax) ops.softmax(scores, m.experts);
    if (m.score == RouterScore::kSigmoid) ops.sigmoid(scores, m.experts, scores);
    const float* choice = scores;
    if (correction || m.groups > 1) {
      float* own = b.choice + uint64_t{r} * m.experts;
      std::memcpy(own, scores, m.experts * sizeof(float));
      if (correction) ops.add(own, correction, m.experts);
      if (m.groups > 1) keep_best_groups(m, own);
      choice = own;
    }
    kernels::top_k(choice, m.experts, m.used, chosen);
    for (uint32_t j = 0; j < m.used; ++j) weights[j] = scores[chosen[j]];
    if (m.score == RouterScore::kSoftmaxSelected) ops.softmax(weights, m.used);
    if (m.normalize) {
      float sum = 0.0f;
      for (uint32_t j = 0; j < m.used; ++j) sum += weights[j];
      sum += m.normalize_eps;
      for (uint32_t j = 0; j < m.used; ++j) weights[j] /= sum;
    }
    if (m.scale != 1.0f) ops.scale(weights, m.scale, m.used);
    for (uint32_t j = 0; expert_scale && j < m.used; ++j) weights[j] *= expert_scale[chosen[j]];
  });
}

// Lists, for each expert that fired, its (row, rank) pairs in row order.
void Forward::Impl::group_by_expert(const MoeSpec& m, uint32_t layer) {
  const uint32_t pairs = count * m.used;
  expert_begin.assign(m.experts + 1, 0);
  for (uint32_t i = 0; i < pairs; ++i) ++expert_begin[b.chosen[i] + 1];
  fired.clear();
  fired_rows.clear();
  most_pairs = 0;
  for (uint32_t e = 0; e < m.experts; ++e) {
    if (expert_begin[e + 1]) {
      fired.push_back(first_expert[layer] + e);
      fired_rows.push_back(expert_begin[e + 1]);
    }
    most_pairs = std::max(most_pairs, expert_begin[e + 1]);
    expert_begin[e + 1] += expert_begin[e];
  }
  expert_rows.resize(pairs);
  place_of_pair.resize(pairs);
  expert_place.assign(expert_begin.begin(), expert_begin.end() - 1);
  for (uint32_t i = 0; i < pairs; ++i) {  // i = row * used + rank
    place_of_pair[i] = expert_place[b.chosen[i]]++;
    expert_rows[place_of_pair[i]] = i / m.used;
  }
}

// Experts that are there: two regions for all of them together.
void Forward::Impl::experts(const MoeSpec& m, const FfnSpec& f, uint32_t layer) {
  const uint64_t cols = b.h.cols, padded = round_up(cols, format::kGroup);
  RowBuffer gate = b.gate;
  gate.cols = m.width;
  uint32_t slot = 0, at = 0;  // at: rows of the buffers in use
  for (const Held& held : batch) {
    const uint32_t e = held.id - first_expert[layer];
    const uint32_t begin = expert_begin[e], n = expert_begin[e + 1] - begin;
    kernels::Rows in = b.h.view(1);
    if (count > 1) {
      const bool wants_int8 = quantizes(held, Role::kGate) || quantizes(held, Role::kUp);
      const bool wants_f32 =
          !quantizes(held, Role::kUp) || (f.gated && !quantizes(held, Role::kGate));
      over_rows(n, cols, [&](uint32_t i) {
        const uint64_t r = expert_rows[begin + i], to = at + i;
        if (wants_f32)
          std::memcpy(b.gathered.f32 + to * cols, b.h.f32 + r * cols, cols * sizeof(float));
        if (!wants_int8) return;
        std::memcpy(b.gathered.q + to * padded, b.h.q + r * padded, padded);
        std::memcpy(b.gathered.scale + to * (padded / 32), b.h.scale + r * (padded / 32),
                    padded / 32 * sizeof(float));
        std::memcpy(b.gathered.sum + to * (padded / 16), b.h.sum + r * (padded / 16),
                    padded / 16 * sizeof(int16_t));
      });
      in = b.gathered.view(n, at);
    }
    push_feed(f, held, {}, in, gate.from(at), b.up + uint64_t{at} * m.width, m.width, &slot);
    at += n;
  }
  flush_feeds();
  at = 0;
  for (const Held& held : batch) {
    const uint32_t e = held.id - first_expert[layer];
    const uint32_t begin = expert_begin[e], n = expert_begin[e + 1] - begin;
    push(held, Role::kDown, gate.view(n, at), b.expert_out + uint64_t{begin} * spec.hidden,
         spec.hidden);
    at += n;
  }
  flush();
  for (const Held& held : batch) {
    const uint32_t e = held.id - first_expert[layer];
    const uint32_t begin = expert_begin[e], n = expert_begin[e + 1] - begin;
    add_bias(b.expert_out + uint64_t{begin} * spec.hidden, spec.hidden, spec.hidden, n,
             vector(held, Role::kDownBias, &slot));
  }
}

// Experts that one more may join: their rows fit the buffers and their converted vectors the slots.
bool Forward::Impl::batch_has_room(uint32_t pairs) const {
  uint32_t converted = 0;
  for (const auto& tensor : batch.front().piece->tensors)
    converted += tensor.view.vector && tensor.view.layout.format != format::WeightFormat::kF32;
  return pairs + most_pairs <= pair_rows(options, extents) &&
         (batch.size() + 1) * converted <= kVectorSlots;
}

// Resident experts first, the others as they arrive; every result keeps its (row, rank) place.
Status Forward::Impl::run_experts(const MoeSpec& m, const FfnSpec& f, uint32_t layer) {
  store.begin_fired(fired, {fired_rows, count});
  look_ahead(layer);
  while (true) {
    batch.clear();
    uint32_t pairs = 0;
    do {
      stream::PieceStore::Fired next;
      MILLRACE_ASSIGN(const bool more, store.next_fired(&next));
      if (!more) break;
      batch.push_back({next.piece, &table.pieces[next.piece], next.data});
      const uint32_t e = next.piece - first_expert[layer];
      pairs += expert_begin[e + 1] - expert_begin[e];
    } while (store.fired_ready() && batch_has_room(pairs));
    if (batch.empty()) return {};
    experts(m, f, layer);
    for (const Held& held : batch) let_go(held);
  }
}

// b.y += shared expert of every row.
void Forward::Impl::shared_expert(const MoeSpec& m, const FfnSpec& f, const Held& held) {
  RowBuffer gate = b.gate;
  gate.cols = m.shared_width;
  uint32_t slot = 0;
  push_feed(f, held, kSharedRoles, b.h.view(count), b.gate, b.up, m.shared_width, &slot);
  flush_feeds();
  push(held, Role::kSharedDown, gate.view(count), b.down, spec.hidden);
  if (m.shared_gate) push(held, Role::kSharedRouter, b.h.view(count), b.shared_gate, 1);
  flush();
  if (m.shared_gate) ops.sigmoid(b.shared_gate, count, b.shared_gate);
  over_rows(count, spec.hidden, [&](uint32_t r) {
    const uint64_t at = uint64_t{r} * spec.hidden;
    ops.add_scaled(b.y + at, b.down + at, m.shared_gate ? b.shared_gate[r] : 1.0f, spec.hidden);
  });
}

// A dense part that stands apart, and the router's own view of x. Leaves the experts' input in b.h.
void Forward::Impl::route_apart(const MoeSpec& m, const FfnSpec& f, const Held& held) {
  const bool int8 = options.activations == kernels::Activations::kInt8;
  const uint64_t bytes = uint64_t{count} * spec.hidden * sizeof(float);
  std::memset(b.y, 0, bytes);
  shared_expert(m, f, held);
  uint32_t slot = 0;
  norm(b.y, vector(held, Role::kSharedOutNorm, &slot), count, b.apart, true);
  const float* scale = vector(held, Role::kRouterScale, &slot);
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.hidden)));
  over_rows(count, spec.hidden, [&](uint32_t r) {
    float* h = b.h.f32 + uint64_t{r} * spec.hidden;
    ops.rms_norm(b.x + uint64_t{r} * spec.hidden, scale, false, spec.norm_eps, spec.hidden, h);
    ops.scale(h, factor, spec.hidden);
  });
  if (int8) quantize(b.h, count);
  route(m, held);
  slot = 0;
  norm_into(b.h, vector(held, Role::kExpertInNorm, &slot), int8);
}

Status Forward::Impl::moe(uint32_t layer) {
  const LayerSpec& l = spec.layers[layer];
  const MoeSpec& m = *l.ffn.moe;
  MILLRACE_ASSIGN(Held held, hold(ffn[layer]));
  uint32_t slot = 0;
  // Experts of a layer share a format, but the router may have another; int8 activations serve
  // whoever takes them.
  const bool int8 = options.activations == kernels::Activations::kInt8;
  if (l.ffn_in_norm) {
    norm_into(b.h, vector(held, Role::kFfnInNorm, &slot), int8);
  } else {
    std::memcpy(b.h.f32, b.x, uint64_t{count} * spec.hidden * sizeof(float));
    if (int8) quantize(b.h, count);
  }
  if (m.apart) {
    route_apart(m, l.ffn, held);
  } else {
    route(m, held);
  }
  if (*on_route) (*on_route)(layer, count, {b.chosen, uint64_t{count} * m.used});
  group_by_expert(m, layer);

  if (Status done = run_experts(m, l.ffn, layer); !done) {
    let_go(held);
    return done;
  }
  over_rows(count, uint64_t{m.used} * spec.hidden, [&](uint32_t r) {
    float* y = b.y + uint64_t{r} * spec.hidden;
    std::memset(y, 0, spec.hidden * sizeof(float));
    for (uint32_t j = 0; j < m.used; ++j) {
      const uint64_t at = uint64_t{r} * m.used + j;
      ops.add_scaled(y, b.expert_out + uint64_t{place_of_pair[at]} * spec.hidden, b.weights[at],
                     spec.hidden);
    }
  });
  slot = 0;
  if (m.apart) {
    norm(b.y, vector(held, Role::kExpertOutNorm, &slot), count, b.y, true);
    over_rows(count, spec.hidden, [&](uint32_t r) {
      ops.add(b.y + uint64_t{r} * spec.hidden, b.apart + uint64_t{r} * spec.hidden, spec.hidden);
    });
  } else if (m.shared_width) {
    shared_expert(m, l.ffn, held);
  }
  finish_ffn(layer, held);
  return {};
}

}  // namespace millrace::model
