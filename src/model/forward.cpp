#include "model/forward.h"

#include <sys/mman.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "base/numa.h"
#include "base/numeric.h"
#include "model/forward_impl.h"

namespace millrace::model {

using format::PieceKind;
using format::Role;

kernels::Rows RowBuffer::view(uint32_t count, uint32_t first) const {
  kernels::Rows rows;
  rows.count = count;
  rows.cols = cols;
  rows.stride = cols;
  const uint64_t padded = round_up(cols, format::kGroup);
  rows.f32 = f32 + uint64_t{first} * cols;
  rows.q = q + first * padded;
  rows.scale = scale + first * (padded / 32);
  rows.sum = sum + first * (padded / 16);
  return rows;
}

RowBuffer RowBuffer::from(uint32_t first) const {
  const uint64_t padded = round_up(cols, format::kGroup);
  RowBuffer rest = *this;
  rest.f32 += uint64_t{first} * cols;
  rest.q += first * padded;
  rest.scale += first * (padded / 32);
  rest.sum += first * (padded / 16);
  return rest;
}

RowBuffer Carver::rows(uint64_t count, uint32_t cols) {
  const uint64_t padded = round_up(cols, format::kGroup);
  RowBuffer buffer;
  buffer.cols = cols;
  buffer.f32 = take<float>(count * cols);
  buffer.q = take<int8_t>(count * padded);
  buffer.scale = take<float>(count * (padded / 32));
  buffer.sum = take<int16_t>(count * (padded / 16));
  return buffer;
}

Extents::Extents(const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    q = std::max(q, a.heads * (a.key_dim + (a.gate ? a.value_dim : 0)));
    kv_k = std::max(kv_k, a.kv_heads * a.key_dim);
    kv_v = std::max(kv_v, a.kv_heads * a.value_dim);
    kv_heads = std::max(kv_heads, a.kv_heads);
    attended = std::max(attended, a.heads * a.value_dim);
    width =
        std::max(width, layer.ffn.moe ? std::max(layer.ffn.moe->width, layer.ffn.moe->shared_width)
                                      : layer.ffn.width);
    if (layer.ffn.moe)
      experts = std::max(experts, layer.ffn.moe->experts),
      used = std::max(used, layer.ffn.moe->used);
    const auto recurrent = [&](uint32_t in, uint32_t convolved, uint32_t kernel, uint32_t heads,
                               uint32_t out) {
      mix = std::max(mix, in), channels = std::max(channels, convolved);
      conv = std::max(conv, kernel * convolved), state_heads = std::max(state_heads, heads);
      attended = std::max(attended, out);
    };
    if (layer.conv) recurrent(3 * spec.hidden, spec.hidden, layer.conv->kernel, 0, spec.hidden);
    if (const auto& d = layer.delta) {
      const uint32_t inner = d->value_heads * d->value_dim;
      recurrent(d->channels() + inner + 2 * d->value_heads, d->channels(), d->kernel,
                d->value_heads, inner);
    }
    if (const auto& m = layer.mamba)
      recurrent(m->columns(), m->channels(), m->kernel, m->heads, m->inner());
  }
  for (const RopeSpec& rope : spec.ropes) rope_pairs = std::max(rope_pairs, rope.dims / 2);
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention.own_gate)
      own_gate = std::max(own_gate, layer.attention.heads * layer.attention.value_dim);
    if (layer.ffn.moe && layer.ffn.moe->apart) apart = true;
    if (!layer.mla) continue;
    const MlaSpec& m = *layer.mla;
    q = std::max(q, m.heads * (m.nope_dim + m.rope_dim));
    kv_k = std::max(kv_k, m.rank + m.rope_dim);
    kv_heads = std::max(kv_heads, 1u);
    attended = std::max(attended, m.heads * m.value_dim);
    q_rank = std::max(q_rank, m.q_rank), mla_heads = std::max(mla_heads, m.heads);
    latent_key = std::max(latent_key, m.heads * (m.rank + m.rope_dim));
    latent = std::max(latent, m.rank), nope = std::max(nope, m.nope_dim);
    if (!m.indexer) continue;
    index_q = std::max(index_q, m.indexer->heads * m.indexer->dim);
    index_k = std::max(index_k, m.indexer->dim),
    index_heads = std::max(index_heads, m.indexer->heads);
    top = std::max(top, m.indexer->top);
  }
  vectors = std::max(
      {spec.hidden, q_rank, index_k, latent, q, kv_k, kv_v, width, experts, attended, mix, conv});
}

