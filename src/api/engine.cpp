// Engine: puts ledger, reader, store, KV, forward pass and scheduler together in the order of the
// reservations.
#include <algorithm>
#include <chrono>

#include "api/budget.h"
#include "api/mirrors.h"
#include "api/sizing.h"
#include "base/numa.h"
#include "base/size_text.h"
#include "base/status.h"
#include "base/threads.h"
#include "decode/scheduler.h"
#include "decode/step_timer.h"
#include "io/choose.h"
#include "stream/io_trace.h"
#include "stream/ledger.h"
#include "stream/reader_in_place.h"
#include "stream/reader_packed.h"
#include "stream/store.h"
#include "stream/trace.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

struct Engine::Impl {
  std::shared_ptr<Model> model;
  EngineOptions options;
  Sizing sizing;
  std::unique_ptr<stream::Ledger> ledger;
  std::unique_ptr<stream::PieceReader> reader;
  std::unique_ptr<stream::IoTrace> io_trace;
  std::unique_ptr<stream::PieceStore> store;
  std::unique_ptr<model::KvPool> kv;
  std::unique_ptr<Threads> threads;
  std::unique_ptr<model::Forward> forward;
  std::unique_ptr<decode::Scheduler> scheduler;
  std::unique_ptr<BudgetControl> budget;
  std::unique_ptr<stream::TraceWriter> trace;
  std::map<std::string, std::string> choices;
  double load_s = 0;

