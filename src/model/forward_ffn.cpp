// Feed-forward sublayers: what a dense one and each expert share, and the dense one.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/numeric.h"
#include "model/forward_impl.h"

namespace millrace::model {

using format::Role;

namespace {

constexpr uint32_t kTilesOfGroup = format::kGroup / format::kTileRows;

// Two curvatures, beta and eps of xIELU: of the file, else of the spec.
std::array<float, 4> xielu_values(const FfnSpec& f, const float* positive, const float* negative,
                                  const float* beta, const float* eps) {
  const auto softplus = [](float x) {
    return static_cast<float>(std::log1p(std::exp(-std::abs(static_cast<double>(x)))) +
                              std::max(static_cast<double>(x), 0.0));
  };
  std::array<float, 4> v = f.xielu_values.value_or(
      std::array<float, 4>{positive ? *positive : 0.0f, negative ? *negative : 0.0f,
                           beta ? *beta : 0.5f, eps ? *eps : -1e-6f});
  v[0] = softplus(v[0]);
  v[1] = v[2] + softplus(v[1]);
  return v;
}

}  // namespace

void Forward::Impl::push_feed(const FfnSpec& f, const Held& held, const FeedRoles& roles,
                              const kernels::Rows& in, RowBuffer out, float* up, uint32_t width,
                              uint32_t* slot) {
  out.cols = width;
  Feed feed;
  feed.ffn = &f;
  feed.out = out;
  if (f.gated) feed.gate = make_job(held, roles.gate, in, out.f32, width);
  feed.up = make_job(held, roles.up, in, up, width);
  feed.gate_bias = vector(held, roles.gate_bias, slot);
  feed.up_bias = vector(held, roles.up_bias, slot);
  feed.quantize = quantizes(held, roles.down);
  if (f.xielu) {
    feed.xielu = xielu_values(
        f, vector(held, Role::kActPositive, slot), vector(held, Role::kActNegative, slot),
        vector(held, Role::kActBeta, slot), vector(held, Role::kActEps, slot));
  }
  feeds.push_back(feed);
}

// Columns [begin, end) of what both products left; `begin` is the start of a group.
void Forward::Impl::finish_feed(const Feed& feed, uint32_t begin, uint32_t end) const {
  const FfnSpec& f = *feed.ffn;
  const uint64_t width = feed.out.cols, padded = round_up(width, format::kGroup);
  const uint32_t n = end - begin;
  for (uint32_t r = 0; r < feed.up.args.rows.count; ++r) {
    float* up = feed.up.args.out + r * width + begin;
    float* out = feed.out.f32 + r * width + begin;
    if (feed.up_bias) ops.add(up, feed.up_bias + begin, n);
    if (f.gated) {
      if (feed.gate_bias) ops.add(out, feed.gate_bias + begin, n);
      if (f.gate_scale != 1.0f) ops.scale(out, f.gate_scale, n);
      ops.gated(f.act, out, up, f.alpha, f.limit, n, out);
    } else if (f.xielu) {
      const auto [positive, negative, beta, eps] = feed.xielu;
      ops.xielu(up, positive, negative, beta, eps, n, out);
    } else {
      ops.activate(f.act, up, n, out);
    }
    if (!feed.quantize) continue;
    ops.quantize_row(out, n, feed.out.q + r * padded + begin,
                     feed.out.scale + r * (padded / 32) + begin / 32,
                     feed.out.sum + r * (padded / 16) + begin / 16);
  }
}

// A thread that has a range of gate and up goes on with its activations while they are in its cache:
// one region for all, where products, activation and quantization would be three.
void Forward::Impl::flush_feeds() {
  const auto groups_of = [](const Feed& feed) {
    return (uint64_t{feed.out.cols} + format::kGroup - 1) / format::kGroup;
  };
  uint64_t groups = 0, bytes = 0;
  for (const Feed& feed : feeds) {
    groups += groups_of(feed);
    for (const Job* job : {&feed.gate, &feed.up}) {
      if (job->kernel)
        bytes += format::tile_bytes(job->args.weight.layout) * uint64_t{job->args.tile_end};
    }
  }
  threads.parallel(groups, grain(groups, bytes), [&](uint64_t begin, uint64_t end, unsigned) {
    uint64_t at = 0;
    for (const Feed& feed : feeds) {
      const uint64_t n = groups_of(feed);
      if (begin < at + n && end > at) {
        const auto first = static_cast<uint32_t>(begin > at ? begin - at : 0);
        const auto last = static_cast<uint32_t>(std::min(end - at, n));
        for (const Job* job : {&feed.gate, &feed.up}) {
          if (!job->kernel) continue;
          kernels::MatmulArgs part = job->args;
          part.tile_begin = first * kTilesOfGroup;
          part.tile_end = std::min(last * kTilesOfGroup, job->args.tile_end);
          job->kernel->run(part);
        }
        finish_feed(feed, first * format::kGroup, std::min(last * format::kGroup, feed.out.cols));
      }
      at += n;
    }
  });
  feeds.clear();
}

Status Forward::Impl::dense(uint32_t layer) {
  const LayerSpec& l = spec.layers[layer];
  const uint32_t width = l.ffn.width;
  MILLRACE_ASSIGN(Held held, hold(ffn[layer]));
  uint32_t slot = 0;
  RowBuffer in = b.h;
  const bool quantized = quantizes(held, Role::kGate) || quantizes(held, Role::kUp);
  if (l.ffn_in_norm) {
    norm_into(b.h, vector(held, Role::kFfnInNorm, &slot), quantized);
  } else {
    in.f32 = b.x;
    if (quantized) quantize(in, count);
  }
  push_feed(l.ffn, held, {}, in.view(count), b.gate, b.up, width, &slot);
  flush_feeds();
  RowBuffer gate = b.gate;
  gate.cols = width;
  push(held, Role::kDown, gate.view(count), b.y, spec.hidden);
  flush();
  add_bias(b.y, spec.hidden, spec.hidden, count, vector(held, Role::kDownBias, &slot));
  if (l.ffn.out_scale != 1.0f) ops.scale(b.y, l.ffn.out_scale, count * spec.hidden);
  finish_ffn(layer, held);
  return {};
}

void Forward::Impl::finish_ffn(uint32_t layer, const Held& held) {
  uint32_t slot = 0;
  if (spec.layers[layer].ffn_out_norm)
    norm(b.y, vector(held, Role::kFfnOutNorm, &slot), count, b.y, true);
  add_residual(b.y);
  finish_layer(layer, held);
  let_go(held);
}

}  // namespace millrace::model