uint64_t carve(Carver& c, const ModelSpec& spec, const ForwardOptions& o, Buffers* b) {
  const Extents e(spec);
  const uint64_t n = o.max_rows;
  // What lives through a step.
  b->x = c.take<float>(n * spec.hidden);
  b->h = c.rows(n, spec.hidden);
  b->y = c.take<float>(n * spec.hidden);
  const uint64_t pages = (uint64_t{o.max_context} + kernels::kKvBlock - 1) / kernels::kKvBlock;
  if (e.top) b->selected = c.take<uint64_t>(n * pages);  // layers may share a selection
  if (spec.layer_input) {
    b->start = c.rows(n, spec.hidden);
    b->layer_table = c.take<float>(n * spec.layers.size() * spec.layer_input);
    b->layer_in = c.rows(n, spec.layer_input);
    b->layer_gate = c.take<float>(n * spec.layer_input);
    b->layer_norm = c.take<float>(spec.layer_input);
  }
  b->cos = c.take<float>(spec.ropes.size() * n * e.rope_pairs);
  b->sin = c.take<float>(spec.ropes.size() * n * e.rope_pairs);
  b->vectors = c.take<float>(uint64_t{kVectorSlots} * e.vectors);

  // The two sublayers and the head take turns: their buffers lie over each other.
  const uint64_t turns = c.at();
  b->q = c.take<float>(n * e.q);
  b->k = c.take<float>(n * e.kv_k);
  b->v = c.take<float>(n * e.kv_v);
  b->attended = c.rows(n, e.attended);
  b->mix = c.take<float>(n * e.mix);
  b->channels = c.take<float>(n * e.channels);
  b->conv = c.take<float>(e.conv);
  b->dt = c.take<float>(n * e.state_heads);
  b->decay = c.take<float>(n * e.state_heads);
  if (e.mla_heads) {
    b->latent_q = c.rows(n, e.q_rank);
    b->absorbed = c.take<float>(n * e.latent_key);
    b->latents = c.rows(n * e.mla_heads, e.latent);
    b->nope = c.rows(n * e.mla_heads, e.nope);
    b->decoded = c.take<float>(uint64_t{e.mla_heads} * e.latent);
  }
  if (e.top) {
    b->index_q = c.take<float>(n * e.index_q);
    b->index_k = c.take<float>(n * e.index_k);
    b->index_weights = c.take<float>(n * e.index_heads);
    b->index_scores = c.take<float>(pages * kernels::kKvBlock);
    b->ranked = c.take<uint32_t>(e.top);
  }
  b->own_gate = c.take<float>(n * e.own_gate);
  const uint64_t sequences = o.max_sequences ? std::min<uint64_t>(o.max_sequences, n) : n;
  b->blocks = c.take<const void*>(sequences * e.kv_heads * 2 * pages);

  c.back_to(turns);
  if (e.apart) b->apart = c.take<float>(n * spec.hidden);
  const uint64_t pairs = pair_rows(o, e);
  b->gate = c.rows(pairs, e.width);
  b->up = c.take<float>(pairs * e.width);
  if (e.experts) {
    b->router = c.take<float>(n * e.experts);
    b->choice = c.take<float>(n * e.experts);
    b->weights = c.take<float>(n * e.used);
    b->chosen = c.take<uint32_t>(n * e.used);
    b->gathered = c.rows(pairs, spec.hidden);
    b->expert_out = c.take<float>(n * e.used * spec.hidden);
    b->down = c.take<float>(n * spec.hidden);
    b->shared_gate = c.take<float>(n);
  }

  c.back_to(turns);
  b->logits = c.take<float>(uint64_t{o.max_logit_rows} * spec.vocab);
  return c.bytes();
}

uint64_t Forward::buffer_bytes(const ModelSpec& spec, const ForwardOptions& options,
                               const KvShape&) {
  Carver counter(nullptr);
  Buffers buffers;
  return carve(counter, spec, options, &buffers);
}

int Held::find(Role role) const {
  for (size_t t = 0; t < piece->tensors.size(); ++t) {
    if (piece->tensors[t].role == role) return static_cast<int>(t);
  }
  return -1;
}

Forward::Forward(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->on_route = &on_route;
  impl_->on_layer = &on_layer;
}
Forward::~Forward() = default;