  // What readers met since the last call. On the caller's thread, unlike the readers.
  void pass_on_notes() {
    for (const std::string& note : reader->notes()) {
      if (options.warn) options.warn(note);
    }
  }
  // What was asked for in so many words and could not be had.
  void warn_of_fallbacks() const {
    if (!options.warn) return;
    if (const std::string& why = store->read_choice().fallback; !why.empty()) options.warn(why);
    if (options.huge_pages == HugePages::kOn && !store->pages().starts_with("2 MiB"))
      options.warn(
          fmt::format("explicit huge pages were asked for; weights lie in: {}", store->pages()));
  }
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
const Model& Engine::model() const { return *impl_->model; }
const Plan& Engine::plan() const { return impl_->sizing.plan; }

namespace {

// What keeps router lookahead (prefetch) from working on this model at all.
std::string lookahead_limits(const Model& model) {
  const auto& layers = model.impl().spec.layers;
  const auto apart = [](const auto& layer) { return layer.ffn.moe && layer.ffn.moe->apart; };
  return std::any_of(layers.begin(), layers.end(), apart)
             ? "; no router lookahead: routers of this model have an input of their own"
             : "";
}

}  // namespace

std::map<std::string, std::string> Engine::choices() const {
  auto choices = impl_->choices;
  if (impl_->model->info().experts > 0)
    choices["prefetch"] = impl_->store->prefetch_choice() + lookahead_limits(*impl_->model);
  const Sizing& sizing = impl_->sizing;  // these may have changed since
  choices["ceiling"] = fmt::format("{}: {}", size_text(sizing.plan.ceiling), sizing.ceiling_source);
  return choices;
}

namespace {

Expected<std::unique_ptr<stream::PieceReader>> make_reader(
    const Model::Impl& model, const EngineOptions& options, const Sizing& sizing,
    std::map<std::string, std::string>* choices) {
  MILLRACE_ASSIGN(const auto limit, stream::memory_limit());
  io::ModeFacts facts;
  facts.weights = sizing.plan.total_bytes;
  facts.available = limit.available > sizing.residency.arena_bytes
                        ? limit.available - sizing.residency.arena_bytes
                        : 0;
  facts.ceiling = options.memory && *options.memory < limit.bytes;
  const auto request = options.io == IoMode::kDirect     ? io::Request::kDirect
                       : options.io == IoMode::kBuffered ? io::Request::kBuffered
                                                         : io::Request::kAuto;
  const std::string& path = model.packed ? model.packed->files[0] : model.source().files[0].path;
  const io::ModeChoice choice = io::choose_mode(request, facts, path);
  (*choices)["io"] = choice.reason;
  MILLRACE_TRY(check_reading(model, options));
  MILLRACE_ASSIGN(const std::vector<std::string> mirrors, mirror_folders(model, options));
  if (!mirrors.empty()) (*choices)["mirrors"] = fmt::format("{}", fmt::join(mirrors, ", "));
  if (model.packed) {
    return stream::make_packed_reader(*model.packed, model.table,
                                      {.mode = choice.mode,
                                       .verify_always = options.verify_reads,
                                       .hook = options.read_hook,
                                       .mirrors = mirrors});
  }
  return stream::make_in_place_reader(
      model.source(), model.table,
      {.mode = choice.mode, .hook = options.read_hook, .mirrors = mirrors});
}

stream::BackendKind backend_kind(IoBackend backend) {
  return backend == IoBackend::kPread   ? stream::BackendKind::kPread
         : backend == IoBackend::kUring ? stream::BackendKind::kUring
                                        : stream::BackendKind::kAuto;
}

Expected<std::unique_ptr<stream::TraceWriter>> make_trace(const Model::Impl& model,
                                                          const std::string& path) {
  stream::TraceHead head;
  head.model = model.info.name;
  head.layers = static_cast<uint32_t>(model.spec.layers.size());
  head.experts = model.info.experts;
  head.used = model.info.experts_used;
  if (head.experts == 0)
    return fail(Code::kInvalid, "{}: the model has no experts to trace", model.info.name);
  for (const auto& piece : model.table.pieces)
    if (piece.kind == format::PieceKind::kExpert)
      head.expert_bytes = std::max(head.expert_bytes, piece.bytes);
  return stream::TraceWriter::create(path, head);
}

}  // namespace

Expected<std::unique_ptr<Engine>> Engine::open(const EngineOptions& options) {
  const auto start = Clock::now();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  const Cpu machine = Cpu::detect();
  Cpu cpu = machine;
  if (!options.kernels.empty()) {
    auto limited = machine.limited_to(options.kernels);
    if (!limited) return with_context("kernels", limited.error());
    cpu = *limited;
  }
  MILLRACE_ASSIGN(impl->model, Model::open(options.model));
  Model::Impl& m = impl->model->impl();
  MILLRACE_ASSIGN(impl->sizing, size_model(m, options));
  Sizing& sizing = impl->sizing;
  if (!sizing.plan.fits) return fail(Code::kNoMemory, "{}: {}", options.model, sizing.plan.why);

  // What can be refused is refused before weights are read.
  stream::StoreOptions store_options;
  store_options.io_threads = options.io_threads;
  store_options.buffers = sizing.io_buffers;
  store_options.backend = backend_kind(options.io_backend);
  store_options.arena.lock = options.mlock;
  store_options.arena.huge_pages = options.huge_pages == HugePages::kOff ? stream::HugePages::kOff
                                   : options.huge_pages == HugePages::kOn
                                       ? stream::HugePages::kOn
                                       : stream::HugePages::kAuto;
  if (!options.policy.empty()) {
    MILLRACE_ASSIGN(store_options.policy, stream::find_policy(options.policy));
  }
  if (!options.trace.empty()) {
    MILLRACE_ASSIGN(impl->trace, make_trace(m, options.trace));
  }
  store_options.prefetch = options.prefetch.empty() ? "auto" : options.prefetch;
  if (!options.io_trace.empty()) {
    MILLRACE_ASSIGN(impl->io_trace,
                    stream::IoTrace::create(options.io_trace, m.info.name, m.table));
    store_options.on_read = [trace = impl->io_trace.get()](const stream::ReadRecord& record) {
      trace->add(record);
    };
  }

  impl->ledger = std::make_unique<stream::Ledger>(sizing.plan.ceiling);
  MILLRACE_TRY(impl->ledger->reserve(stream::Use::kProcess, sizing.plan.process_bytes));
  MILLRACE_ASSIGN(impl->reader, make_reader(m, options, sizing, &impl->choices));
  MILLRACE_ASSIGN(impl->store, stream::PieceStore::create(m.table, sizing.residency, *impl->reader,
                                                          *impl->ledger, store_options));
  MILLRACE_ASSIGN(impl->kv, model::KvPool::create(sizing.kv, *impl->ledger));

  const unsigned count = options.threads ? options.threads : std::max(1u, machine.logical);
  impl->threads = std::make_unique<Threads>(count);
  if (options.preload) MILLRACE_TRY(impl->store->load_pinned({}));
  MILLRACE_ASSIGN(impl->forward,
                  model::Forward::create(m.spec, m.table, *impl->store, impl->kv->shape(),
                                         *impl->threads, cpu, *impl->ledger, sizing.forward));
  if (impl->trace) {
    impl->forward->on_route = [writer = impl->trace.get()](uint32_t layer, uint32_t,
                                                           std::span<const uint32_t> chosen) {
      writer->add(layer, chosen);
    };
  }
  decode::SchedulerOptions so;
  so.context = sizing.plan.context;
  so.prefill_chunk = sizing.plan.prefill_chunk;
  so.shared_chunk = sizing.shared_chunk;
  so.max_requests = std::max(1u, options.max_requests);
  so.max_rows = sizing.forward.max_rows;
  so.max_logit_rows = sizing.forward.max_logit_rows;
  so.vocab = m.spec.vocab;
  so.allowed = m.tokenizer ? std::min(m.spec.vocab, m.tokenizer->vocab_size()) : m.spec.vocab;
  impl->scheduler = std::make_unique<decode::Scheduler>(
      *impl->forward, *impl->kv, m.tokenizer ? &*m.tokenizer : nullptr, m.stops, so);
  impl->budget = std::make_unique<BudgetControl>(
      m, options, sizing, *impl->ledger, *impl->store, impl->reader->buffered_files(),
      options.relieve ? stream::PressureMonitor::create(
                            {.root = options.system_root, .triggers = options.system_root == "/"})
                      : nullptr);
  impl->load_s = seconds_since(start);

  auto& c = impl->choices;
  c["activations"] = options.activations == ActivationPrecision::kF32 ? "f32" : "int8";
  c["kv"] = kernels::kv_name(sizing.kv.type);
  c["threads"] = std::to_string(count);
  const size_t nodes = memory_nodes().size();
  c["memory nodes"] = nodes == 1 ? "1" : fmt::format("{}, weights and KV spread over them", nodes);
  c["kernels"] = fmt::format("{}", fmt::join(impl->forward->kernels(), ", "));
  c["kernels not taken"] =
      fmt::format("{}", fmt::join(impl->forward->kernels_not_taken(cpu, machine), "; "));
  c["cpu"] = cpu.model.empty() ? "portable C++" : cpu.model;
  c["reads"] = impl->store->reading();
  const stream::ReadChoice& reads = impl->store->read_choice();
  for (const io::ReadRate& rate : reads.rates)
    c[fmt::format("reads, {} {:>2} deep", io::name(rate.via), rate.depth)] =
        fmt::format("{:.0f} MB/s with reads of {}, measured", rate.bytes_per_second() / 1e6,
                    size_text(rate.request));
  c["source"] = m.packed ? "packed" : "in place";
  c["policy"] =
      fmt::format("experts {}, scan cyclic with read-ahead", stream::name(store_options.policy));
  c["huge pages"] = impl->store->pages();
  c["pressure"] = impl->budget->pressure().watching;
  c["context"] = std::to_string(sizing.plan.context);
  c["prefill_chunk"] = fmt::format("{}: {}", sizing.plan.prefill_chunk, sizing.plan.prefill_why);
  c["drafter"] = "none";
  if (!m.audit.dropped.empty())
    c["dropped_tensors"] = fmt::format("{}", fmt::join(m.audit.dropped, ", "));
  std::unique_ptr<Engine> engine(new Engine(std::move(impl)));
  if (options.log) {
    for (const auto& [key, value] : engine->choices()) options.log(key + ": " + value);
  }
  const std::string& warning = engine->plan().warning;
  if (options.warn && !warning.empty()) options.warn(warning);
  engine->impl_->warn_of_fallbacks();
  engine->impl_->pass_on_notes();
  return engine;
}

Expected<uint64_t> Engine::submit(Request request) {
  if (request.prompt_ids.empty()) {
    MILLRACE_ASSIGN(request.prompt_ids, impl_->model->tokenize(request.prompt));
  }
  return impl_->scheduler->submit(std::move(request));
}

void Engine::cancel(uint64_t request) { impl_->scheduler->cancel(request); }

Expected<bool> Engine::step(const std::function<void(const Event&)>& on_event) {
  impl_->budget->at_boundary();
  auto more = impl_->scheduler->step(on_event);
  impl_->pass_on_notes();
  return more;
}

Status Engine::set_memory(std::optional<uint64_t> bytes) {
  return impl_->budget->set_memory(bytes);
}
Status Engine::set_budget(std::optional<uint64_t> bytes) {
  return impl_->budget->set_budget(bytes);
}
PressureReport Engine::pressure() const { return impl_->budget->pressure(); }

Expected<Engine::Completion> Engine::generate(Request request,
                                              const std::function<bool(const Event&)>& on_event) {
  if (request.prompt_ids.empty()) {
    MILLRACE_ASSIGN(request.prompt_ids, impl_->model->tokenize(request.prompt));
  }
  Completion out;
  out.prompt_ids = request.prompt_ids;
  out.timings.load_s = impl_->load_s;
  out.timings.prompt_tokens = request.prompt_ids.size();
  const auto start = Clock::now();
  MILLRACE_ASSIGN(const uint64_t id, impl_->scheduler->submit(std::move(request)));
  std::optional<Error> error;
  bool first = true, done = false;
  auto on = [&](const Event& event) {
    if (event.request != id) return;
    if (event.token) {
      if (first) out.timings.ttft_s = out.timings.prefill_s = seconds_since(start);
      first = false;
      out.token_ids.push_back(*event.token);
    }
    out.text += event.text;
    if (event.finish != FinishReason::kNone) {
      out.finish = event.finish;
      done = true;
      if (event.error) error = *event.error;
    }
    if (on_event && !on_event(event) && !done) impl_->scheduler->cancel(id);
  };
  while (!done) {
    MILLRACE_ASSIGN(const bool more, step(on));
    if (!more && !done) return fail(Code::kInternal, "the request ended without a reason");
  }
  if (error) return tl::make_unexpected(*error);
  out.timings.generated_tokens = out.token_ids.size();
  out.timings.decode_s = first ? 0 : seconds_since(start) - out.timings.prefill_s;
  return out;
}

Status Engine::score(const std::vector<Token>& ids,
                     const std::function<void(uint32_t, const float*)>& on_row, TieOrder ties) {
  impl_->budget->at_boundary();
  return impl_->scheduler->score(ids, on_row, ties);
}

Expected<std::vector<double>> Engine::time_steps(const StepShape& shape, uint32_t repeats,
                                                 uint64_t seed) {
  impl_->budget->at_boundary();
  const Sizing& sizing = impl_->sizing;
  const decode::TimerLimits limits = {
      .context = sizing.plan.context,
      .max_rows = sizing.forward.max_rows,
      .max_logit_rows = sizing.forward.max_logit_rows,
      .prefill_chunk = sizing.plan.prefill_chunk,
      .vocab = impl_->model->impl().spec.vocab,
  };
  return decode::time_steps(*impl_->forward, *impl_->kv, limits, shape, repeats, seed);
}

MemoryReport Engine::memory() const {
  MemoryReport report;
  const auto& ledger = *impl_->ledger;
  report.ceiling = ledger.ceiling();
  report.arena = ledger.held(stream::Use::kWeights);
  report.kv = ledger.held(stream::Use::kKv);
  report.activations = ledger.held(stream::Use::kActivations);
  report.process = ledger.held(stream::Use::kProcess) + ledger.held(stream::Use::kIo);
  report.peak_rss = stream::peak_rss();
  impl_->budget->report(&report);
  return report;
}

Status Engine::finish_trace() {
  if (impl_->io_trace) MILLRACE_TRY(impl_->io_trace->close());
  return impl_->trace ? impl_->trace->close() : Status();
}

IoReport Engine::io() const {
  const auto stats = impl_->store->stats();
  IoReport report;
  report.mode = impl_->reader->mode();
  report.backend = impl_->store->reading();
  report.uring = impl_->store->read_choice().uring;
  report.depth = impl_->store->read_choice().depth;
  report.read_bytes = impl_->store->read_choice().read_bytes;
  report.bytes_read = stats.bytes_read;
  report.reads = stats.reads;
  report.expert_hits = stats.expert_hits;
  report.expert_misses = stats.expert_misses;
  report.stall_s = static_cast<double>(stats.stall_ns) * 1e-9;
  report.busy_s = static_cast<double>(stats.busy_ns) * 1e-9;
  report.idle_s = static_cast<double>(stats.idle_ns) * 1e-9;
  report.prefetch_issued = stats.prefetch.issued;
  report.prefetch_used = stats.prefetch.used;
  report.prefetch_wasted = stats.prefetch.wasted;
  report.prefetch_cancelled = stats.prefetch.cancelled;
  return report;
}

}  // namespace millrace
