// Inside of the forward pass: buffers and the steps that its parts share.
#pragma once

#include <algorithm>
#include <array>

#include "model/forward.h"

namespace millrace::model {

// A buffer of rows in both precisions that matmul may want.
struct RowBuffer {
  float* f32 = nullptr;    // [rows, cols]
  int8_t* q = nullptr;     // [rows, cols up to 32]
  float* scale = nullptr;  // [rows, cols / 32]
  int16_t* sum = nullptr;  // [rows, cols / 16]
  uint32_t cols = 0;

  kernels::Rows view(uint32_t count, uint32_t first = 0) const;
  RowBuffer from(uint32_t first) const;  // the rows from `first` on
};

// Cuts one mapping into buffers; with base == nullptr it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(uint64_t count) {
    at_ = (at_ + 63) / 64 * 64;
    T* out = base_ ? reinterpret_cast<T*>(base_ + at_) : nullptr;
    at_ += count * sizeof(T);
    return out;
  }
  RowBuffer rows(uint64_t count, uint32_t cols);
  // What is taken from here on lies over what was taken since `at`: never in use at the same time.
  uint64_t at() const { return at_; }
  void back_to(uint64_t at) {
    most_ = std::max(most_, at_);
    at_ = at;
  }
  uint64_t bytes() const { return (std::max(most_, at_) + 4095) / 4096 * 4096; }

 private:
  std::byte* base_;
  uint64_t at_ = 0, most_ = 0;
};

struct Buffers {
  float* x = nullptr;                              // [rows, hidden] residual stream
  RowBuffer h;                                     // [rows, hidden] normed input of a sublayer
  float* y = nullptr;                              // [rows, hidden] output of a sublayer
  float* own_gate = nullptr;                       // [rows, heads * value_dim]
  float *q = nullptr, *k = nullptr, *v = nullptr;  // [rows, heads * dim]
  RowBuffer attended;         // [rows, heads * value_dim] input of the mixer's last projection
  float* mix = nullptr;       // [rows, mix] projected input of a recurrent mixer
  float* channels = nullptr;  // [rows, channels] its convolved part
  float* conv = nullptr;      // [kernel, channels] weights, channels last
  float *dt = nullptr, *decay = nullptr;  // [rows, heads]
  RowBuffer latent_q;                     // [rows, q_rank] latent attention: normed latent of q
  float* absorbed = nullptr;       // [rows, heads, rank + rope_dim] queries in the latent's space
  RowBuffer latents;               // [heads, rows, rank] what the heads attended to
  RowBuffer nope;                  // [heads, rows, nope_dim]
  float* decoded = nullptr;        // [heads, rank] a row of each up projection
  float* index_q = nullptr;        // [rows, index heads * index dim]
  float* index_k = nullptr;        // [rows, index dim]
  float* index_weights = nullptr;  // [rows, index heads]
  float* index_scores = nullptr;   // [blocks, 64] of one row
  uint32_t* ranked = nullptr;      // [top]
  uint64_t* selected = nullptr;    // [rows, blocks] positions that a row attends to
  RowBuffer start;                 // [rows, hidden] embedding, for per-layer inputs
  float* layer_table = nullptr;    // [rows, layers, layer_input] the tokens' rows
  RowBuffer layer_in;              // [rows, layer_input]
  float* layer_gate = nullptr;     // [rows, layer_input]
  float* layer_norm = nullptr;     // [layer_input] the norm of all layers' inputs
  float* apart = nullptr;          // [rows, hidden] output of a shared expert that stands apart
  RowBuffer gate;                  // [pair rows, width]: gate, then act(gate) * up
  float* up = nullptr;             // [pair rows, width]
  float* router = nullptr;         // [rows, experts]
  float* choice = nullptr;         // [rows, experts] scores as the choice sees them
  float* weights = nullptr;        // [rows, used]
  uint32_t* chosen = nullptr;      // [rows, used]
  RowBuffer gathered;              // [pair rows, hidden] rows of some experts
  float* expert_out = nullptr;     // [rows * used, hidden], pairs of (row, rank) by expert
  float* down = nullptr;           // [rows, hidden] output of a shared expert
  float* shared_gate = nullptr;    // [rows]
  float *cos = nullptr, *sin = nullptr;  // [ropes, rows, dims / 2]
  float* vectors = nullptr;              // vectors of the current pieces as f32
  const void** blocks = nullptr;  // [sequences, kv_heads, 2, blocks] KV block pointers of a layer
  float* logits = nullptr;        // [logit rows, vocab]
};

// Largest extents over all layers.
struct Extents {
  uint32_t q = 0, kv_k = 0, kv_v = 0, attended = 0, kv_heads = 0;
  uint32_t width = 0, experts = 0, used = 0, rope_pairs = 0, vectors = 0;
  uint32_t mix = 0, channels = 0, conv = 0, state_heads = 0;  // recurrent mixers
  uint32_t q_rank = 0, mla_heads = 0, latent_key = 0, latent = 0, nope = 0;
  uint32_t index_q = 0, index_k = 0, index_heads = 0, top = 0;  // latent attention
  uint32_t own_gate = 0;
  bool apart = false;
  explicit Extents(const ModelSpec& spec);
};