Forward::Impl::~Impl() {
  if (!mapping) return;
  munmap(mapping, mapped);
  ledger.release(stream::Use::kActivations, mapped);
}

Expected<std::unique_ptr<Forward>> Forward::create(const ModelSpec& spec,
                                                   const format::PieceTable& table,
                                                   stream::PieceStore& store, const KvShape& kv,
                                                   Threads& threads, const Cpu& cpu,
                                                   stream::Ledger& ledger,
                                                   const ForwardOptions& options) {
  auto impl = std::make_unique<Impl>(spec, table, store, kv, threads, ledger, options,
                                     kernels::select_ops(cpu));
  const uint64_t bytes = buffer_bytes(spec, options, kv);
  MILLRACE_TRY(ledger.reserve(stream::Use::kActivations, bytes));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    ledger.release(stream::Use::kActivations, bytes);
    return fail(Code::kNoMemory, "cannot map {} bytes for activations", bytes);
  }
  madvise(base, bytes, MADV_HUGEPAGE);  // a wish
  spread_over_nodes(base, bytes);
  impl->mapping = static_cast<std::byte*>(base);
  impl->mapped = bytes;
  Carver carver(impl->mapping);
  carve(carver, spec, options, &impl->b);

  impl->kernel_of.resize(table.pieces.size());
  impl->mixer.resize(spec.layers.size());
  impl->ffn.resize(spec.layers.size());
  impl->first_expert.resize(spec.layers.size(), UINT32_MAX);
  for (uint32_t p = 0; p < table.pieces.size(); ++p) {
    const format::Piece& piece = table.pieces[p];
    for (const auto& tensor : piece.tensors) {
      impl->kernel_of[p].push_back(
          tensor.view.vector
              ? nullptr
              : &kernels::select_matmul(tensor.view.layout, options.activations, cpu));
    }
    const auto layer = static_cast<size_t>(piece.layer);
    switch (piece.kind) {
      case PieceKind::kEmbedding:
        impl->embedding.push_back(p);
        break;
      case PieceKind::kLookup:
        impl->lookup.push_back(p);
        break;
      case PieceKind::kHead:
        impl->head.push_back(p);
        break;
      case PieceKind::kMixer:
        impl->mixer[layer] = p;
        break;
      case PieceKind::kFfn:
      case PieceKind::kRouter:
        impl->ffn[layer] = p;
        break;
      case PieceKind::kExpert:
        if (piece.expert == 0) impl->first_expert[layer] = p;
        break;
      case PieceKind::kFinal:
        impl->final_piece = p;
        break;
    }
  }
  if (spec.tied) impl->head = impl->embedding;
  impl->embedding_rows = table.pieces[impl->embedding[0]].tensors[0].view.layout.rows;
  impl->head_rows = table.pieces[impl->head[0]].tensors[0].view.layout.rows;
  if (!impl->lookup.empty())
    impl->lookup_rows = table.pieces[impl->lookup[0]].tensors[0].view.layout.rows;
  impl->ropes = spec.ropes;

  // GGUF files keep llama3-style scaling as divisors of the frequencies.
  MILLRACE_ASSIGN(Held held, impl->hold(impl->final_piece));
  uint32_t slot = 0;
  if (const float* factors = impl->vector(held, Role::kRopeFactors, &slot)) {
    for (RopeSpec& rope : impl->ropes) {
      if (!rope.divided) continue;
      for (uint32_t j = 0; j < rope.dims / 2; ++j) {
        if (!(factors[j] > 0))
          return fail(Code::kCorrupt, "rope factor {} is {}, not positive", j, factors[j]);
        rope.inv_freq[j] /= factors[j];
      }
    }
  }
  if (const float* in_norm = impl->vector(held, Role::kLayerInNorm, &slot))
    std::copy_n(in_norm, spec.layer_input, impl->b.layer_norm);
  impl->let_go(held);
  return std::unique_ptr<Forward>(new Forward(std::move(impl)));
}

std::vector<std::string> Forward::kernels() const {
  std::set<std::string> names;
  for (const auto& piece : impl_->kernel_of) {
    for (const auto* kernel : piece) {
      if (kernel) names.emplace(kernel->name);
    }
  }
  names.insert(std::string("ops ") + impl_->ops.name);
  return {names.begin(), names.end()};
}

