// A model with all its weights in memory and direct access to the forward pass: for tests of what
// happens below the scheduler (chunks, shared steps, rollback).
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api/sizing.h"
#include "base/status.h"
#include "model/forward.h"
#include "stream/reader_in_place.h"
#include "tests/support/engine_run.h"

namespace millrace::test {

class ForwardLab {
 public:
  // `saves`: copies of recurrent state each sequence may keep. Float activations and KV, or int8
  // activations and f16 KV as by default; or another type of KV.
  ForwardLab(const std::string& path, uint32_t sequences, uint32_t rows, uint32_t saves,
             unsigned threads = 1, ActivationPrecision precision = ActivationPrecision::kF32,
             std::optional<kernels::KvType> kv_type = std::nullopt)
      : threads_(threads) {
    const auto type = kv_type                                  ? *kv_type
                      : precision == ActivationPrecision::kF32 ? kernels::KvType::kF32
                                                               : kernels::KvType::kF16;
    if (auto ok = open(path, sequences, rows, saves, precision, type); !ok) report(ok.error());
  }

  uint32_t vocab() const { return spec().vocab; }
  const model::ModelSpec& spec() const { return model_->impl().spec; }

  // Logits of all rows; the rows are reserved, and committed when `commit`.
  std::vector<float> run(const std::vector<model::Row>& rows, bool commit = true) {
    for (const auto& row : rows) {
      if (auto ok = row.sequence->reserve(row.position + 1); !ok)
        return report(ok.error()), Logits();
    }
    auto logits = forward->run(rows);
    if (!logits) return report(logits.error()), Logits();
    if (commit) {
      for (const auto& row : rows) row.sequence->commit(row.position + 1);
    }
    return {logits->begin(), logits->end()};
  }
  // Rows of one sequence at [begin, end) of `ids`.
  std::vector<float> run(model::KvSequence& sequence, const std::vector<int32_t>& ids,
                         uint32_t begin, uint32_t end, bool commit = true) {
    std::vector<model::Row> rows;
    for (uint32_t p = begin; p < end; ++p) rows.push_back({&sequence, p, ids[p], true});
    return run(rows, commit);
  }

  stream::Ledger ledger{uint64_t{4} << 30};
  std::unique_ptr<model::KvPool> kv;
  std::unique_ptr<model::Forward> forward;

 private:
  using Logits = std::vector<float>;
  static void report(const Error& error) { ADD_FAILURE() << error.message; }

  Status open(const std::string& path, uint32_t sequences, uint32_t rows, uint32_t saves,
              ActivationPrecision precision, kernels::KvType kv_type) {
    const bool floats = precision == ActivationPrecision::kF32;
    MILLRACE_ASSIGN(model_, Model::open(path));
    auto& m = model_->impl();
    EngineOptions options;
    options.activations = precision;
    MILLRACE_ASSIGN(auto sizing, size_model(m, options));
    const uint32_t context = std::min(m.spec.max_context, 256u);
    MILLRACE_ASSIGN(reader_, stream::make_in_place_reader(m.source(), m.table, {}));
    MILLRACE_ASSIGN(store_, stream::PieceStore::create(m.table, sizing.residency, *reader_, ledger,
                                                       {.io_threads = 1}));
    MILLRACE_ASSIGN(
        kv, model::KvPool::create(
                model::KvShape::make(m.spec, kv_type, context, rows, sequences, saves), ledger));
    model::ForwardOptions forward_options;
    forward_options.activations = floats ? kernels::Activations::kF32 : kernels::Activations::kInt8;
    forward_options.max_rows = forward_options.max_logit_rows = rows;
    forward_options.max_context = context;
    MILLRACE_ASSIGN(forward, model::Forward::create(m.spec, m.table, *store_, kv->shape(), threads_,
                                                    Cpu::detect(), ledger, forward_options));
    return {};
  }

  std::shared_ptr<Model> model_;
  std::unique_ptr<stream::PieceReader> reader_;
  std::unique_ptr<stream::PieceStore> store_;
  Threads threads_;
};

}  // namespace millrace::test