inline constexpr uint32_t kVectorSlots = 8;  // most converted vectors in use at a time

// Rows of experts that are computed together: a decoded token's all, and any expert's of a step.
inline uint32_t pair_rows(const ForwardOptions& options, const Extents& e) {
  return std::max(options.max_rows, 2 * e.used);
}

uint64_t carve(Carver& carver, const ModelSpec& spec, const ForwardOptions& options,
               Buffers* buffers);

// A piece that was handed out, and access to its tensors by role.
struct Held {
  uint32_t id = 0;
  const format::Piece* piece = nullptr;
  const std::byte* data = nullptr;

  // Index into piece->tensors, or -1.
  int find(format::Role role) const;
};

struct Job {
  const kernels::MatmulKernel* kernel = nullptr;
  kernels::MatmulArgs args;
};

// The products in front of an activation, and what follows them at once:
// out = act(x gate + gate_bias) * (x up + up_bias), quantized when the next product wants it.
struct Feed {
  const FfnSpec* ffn = nullptr;
  Job gate, up;  // gate: no kernel when there is none
  const float *gate_bias = nullptr, *up_bias = nullptr;
  std::array<float, 4> xielu = {};
  RowBuffer out;
  bool quantize = false;
};
struct FeedRoles {
  format::Role gate = format::Role::kGate, up = format::Role::kUp, down = format::Role::kDown;
  format::Role gate_bias = format::Role::kGateBias, up_bias = format::Role::kUpBias;
};

// Queries of one kv head that are attended together: some rows of a sequence, some heads of the group.
struct QueryBlock {
  uint32_t row_begin, row_end, head_begin, head_end;
};
inline constexpr uint32_t kAtOnce = 16;  // queries of one call of attention_group

struct Forward::Impl {
  const ModelSpec& spec;
  const format::PieceTable& table;
  stream::PieceStore& store;
  const KvShape& kv;
  Threads& threads;
  stream::Ledger& ledger;
  ForwardOptions options;
  const kernels::Ops& ops;
  const Extents extents;

  Buffers b;
  std::byte* mapping = nullptr;
  uint64_t mapped = 0;
  std::vector<std::vector<const kernels::MatmulKernel*>> kernel_of;  // [piece][tensor]
  std::vector<RopeSpec> ropes;  // of the spec, with the file's factors applied
  // Piece ids.
  std::vector<uint32_t> lookup;
  uint32_t lookup_rows = 0;
  std::vector<uint32_t> embedding, head, mixer, ffn;  // embedding and head: row ranges in order
  std::vector<uint32_t> first_expert;                 // by layer
  uint32_t final_piece = 0, embedding_rows = 0, head_rows = 0;

  std::span<const Row> rows;
  uint32_t count = 0;
  uint32_t loop = 0;                           // how many times the layers have run
  std::vector<KvSequence*> sequences;          // distinct ones of this step
  std::vector<uint32_t> sequence_of;           // by row
  std::vector<uint32_t> row_order, row_begin;  // rows of each sequence, ascending
  std::vector<Job> jobs;
  std::vector<Feed> feeds;
  // Pairs of (row, rank) by expert: expert e's rows are expert_rows[expert_begin[e] ..]; where a pair
  // went is place_of_pair[row * used + rank].
  std::vector<uint32_t> fired, fired_rows, expert_rows, expert_begin, expert_place, place_of_pair;
  uint32_t most_pairs = 0;  // of one expert
  std::vector<Held> batch;  // experts that are computed together
  std::vector<uint32_t> guessed;
  std::function<void(uint32_t, uint32_t, std::span<const uint32_t>)>* on_route = nullptr;
  std::function<bool(uint32_t, uint32_t)>* on_layer = nullptr;

  Impl(const ModelSpec& s, const format::PieceTable& t, stream::PieceStore& st, const KvShape& k,
       Threads& th, stream::Ledger& l, const ForwardOptions& o, const kernels::Ops& op)
      : spec(s),
        table(t),
        store(st),
        kv(k),
        threads(th),
        ledger(l),
        options(o),
        ops(op),
        extents(s) {}
  ~Impl();

  Expected<Held> hold(uint32_t piece);
  void let_go(const Held& held) { store.release(held.id); }

