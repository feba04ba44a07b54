// The feed-forward sublayer: dense, or a mixture of experts read one by one.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

void Forward::Impl::activate(const FfnSpec& f, uint32_t n, uint32_t width) {
  over_rows(n, uint64_t{width} * 8, [&](uint32_t r) {
    float* gate = b.gate.f32 + uint64_t{r} * width;
    const float* up = b.up + uint64_t{r} * width;
    if (!f.gated) return ops.activate(f.act, up, width, gate);
    if (f.gate_scale != 1.0f) ops.scale(gate, f.gate_scale, width);
    ops.gated(f.act, gate, up, f.alpha, f.limit, width, gate);
  });
}

void Forward::Impl::xielu(const FfnSpec& f, const Held& held, uint32_t n, uint32_t width) {
  const auto softplus = [](float x) {
    return static_cast<float>(std::log1p(std::exp(-std::abs(static_cast<double>(x)))) +
                              std::max(static_cast<double>(x), 0.0));
  };
  uint32_t slot = 0;
  const auto parameter = [&](Role role, float fallback) {
    const float* value = vector(held, role, &slot);
    return value ? *value : fallback;
  };
  std::array<float, 4> values = f.xielu_values.value_or(std::array<float, 4>{});
  if (!f.xielu_values) {
    values = {parameter(Role::kActPositive, 0.0f), parameter(Role::kActNegative, 0.0f),
              parameter(Role::kActBeta, 0.5f), parameter(Role::kActEps, -1e-6f)};
  }
  const auto [alpha_positive, alpha_negative, beta, eps] = values;
  const float positive = softplus(alpha_positive), negative = beta + softplus(alpha_negative);
  over_rows(n, uint64_t{width} * 8, [&](uint32_t r) {
    ops.xielu(b.up + uint64_t{r} * width, positive, negative, beta, eps, width,
              b.gate.f32 + uint64_t{r} * width);
  });
}

Status Forward::Impl::dense(uint32_t layer) {
  const LayerSpec& l = spec.layers[layer];
  const uint32_t width = l.ffn.width;
  MILLRACE_ASSIGN(Held held, hold(ffn[layer]));
  uint32_t slot = 0;
  RowBuffer in = b.h;
  if (l.ffn_in_norm) {
    norm(b.x, vector(held, Role::kFfnInNorm, &slot), count, b.h.f32);
  } else {
    in.f32 = b.x;
  }
  if (quantizes(held, Role::kGate) || quantizes(held, Role::kUp)) quantize(in, count);
  RowBuffer gate = b.gate;
  gate.cols = width;
  if (l.ffn.gated) push(held, Role::kGate, in.view(count), gate.f32, width);
  push(held, Role::kUp, in.view(count), b.up, width);
  flush();
  add_bias(gate.f32, width, width, count, vector(held, Role::kGateBias, &slot));
  add_bias(b.up, width, width, count, vector(held, Role::kUpBias, &slot));
  if (l.ffn.xielu) {
    xielu(l.ffn, held, count, width);
  } else {
    activate(l.ffn, count, width);
  }
  if (quantizes(held, Role::kDown)) quantize(gate, count);
  push(held, Role::kDown, gate.view(count), b.y, spec.hidden);
  flush();
  add_bias(b.y, spec.hidden, spec.hidden, count, vector(held, Role::kDownBias, &slot));
  if (l.ffn.out_scale != 1.0f) ops.scale(b.y, l.ffn.out_scale, count * spec.hidden);
  if (l.ffn_out_norm) norm(b.y, vector(held, Role::kFfnOutNorm, &slot), count, b.y, true);
  add_residual(b.y);
  finish_layer(layer, held);
  let_go(held);
  return {};
}

namespace {

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
  for (uint32_t e = 0; e < m.experts; ++e) {
    if (expert_begin[e + 1]) fired.push_back(first_expert[layer] + e);
    expert_begin[e + 1] += expert_begin[e];
  }
  expert_rows.resize(pairs);
  expert_place.assign(expert_begin.begin(), expert_begin.end() - 1);
  for (uint32_t i = 0; i < pairs; ++i)
    expert_rows[expert_place[b.chosen[i]]++] = i;  // i = row * used + rank
}