std::vector<std::string> Forward::kernels_not_taken(const Cpu& cpu, const Cpu& machine) const {
  std::map<std::string, std::set<std::string>> weights_of;  // by reason
  for (const auto& piece : impl_->table.pieces) {
    for (const auto& tensor : piece.tensors) {
      if (tensor.view.vector) continue;
      const format::WeightLayout& layout = tensor.view.layout;
      std::string why = kernels::rungs_not_taken(layout, impl_->options.activations, cpu, machine);
      if (why.empty()) continue;
      std::string weights(format::name(layout.format));
      if (layout.bits != 0) weights += fmt::format("{}", layout.bits);
      weights_of[std::move(why)].insert(std::move(weights));
    }
  }
  std::vector<std::string> lines;
  for (const auto& [why, weights] : weights_of) {
    lines.push_back(fmt::format("{}: {}", fmt::join(weights, " "), why));
  }
  if (lines.empty()) lines.emplace_back("none: nothing faster is written");
  return lines;
}

Expected<Held> Forward::Impl::hold(uint32_t piece) {
  MILLRACE_ASSIGN(const std::byte* data, store.acquire(piece));
  return Held{piece, &table.pieces[piece], data};
}

const float* Forward::Impl::vector(const Held& held, Role role, uint32_t* slot) {
  const int t = held.find(role);
  if (t < 0) return nullptr;
  const auto& tensor = held.piece->tensors[static_cast<size_t>(t)];
  const std::byte* from = held.data + tensor.offset;
  const uint32_t n = tensor.view.layout.cols;
  if (tensor.view.layout.format == format::WeightFormat::kF32)
    return reinterpret_cast<const float*>(from);
  float* out = b.vectors + uint64_t{(*slot)++} * extents.vectors;
  if (tensor.view.layout.format == format::WeightFormat::kF16) {
    ops.f16_to_f32(reinterpret_cast<const uint16_t*>(from), n, out);
  } else {
    ops.bf16_to_f32(reinterpret_cast<const uint16_t*>(from), n, out);
  }
  return out;
}

bool Forward::Impl::quantizes(const Held& held, Role role) const {
  const int t = held.find(role);
  if (t < 0 || options.activations == kernels::Activations::kF32) return false;
  return format::takes_int8(held.piece->tensors[static_cast<size_t>(t)].view.layout);
}

void Forward::Impl::quantize_row(RowBuffer& buffer, uint32_t r) const {
  const uint64_t padded = round_up(buffer.cols, format::kGroup);
  ops.quantize_row(buffer.f32 + uint64_t{r} * buffer.cols, buffer.cols, buffer.q + r * padded,
                   buffer.scale + r * (padded / 32), buffer.sum + r * (padded / 16));
}

void Forward::Impl::quantize(RowBuffer& buffer, uint32_t n) {
  over_rows(n, buffer.cols, [&](uint32_t r) { quantize_row(buffer, r); });
}

void Forward::Impl::norm_into(RowBuffer& to, const float* w, bool quantized) {
  over_rows(count, 2 * spec.hidden, [&](uint32_t r) {
    ops.rms_norm(b.x + uint64_t{r} * spec.hidden, w, spec.norm == NormKind::kRmsPlusOne,
                 spec.norm_eps, spec.hidden, to.f32 + uint64_t{r} * spec.hidden);
    if (quantized) quantize_row(to, r);
  });
}

void Forward::Impl::push(const Held& held, Role role, const kernels::Rows& in, float* out,
                         uint64_t stride) {
  push_tensor(held, static_cast<size_t>(held.find(role)), in, out, stride);
}

Job Forward::Impl::make_job(const Held& held, Role role, const kernels::Rows& in, float* out,
                            uint64_t stride) const {
  return make_job(held, static_cast<size_t>(held.find(role)), in, out, stride);
}

Job Forward::Impl::make_job(const Held& held, size_t t, const kernels::Rows& in, float* out,
                            uint64_t stride) const {
  const auto& tensor = held.piece->tensors[t];
  Job job;
  job.kernel = kernel_of[held.id][t];
  job.args.weight = {tensor.view.layout, held.data + tensor.offset};
  job.args.rows = in;
  job.args.out = out;
  job.args.out_stride = stride;
  job.args.tile_end = (tensor.view.layout.rows + format::kTileRows - 1) / format::kTileRows;
  return job;
}

