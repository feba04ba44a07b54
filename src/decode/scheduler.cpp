#include "decode/scheduler.h"

#include <algorithm>

#include "base/status.h"

namespace millrace::decode {

struct Scheduler::Active {
  uint64_t id = 0;
  Request request;
  std::vector<Token> ids;  // prompt and committed tokens
  uint32_t prompt = 0;     // how many of them are the prompt
  uint32_t done = 0;       // positions whose KV is committed
  uint32_t step_rows = 0;  // rows in the current step
  bool cancelled = false, finished = false;
  uint32_t alone_until = 0;  // a shared step failed: up to this position it runs by itself
  Sampler sampler;
  StopText stop;
  std::optional<Detokenizer> detokenizer;
  std::unique_ptr<model::KvSequence> sequence;  // with a KV page of its own once admitted

  Active(Request r, const SchedulerOptions& o)
      : request(std::move(r)), sampler(request.sampling, o.allowed), stop(request.stop) {}
};

Scheduler::Scheduler(model::Forward& forward, model::KvPool& pool, const Tokenizer* tokenizer,
                     std::vector<Token> stops, const SchedulerOptions& options)
    : forward_(forward),
      pool_(pool),
      tokenizer_(tokenizer),
      stops_(std::move(stops)),
      options_(options) {}
Scheduler::~Scheduler() = default;

Expected<uint64_t> Scheduler::submit(Request request) {
  MILLRACE_TRY(check(request.sampling));
  const auto& ids = request.prompt_ids;
  if (ids.empty()) return fail(Code::kInvalid, "the prompt has no tokens");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<uint32_t>(ids[i]) >= options_.vocab) {
      return fail(Code::kInvalid, "prompt id {} at position {} is outside the vocabulary (0 to {})",
                  ids[i], i, options_.vocab - 1);
    }
  }
  if (request.max_tokens == 0) return fail(Code::kInvalid, "at least one token must be asked for");
  if (ids.size() + 1 > options_.context) {
    return fail(Code::kInvalid,
                "the prompt has {} tokens and the context holds {}; give a larger --context",
                ids.size(), options_.context);
  }
  auto active = std::make_unique<Active>(std::move(request), options_);
  active->id = next_id_++;
  active->ids = active->request.prompt_ids;
  active->prompt = static_cast<uint32_t>(active->ids.size());
  if (tokenizer_)
    active->detokenizer.emplace(*tokenizer_,
                                DecodeOptions{.skip_special = true, .continuation = true});
  queue_.push_back(std::move(active));
  return next_id_ - 1;
}

void Scheduler::cancel(uint64_t id) {
  for (auto& a : active_) a->cancelled = a->cancelled || a->id == id;
  for (auto& a : queue_) a->cancelled = a->cancelled || a->id == id;
}

void Scheduler::admit() {
  while (!queue_.empty() && active_.size() < options_.max_requests) {
    auto& next = queue_.front();
    next->sequence = std::make_unique<model::KvSequence>(pool_);
    active_.push_back(std::move(next));
    queue_.pop_front();
  }
}

// Decode rows first, so that a long prompt never stalls running requests; the rest of the step is
// prompt.
void Scheduler::compose() {
  rows_.clear();
  auto add = [&](Active& a, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t position = a.done + i;
      rows_.push_back({a.sequence.get(), position, a.ids[position], position + 1 == a.ids.size()});
    }
    a.step_rows = n;
  };
  for (auto& a : active_) a->step_rows = 0;
  for (auto& a : active_) {
    if (a->done >= a->alone_until) continue;
    const auto room = std::min(options_.prefill_chunk, options_.max_rows);
    return add(*a, static_cast<uint32_t>(std::min<uint64_t>(room, a->ids.size() - a->done)));
  }
  for (auto& a : active_) {
    if (a->done + 1 == a->ids.size() && rows_.size() < options_.max_rows) add(*a, 1);
  }
  uint32_t chunk = rows_.empty() ? options_.prefill_chunk : options_.shared_chunk;
  for (auto& a : active_) {
    if (a->step_rows) continue;
    const auto room = std::min<uint64_t>(chunk, options_.max_rows - rows_.size());
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(room, a->ids.size() - a->done));
    if (n == 0) break;
    add(*a, n);
    chunk -= n;
  }
}

void Scheduler::finish(Active& a, FinishReason reason, const Error* error,
                       const std::function<void(const Event&)>& on_event) {
  std::string text;
  if (!a.stop.stopped()) {
    if (a.detokenizer) text = a.stop.push(a.detokenizer->flush());
    if (!a.stop.stopped()) text += a.stop.flush();
  }
  Event event;
  event.request = a.id;
  event.text = text;
  event.finish = reason;
  event.error = error;
  event.prompt_done = std::min(a.done, a.prompt);
  event.prompt_total = a.prompt;
  a.finished = true;
  a.sequence.reset();
  on_event(event);
}

void Scheduler::take_token(Active& a, std::span<const float> logits,
                           const std::function<void(const Event&)>& on_event) {
  const Token token = a.sampler.sample(logits, a.ids.size());
  a.ids.push_back(token);
  const bool stop_id =
      !a.request.ignore_eos && std::find(stops_.begin(), stops_.end(), token) != stops_.end();
  std::string text;
  if (a.detokenizer && !stop_id)
    text = a.stop.push(a.detokenizer->push(static_cast<uint32_t>(token)));

  Event event;
  event.request = a.id;
  event.token = token;
  event.text = text;
  event.prompt_done = event.prompt_total = a.prompt;
  if (a.request.logits_top) {
    const uint32_t n =
        std::min<uint32_t>(a.request.logits_top, static_cast<uint32_t>(logits.size()));
    std::vector<uint32_t> top(n);
    kernels::top_k(logits.data(), static_cast<uint32_t>(logits.size()), n, top.data());
    for (const uint32_t id : top) event.top.push_back({static_cast<Token>(id), logits[id]});
  }
  on_event(event);
  if (stop_id || a.stop.stopped()) return finish(a, FinishReason::kStop, nullptr, on_event);
  const uint64_t generated = a.ids.size() - a.prompt;
  if (generated >= a.request.max_tokens || a.ids.size() >= options_.context)
    finish(a, FinishReason::kLength, nullptr, on_event);
}

