// The forward pass: interprets a ModelSpec over a step of rows, reading weights from the piece
// store in place.
//
// A row is one position of one sequence. Rows of a step share every weight read and nothing else: a
// row's result is the same bits whoever it shares the step with.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "format/piece.h"
#include "kernels/matmul.h"
#include "model/kv.h"
#include "model/spec.h"
#include "stream/store.h"

namespace millrace::model {

struct Row {
  KvSequence* sequence = nullptr;  // positions up to `position` reserved
  uint32_t position = 0;
  int32_t token = 0;  // below spec.vocab
  bool logits = false;
  // 0: equal index scores rank by position. Else they rank as the reference ranks them in a text of
  // this many tokens (reference_ties.h).
  uint32_t tie_length = 0;
};

struct ForwardOptions {
  kernels::Activations activations = kernels::Activations::kInt8;
  uint32_t max_rows = 1;        // rows of a step
  uint32_t max_logit_rows = 1;  // rows of a step that want logits
  uint32_t max_context = 1;
  uint32_t max_sequences = 0;  // of a step; 0: as many as rows
};

class Forward {
 public:
  // Bytes of the buffers, for the ledger, before anything is allocated.
  static uint64_t buffer_bytes(const ModelSpec& spec, const ForwardOptions& options,
                               const KvShape& kv);

  // All referenced objects must outlive it.
  static Expected<std::unique_ptr<Forward>> create(const ModelSpec& spec,
                                                   const format::PieceTable& table,
                                                   stream::PieceStore& store, const KvShape& kv,
                                                   Threads& threads, const Cpu& cpu,
                                                   stream::Ledger& ledger,
                                                   const ForwardOptions& options);
  ~Forward();

  // Runs the rows; a row's position must follow those of its sequence before it in the step. Logits
  // of the rows that asked for them, in row order: [wanted, vocab], valid until the next call. KV
  // of the rows is written, not committed.
  Expected<std::span<const float>> run(std::span<const Row> rows);

  // Called with each layer's choice when set: (layer, rows, chosen experts [rows, used]).
  std::function<void(uint32_t, uint32_t, std::span<const uint32_t>)> on_route;

  // Called before each layer when set: (layers run, of how many). False ends the pass with kCancelled.
  std::function<bool(uint32_t, uint32_t)> on_layer;

  // Names of the kernels in use, by weight format, for --explain.
  std::vector<std::string> kernels() const;
  // The faster ones that are not, and why: "q4_K: avx512_vnni: not on this processor". `cpu` is what create
  // was given, `machine` all that there is.
  std::vector<std::string> kernels_not_taken(const Cpu& cpu, const Cpu& machine) const;

 private:
  struct Impl;
  explicit Forward(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::model