void Forward::Impl::push_tensor(const Held& held, size_t t, const kernels::Rows& in, float* out,
                                uint64_t stride) {
  jobs.push_back(make_job(held, t, in, out, stride));
}

uint64_t Forward::Impl::grain(uint64_t items, uint64_t bytes) {
  // A thread is worth waking for a few microseconds of work: 32 KiB of weights.
  return std::max<uint64_t>(1, items * 32768 / std::max<uint64_t>(bytes, 1));
}

void Forward::Impl::flush() {
  uint64_t tiles = 0;
  uint64_t bytes = 0;
  for (const Job& job : jobs)
    tiles += job.args.tile_end,
        bytes += format::tile_bytes(job.args.weight.layout) * job.args.tile_end;
  threads.parallel(tiles, grain(tiles, bytes), [&](uint64_t begin, uint64_t end, unsigned) {
    uint64_t at = 0;
    for (const Job& job : jobs) {
      const uint64_t n = job.args.tile_end;
      if (begin < at + n && end > at) {
        kernels::MatmulArgs part = job.args;
        part.tile_begin = static_cast<uint32_t>(begin > at ? begin - at : 0);
        part.tile_end = static_cast<uint32_t>(std::min(end - at, n));
        job.kernel->run(part);
      }
      at += n;
    }
  });
  jobs.clear();
}

void Forward::Impl::norm(const float* in, const float* w, uint32_t n, float* out, bool of_output) {
  const float eps = of_output && spec.out_norm_eps > 0 ? spec.out_norm_eps : spec.norm_eps;
  over_rows(n, spec.hidden, [&](uint32_t r) {
    ops.rms_norm(in + uint64_t{r} * spec.hidden, w, spec.norm == NormKind::kRmsPlusOne, eps,
                 spec.hidden, out + uint64_t{r} * spec.hidden);
  });
}

void Forward::Impl::add_bias(float* out, uint64_t stride, uint32_t cols, uint32_t n,
                             const float* bias) {
  if (!bias) return;
  for (uint32_t r = 0; r < n; ++r) ops.add(out + r * stride, bias, cols);
}

void Forward::Impl::add_residual(const float* y) {
  over_rows(count, spec.hidden, [&](uint32_t r) {
    const uint64_t at = uint64_t{r} * spec.hidden;
    if (spec.residual_scale == 1.0f) {
      ops.add(b.x + at, y + at, spec.hidden);
    } else {
      ops.add_scaled(b.x + at, y + at, spec.residual_scale, spec.hidden);
    }
  });
}

Status Forward::Impl::embed() {
  // Rows of one piece together, so that a streamed embedding is read once.
  std::vector<uint32_t> order(count);
  for (uint32_t r = 0; r < count; ++r) order[r] = r;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t c) {
    return static_cast<uint32_t>(rows[a].token) / embedding_rows <
           static_cast<uint32_t>(rows[c].token) / embedding_rows;
  });
  std::vector<uint32_t> parts;
  parts.reserve(count);
  for (const uint32_t r : order) {
    const uint32_t piece = embedding[static_cast<uint32_t>(rows[r].token) / embedding_rows];
    if (parts.empty() || parts.back() != piece) parts.push_back(piece);
  }
  std::span<const uint32_t> next = parts;
  for (uint32_t i = 0; i < count;) {
    const uint32_t part = static_cast<uint32_t>(rows[order[i]].token) / embedding_rows;
    store.will_acquire(next);
    next = next.subspan(1);
    MILLRACE_ASSIGN(Held held, hold(embedding[part]));
    const auto& tensor = held.piece->tensors[0];
    for (; i < count && static_cast<uint32_t>(rows[order[i]].token) / embedding_rows == part; ++i) {
      float* out = b.x + uint64_t{order[i]} * spec.hidden;
      const auto row = static_cast<uint32_t>(rows[order[i]].token) - held.piece->row_begin;
      format::dequantize_row(tensor.view.layout, held.data + tensor.offset, row, out);
      if (spec.embed_norm) ops.rms_norm(out, nullptr, false, spec.norm_eps, spec.hidden, out);
      if (spec.embed_scale != 1.0f) ops.scale(out, spec.embed_scale, spec.hidden);
    }
    let_go(held);
  }
  return {};
}