// What failed may be wanted by one request of the step only (an expert that cannot be read). So each
// repeats its part by itself, which gives the same bits, and only those that fail again are ended.
void Scheduler::fail_step(const Error& error, const std::function<void(const Event&)>& on_event) {
  const auto shared =
      std::ranges::count_if(active_, [](const auto& a) { return a->step_rows != 0; });
  for (auto& a : active_) {
    if (a->step_rows == 0) continue;
    if (error.code == Code::kCancelled) {  // by all of them
      finish(*a, FinishReason::kCancelled, nullptr, on_event);
      continue;
    }
    if (shared == 1) {
      finish(*a, FinishReason::kError, &error, on_event);
      continue;
    }
    a->alone_until = a->done + a->step_rows;
    if (!a->sequence->state().exists()) continue;
    // The failed pass left the recurrent state half-way, and there is no copy of it: from the start.
    a->sequence->trim(0);
    a->done = 0;
  }
  std::erase_if(active_, [](const auto& a) { return a->finished; });
}

Expected<bool> Scheduler::step(const std::function<void(const Event&)>& on_event) {
  admit();
  for (auto& a : active_) {
    if (a->cancelled) finish(*a, FinishReason::kCancelled, nullptr, on_event);
  }
  std::erase_if(active_, [](const auto& a) { return a->finished; });
  if (active_.empty()) return !queue_.empty();
  compose();

  // A long prompt passes in few steps: it says how far it is, and can be given up, between layers.
  forward_.on_layer = [&](uint32_t layer, uint32_t layers) {
    bool wanted = false;
    for (auto& a : active_) {
      if (a->step_rows > 1 && layer > 0) {
        Event event;
        event.request = a->id;
        event.prompt_done = std::min(
            a->prompt, a->done + static_cast<uint32_t>(uint64_t{a->step_rows} * layer / layers));
        event.prompt_total = a->prompt;
        on_event(event);
      }
      wanted = wanted || (a->step_rows > 0 && !a->cancelled);
    }
    return wanted;
  };
  auto run = [&]() -> Expected<std::span<const float>> {
    for (auto& a : active_) {
      if (a->step_rows) MILLRACE_TRY(a->sequence->reserve(a->done + a->step_rows));
    }
    return forward_.run(rows_);
  };
  auto logits = run();
  forward_.on_layer = nullptr;
  if (!logits) {
    fail_step(logits.error(), on_event);
    return !active_.empty() || !queue_.empty();
  }
  // Logits come in row order: the order of the requests as compose() added them, decode rows before
  // prompts.
  std::vector<Active*> owners;
  for (const model::Row& row : rows_) {
    if (!row.logits) continue;
    auto owner = std::find_if(active_.begin(), active_.end(),
                              [&](const auto& a) { return a->sequence.get() == row.sequence; });
    owners.push_back(owner->get());
  }
  for (auto& a : active_) {
    if (a->step_rows == 0) continue;
    a->done += a->step_rows;
    a->sequence->commit(a->done);
    if (a->done < a->prompt) {
      Event event;
      event.request = a->id;
      event.prompt_done = a->done;
      event.prompt_total = a->prompt;
      on_event(event);
    }
  }
  for (size_t i = 0; i < owners.size(); ++i)
    take_token(*owners[i], logits->subspan(i * options_.vocab, options_.vocab), on_event);
  std::erase_if(active_, [](const auto& a) { return a->finished; });
  return !active_.empty() || !queue_.empty();
}

Status Scheduler::score(const std::vector<Token>& ids,
                        const std::function<void(uint32_t, const float*)>& on_row, TieOrder ties) {
  if (ids.size() > options_.context)
    return fail(Code::kInvalid, "{} tokens do not fit a context of {}", ids.size(),
                options_.context);
  for (const Token id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= options_.vocab)
      return fail(Code::kInvalid, "token id {} is outside the vocabulary (0 to {})", id,
                  options_.vocab - 1);
  }
  model::KvSequence sequence(pool_);
  const uint32_t chunk =
      std::min({options_.prefill_chunk, options_.max_logit_rows, options_.max_rows});
  const auto tie_length =
      ties == TieOrder::kReference ? static_cast<uint32_t>(ids.size()) : uint32_t{0};
  for (uint32_t at = 0; at < ids.size();) {
    const auto n = static_cast<uint32_t>(std::min<size_t>(chunk, ids.size() - at));
    MILLRACE_TRY(sequence.reserve(at + n));
    std::vector<model::Row> rows;
    for (uint32_t i = 0; i < n; ++i)
      rows.push_back({&sequence, at + i, ids[at + i], true, tie_length});
    MILLRACE_ASSIGN(const auto logits, forward_.run(rows));
    sequence.commit(at + n);
    for (uint32_t i = 0; i < n; ++i) on_row(at + i, logits.data() + uint64_t{i} * options_.vocab);
    at += n;
  }
  return {};
}

}  // namespace millrace::decode