void Forward::Impl::expert(const MoeSpec& m, const FfnSpec& f, const Held& held, uint32_t e) {
  const uint32_t begin = expert_begin[e], n = expert_begin[e + 1] - begin;
  const bool quantized = quantizes(held, Role::kGate) || quantizes(held, Role::kUp);
  kernels::Rows in;
  if (count == 1) {
    in = b.h.view(1);
  } else {
    const uint64_t cols = b.h.cols, padded = round_up(cols, format::kGroup);
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t r = expert_rows[begin + i] / m.used;
      std::memcpy(b.gathered.f32 + i * cols, b.h.f32 + r * cols, cols * sizeof(float));
      if (!quantized) continue;
      std::memcpy(b.gathered.q + i * padded, b.h.q + r * padded, padded);
      std::memcpy(b.gathered.scale + i * (padded / 32), b.h.scale + r * (padded / 32),
                  padded / 32 * sizeof(float));
      std::memcpy(b.gathered.sum + i * (padded / 16), b.h.sum + r * (padded / 16),
                  padded / 16 * sizeof(int16_t));
    }
    in = b.gathered.view(n);
  }
  uint32_t slot = 0;
  RowBuffer gate = b.gate;
  gate.cols = m.width;
  if (f.gated) push(held, Role::kGate, in, gate.f32, m.width);
  push(held, Role::kUp, in, b.up, m.width);
  flush();
  add_bias(gate.f32, m.width, m.width, n, vector(held, Role::kGateBias, &slot));
  add_bias(b.up, m.width, m.width, n, vector(held, Role::kUpBias, &slot));
  activate(f, n, m.width);
  if (quantizes(held, Role::kDown)) quantize(gate, n);
  // A single row's results lie where they belong; others are spread to their (row, rank).
  float* out = n == 1 ? b.expert_out + uint64_t{expert_rows[begin]} * spec.hidden : b.down;
  push(held, Role::kDown, gate.view(n), out, spec.hidden);
  flush();
  add_bias(out, spec.hidden, spec.hidden, n, vector(held, Role::kDownBias, &slot));
  if (n == 1) return;
  for (uint32_t i = 0; i < n; ++i) {
    std::memcpy(b.expert_out + uint64_t{expert_rows[begin + i]} * spec.hidden,
                b.down + uint64_t{i} * spec.hidden, spec.hidden * sizeof(float));
  }
}

// b.y += shared expert of every row.
void Forward::Impl::shared_expert(const MoeSpec& m, const FfnSpec& f, const Held& held) {
  RowBuffer gate = b.gate;
  gate.cols = m.shared_width;
  if (f.gated) push(held, Role::kSharedGate, b.h.view(count), gate.f32, m.shared_width);
  push(held, Role::kSharedUp, b.h.view(count), b.up, m.shared_width);
  if (m.shared_gate) push(held, Role::kSharedRouter, b.h.view(count), b.shared_gate, 1);
  flush();
  activate(f, count, m.shared_width);
  if (quantizes(held, Role::kSharedDown)) quantize(gate, count);
  push(held, Role::kSharedDown, gate.view(count), b.down, spec.hidden);
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
  norm(b.x, vector(held, Role::kExpertInNorm, &slot), count, b.h.f32);
  if (int8) quantize(b.h, count);
}

Status Forward::Impl::moe(uint32_t layer) {
  const LayerSpec& l = spec.layers[layer];
  const MoeSpec& m = *l.ffn.moe;
  MILLRACE_ASSIGN(Held held, hold(ffn[layer]));
  uint32_t slot = 0;
  RowBuffer in = b.h;
  if (l.ffn_in_norm) {
    norm(b.x, vector(held, Role::kFfnInNorm, &slot), count, b.h.f32);
  } else {
    std::memcpy(b.h.f32, b.x, uint64_t{count} * spec.hidden * sizeof(float));
  }
  // Experts of a layer share a format, but the router may have another; int8 activations serve
  // whoever takes them.
  if (options.activations == kernels::Activations::kInt8) quantize(in, count);
  if (m.apart) {
    route_apart(m, l.ffn, held);
  } else {
    route(m, held);
  }
  if (*on_route) (*on_route)(layer, count, {b.chosen, uint64_t{count} * m.used});
  group_by_expert(m, layer);

  // Resident experts first, the others as they arrive; every result keeps its (row, rank) place.
  store.begin_fired(fired);
  stream::PieceStore::Fired next;
  while (true) {
    auto more = store.next_fired(&next);
    if (!more) {
      let_go(held);
      return tl::make_unexpected(std::move(more.error()));
    }
    if (!*more) break;
    const Held expert_held{next.piece, &table.pieces[next.piece], next.data};
    expert(m, l.ffn, expert_held, next.piece - first_expert[layer]);
    store.release(next.piece);
  }
  over_rows(count, uint64_t{m.used} * spec.hidden, [&](uint32_t r) {
    float* y = b.y + uint64_t{r} * spec.hidden;
    std::memset(y, 0, spec.hidden * sizeof(float));
    for (uint32_t j = 0; j < m.used; ++j) {
      const uint64_t at = uint64_t{r} * m.used + j;
      ops.add_scaled(y, b.expert_out + at * spec.hidden, b.weights[at], spec.hidden);
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
  if (l.ffn_out_norm) norm(b.y, vector(held, Role::kFfnOutNorm, &slot), count, b.y, true);
  add_residual(b.y);
  finish_layer(layer, held);
  let_go(held);
  return {};
}

}  // namespace millrace::model