void Forward::Impl::rope_tables() {
  const uint64_t pairs = extents.rope_pairs;
  for (size_t k = 0; k < ropes.size(); ++k) {
    over_rows(count, pairs * 8, [&](uint32_t r) {
      const uint64_t at = (k * options.max_rows + r) * pairs;
      ops.rope_table(static_cast<float>(rows[r].position), ropes[k].inv_freq.data(), ropes[k].scale,
                     ropes[k].dims / 2, b.cos + at, b.sin + at);
    });
  }
}

Expected<std::span<const float>> Forward::Impl::head_logits() {
  uint32_t wanted = 0;
  MILLRACE_ASSIGN(Held held, hold(final_piece));
  uint32_t slot = 0;
  const float* w = vector(held, Role::kFinalNorm, &slot);
  for (uint32_t r = 0; r < count; ++r) {
    if (!rows[r].logits) continue;
    ops.rms_norm(b.x + uint64_t{r} * spec.hidden, w,
                 spec.norm == NormKind::kRmsPlusOne && !spec.final_norm_plain, spec.norm_eps,
                 spec.hidden, b.h.f32 + uint64_t{wanted++} * spec.hidden);
  }
  let_go(held);
  if (wanted == 0) return std::span<const float>();
  bool quantized = false;
  for (const uint32_t piece : head) {
    MILLRACE_ASSIGN(held, hold(piece));
    const Role role = spec.tied ? Role::kEmbedding : Role::kHead;
    if (!quantized && quantizes(held, role)) quantize(b.h, wanted), quantized = true;
    push(held, role, b.h.view(wanted), b.logits + held.piece->row_begin, spec.vocab);
    flush();
    let_go(held);
  }
  over_rows(wanted, spec.vocab, [&](uint32_t r) {
    float* logits = b.logits + uint64_t{r} * spec.vocab;
    if (spec.logit_scale != 1.0f) ops.scale(logits, spec.logit_scale, spec.vocab);
    if (spec.logit_softcap != 0.0f) ops.softcap(logits, spec.logit_softcap, spec.vocab);
  });
  return std::span<const float>(b.logits, uint64_t{wanted} * spec.vocab);
}

Expected<std::span<const float>> Forward::run(std::span<const Row> rows) {
  Impl& f = *impl_;
  const auto begin = std::chrono::steady_clock::now();
  if (rows.empty() || rows.size() > f.options.max_rows) {
    return fail(Code::kInternal, "a step of {} rows does not fit the {} planned", rows.size(),
                f.options.max_rows);
  }
  f.rows = rows;
  f.count = static_cast<uint32_t>(rows.size());
  f.sequences.clear();
  f.sequence_of.resize(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    auto found = std::find(f.sequences.begin(), f.sequences.end(), rows[r].sequence);
    if (found == f.sequences.end()) found = f.sequences.insert(found, rows[r].sequence);
    f.sequence_of[r] = static_cast<uint32_t>(found - f.sequences.begin());
  }
  if (f.options.max_sequences && f.sequences.size() > f.options.max_sequences) {
    return fail(Code::kInternal, "a step of {} sequences does not fit the {} planned",
                f.sequences.size(), f.options.max_sequences);
  }
  MILLRACE_TRY(f.begin_states());
  MILLRACE_TRY(f.embed());
  f.rope_tables();
  if (f.spec.layer_input) MILLRACE_TRY(f.read_layer_table());
  for (f.loop = 0; f.loop < f.spec.loops; ++f.loop) {
    if (f.loop > 0 && f.spec.loop_norm) {
      MILLRACE_ASSIGN(Held held, f.hold(f.final_piece));
      uint32_t slot = 0;
      f.norm(f.b.x, f.vector(held, Role::kFinalNorm, &slot), f.count, f.b.x);
      f.let_go(held);
    }
    MILLRACE_TRY(f.layers());
  }
  f.end_states();
  auto logits = f.head_logits();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  f.store.step_done(f.count, took.count());
  return logits;
}

Status Forward::Impl::layers() {
  for (uint32_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const auto n = static_cast<uint32_t>(spec.layers.size());
    if (*on_layer && !(*on_layer)(loop * n + i, spec.loops * n))
      return fail(Code::kCancelled, "the pass was given up before layer {}", i);
    if (layer.has_mixer()) MILLRACE_TRY(mix(i));
    if (layer.has_ffn()) MILLRACE_TRY(layer.ffn.moe ? moe(i) : dense(i));
  }
  return {};
}

}  // namespace millrace::model
