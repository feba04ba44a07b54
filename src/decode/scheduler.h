// The step loop: each step is a set of rows (decode rows and prefill chunks of the active
// requests), run through one forward pass that shares every weight read.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "decode/sampler.h"
#include "decode/stop_text.h"
#include "millrace/millrace.h"
#include "model/forward.h"
#include "model/kv.h"
#include "text/detokenizer.h"

namespace millrace::decode {

struct SchedulerOptions {
  uint32_t context = 0;        // most positions of a request
  uint32_t prefill_chunk = 0;  // prompt rows in a step
  uint32_t shared_chunk = 0;   // and beside rows that decode, which must not wait long
  uint32_t max_requests = 1;   // requests with KV at the same time
  uint32_t max_rows = 1;
  uint32_t max_logit_rows = 1;
  uint32_t vocab = 0;    // rows of the head
  uint32_t allowed = 0;  // ids from this one on are never sampled
};

class Scheduler {
 public:
  // `tokenizer` may be null: then requests have ids only and events carry no text.
  Scheduler(model::Forward& forward, model::KvPool& pool, const Tokenizer* tokenizer,
            std::vector<Token> stops, const SchedulerOptions& options);
  ~Scheduler();

  // `request.prompt_ids` is filled and not empty.
  Expected<uint64_t> submit(Request request);
  void cancel(uint64_t id);
  // One forward pass. False when nothing is left to do.
  Expected<bool> step(const std::function<void(const Event&)>& on_event);
  Status score(const std::vector<Token>& ids,
               const std::function<void(uint32_t, const float*)>& on_row, TieOrder ties);

 private:
  struct Active;
  void admit();
  void compose();
  void take_token(Active& active, std::span<const float> logits,
                  const std::function<void(const Event&)>& on_event);
  void fail_step(const Error& error, const std::function<void(const Event&)>& on_event);
  void finish(Active& active, FinishReason reason, const Error* error,
              const std::function<void(const Event&)>& on_event);

  model::Forward& forward_;
  model::KvPool& pool_;
  const Tokenizer* tokenizer_;
  std::vector<Token> stops_;
  SchedulerOptions options_;
  uint64_t next_id_ = 1;
  std::deque<std::unique_ptr<Active>> queue_;
  std::vector<std::unique_ptr<Active>> active_;
  std::vector<model::Row> rows_;
};

}  // namespace millrace::decode