  // A vector of the piece as f32; `slot` counts the conversions of the current piece (0 ..).
  const float* vector(const Held& held, format::Role role, uint32_t* slot);
  const KvPlace& place_of(uint32_t layer) const {
    return kv.places[loop * spec.layers.size() + layer];
  }
  Job make_job(const Held& held, format::Role role, const kernels::Rows& in, float* out,
               uint64_t stride) const;
  Job make_job(const Held& held, size_t tensor, const kernels::Rows& in, float* out,
               uint64_t stride) const;
  void push_tensor(const Held& held, size_t tensor, const kernels::Rows& in, float* out,
                   uint64_t stride);
  void push(const Held& held, format::Role role, const kernels::Rows& in, float* out,
            uint64_t stride);
  void flush();  // runs the pushed products, all in one parallel region
  // The least of `items` that is worth a thread, when all of them read `bytes`.
  static uint64_t grain(uint64_t items, uint64_t bytes);
  // `slot`: as of vector(). The vectors must stay until flush_feeds().
  void push_feed(const FfnSpec& f, const Held& held, const FeedRoles& roles,
                 const kernels::Rows& in, RowBuffer out, float* up, uint32_t width, uint32_t* slot);
  void flush_feeds();
  void finish_feed(const Feed& feed, uint32_t begin, uint32_t end) const;
  bool quantizes(const Held& held, format::Role role) const;
  void quantize_row(RowBuffer& buffer, uint32_t row) const;
  void quantize(RowBuffer& buffer, uint32_t n);  // fills the int8 side of n rows
  void norm(const float* in, const float* w, uint32_t n, float* out, bool of_output = false);
  void norm_into(RowBuffer& to, const float* w, bool quantized);  // to = norm(b.x), in one region
  void add_bias(float* out, uint64_t stride, uint32_t cols, uint32_t n, const float* bias);
  void add_residual(const float* y);
  template <class F>
  void over_rows(uint32_t n, uint64_t work, F&& f);  // f(row) on all threads when it is worth it

  template <class F>
  void over_sequences(uint32_t parts, F&& f);

  // Recurrent state: checks that each sequence's rows follow what its state has consumed.
  Status begin_states();
  void end_states();

  Status embed();
  Status layers();
  // The mixer sublayer; its parts write (or, when `add`, add) their output to b.y.
  Status mix(uint32_t layer);
  void attention(uint32_t layer, const Held& held, RowBuffer in, bool add);
  void attend(uint32_t layer, const float* sinks);
  // All rows of the step and all heads of a group, each once; `kv_heads` such lists are worked on.
  std::vector<QueryBlock> query_blocks(uint32_t kv_heads, uint32_t group) const;
  void latent_attention(uint32_t layer, const Held& held, RowBuffer in);
  void absorb(const MlaSpec& m, const Held& held);
  void index_positions(uint32_t layer, const Held& held, RowBuffer in);
  void block_pointers(uint32_t layer, uint32_t heads);
  Status read_layer_table();
  void layer_input(uint32_t layer, const Held& held);
  void finish_layer(uint32_t layer, const Held& held);
  void finish_ffn(uint32_t layer, const Held& held);  // of b.y; lets go of the piece
  void short_conv(uint32_t layer, const Held& held, RowBuffer in);
  void gated_delta(uint32_t layer, const Held& held, RowBuffer in);
  void delta_rule(uint32_t layer, const float* norm);
  void mamba(uint32_t layer, const Held& held, RowBuffer in, bool add);
  void ssm(uint32_t layer, const float* skip, const float* norm);
  void convolve(uint32_t layer, const Held& held, uint32_t kernel, uint32_t channels, bool silu,
                float* x, uint64_t stride);
  void mixed_output(const Held& held, format::Role weight, format::Role bias, uint32_t cols,
                    float scale, bool add);
  Status dense(uint32_t layer);
  Status moe(uint32_t layer);
  void route(const MoeSpec& m, const Held& held);
  void route_apart(const MoeSpec& m, const FfnSpec& f, const Held& held);
  void shared_expert(const MoeSpec& m, const FfnSpec& f, const Held& held);
  void group_by_expert(const MoeSpec& m, uint32_t layer);
  Status run_experts(const MoeSpec& m, const FfnSpec& f, uint32_t layer);
  void experts(const MoeSpec& m, const FfnSpec& f, uint32_t layer);  // those of `batch`
  bool batch_has_room(uint32_t pairs) const;
  void look_ahead(uint32_t layer);  // guesses the next layer's experts, for the store
  Expected<std::span<const float>> head_logits();
  void rope_tables();
};

// f(sequence, part) for each sequence of the step, on all threads: a part's rows stay in order.
template <class F>
void Forward::Impl::over_sequences(uint32_t parts, F&& f) {
  threads.parallel(sequences.size() * parts, 1, [&](uint64_t begin, uint64_t end, unsigned) {
    for (uint64_t task = begin; task < end; ++task)
      f(static_cast<uint32_t>(task / parts), static_cast<uint32_t>(task % parts));
  });
}

template <class F>
void Forward::Impl::over_rows(uint32_t n, uint64_t work, F&& f) {
  // Waking the workers costs a few microseconds: about this many elements.
  constexpr uint64_t kWorthIt = 16384;
  if (n < 2 || n * work < kWorthIt) {
    for (uint32_t r = 0; r < n; ++r) f(r);
    return;
  }
  threads.parallel(n, 1, [&](uint64_t begin, uint64_t end, unsigned) {
    for (uint64_t r = begin; r < end; ++r) f(static_cast<uint32_t>(r));
  });
}

}  // namespace millrace::model
