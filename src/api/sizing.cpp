#include "api/sizing.h"

#include <algorithm>
#include <map>
#include <thread>

#include "api/mirrors.h"
#include "api/wave.h"
#include "base/numeric.h"
#include "base/size_text.h"
#include "base/status.h"
#include "format/piece_fill.h"
#include "stream/arena.h"
#include "stream/ledger.h"

namespace millrace {
namespace {

constexpr uint64_t kMiB = 1 << 20;
// Beyond what is resident when sizes are decided: thread stacks, heap of the token loop, page
// tables of the first kTablesInSlack bytes.
constexpr uint64_t kProcessSlack = 24 * kMiB;
constexpr uint64_t kTablesInSlack = 4096 * kMiB;
// Reads in flight that are planned for, where each takes a thread and a buffer: under a tight ceiling,
// and else (and as many as there are processors, up to the last number). On a disk of 1.7 GB/s and 16
// processors 16 of them read a tenth faster than 8; with 2 processors 8 are enough.
constexpr unsigned kFewBuffers = 4, kManyBuffers = 8, kMostBuffers = 16;
constexpr uint64_t kBuffersShare = 32;  // of the ceiling, one part
constexpr uint64_t kSmallestMargin = kMiB;
// What a whole machine keeps for others when no ceiling is given.
constexpr uint64_t kSystemReserve = 1024 * kMiB;

model::ForwardOptions forward_options(const EngineOptions& options, const model::ModelSpec& spec,
                                      uint32_t context, uint32_t chunk, uint32_t requests) {
  model::ForwardOptions out;
  out.activations = options.activations == ActivationPrecision::kF32 ? kernels::Activations::kF32
                                                                     : kernels::Activations::kInt8;
  out.max_rows = chunk + requests - 1;
  out.max_context = context;
  out.max_sequences = requests;
  // Prompt scoring wants logits of whole chunks; 32 MiB of them at most.
  const uint64_t rows = 32 * kMiB / (uint64_t{spec.vocab} * sizeof(float));
  out.max_logit_rows = static_cast<uint32_t>(
      std::clamp<uint64_t>(rows, std::min(requests, out.max_rows), out.max_rows));
  return out;
}

// The readers' bounce buffers: packed pieces are read straight into their slots.
Expected<uint64_t> reader_scratch(const Model::Impl& model) {
  uint64_t most = 0;
  if (model.packed) return most;
  for (const auto& piece : model.table.pieces) {
    MILLRACE_ASSIGN(const auto fill, format::PieceFill::plan(model.source(), piece));
    most = std::max(most, fill.scratch_bytes());
  }
  return round_up(most, uint64_t{4096});
}

void describe_kinds(const Model::Impl& model, const stream::ResidencyPlan& residency, bool fits,
                    Plan* plan) {
  std::map<format::PieceKind, Plan::Kind> kinds;
  std::map<format::PieceKind, uint64_t> pinned;
  for (size_t p = 0; p < model.table.pieces.size(); ++p) {
    const auto& piece = model.table.pieces[p];
    auto& kind = kinds[piece.kind];
    kind.name = format::name(piece.kind);
    kind.pieces += 1;
    kind.bytes += piece.bytes;
    plan->total_bytes += piece.bytes;
    if (fits && residency.pinned[p]) pinned[piece.kind] += 1;
  }
  if (fits) {
    for (const auto& c : residency.classes)
      kinds[c.kind].resident_bytes += c.slot_bytes * (uint64_t{c.pinned} + c.shared);
  }
  for (auto& [id, kind] : kinds) {
    kind.pinned = pinned[id] == kind.pieces;
    kind.resident_bytes = std::min(kind.resident_bytes, kind.bytes);
    plan->kinds.push_back(kind);
  }
}

Expected<kernels::KvType> kv_type_of(const EngineOptions& options, const model::ModelSpec& spec) {
  using kernels::KvType;
  if (!options.kv)
    return options.activations == ActivationPrecision::kF32 ? KvType::kF32 : KvType::kF16;
  KvType type = KvType::kF16;
  switch (*options.kv) {
    case KvPrecision::kF16:
      type = KvType::kF16;
      break;
    case KvPrecision::kF32:
      type = KvType::kF32;
      break;
    case KvPrecision::kQ8:
      type = KvType::kQ8;
      break;
    case KvPrecision::kQ4:
      type = KvType::kQ4;
      break;
  }
  MILLRACE_TRY(model::KvShape::check(spec, type));
  return type;
}

// What a ceiling goes to, as a table.
std::string why_too_small(const Sizing& s, uint64_t left, uint64_t weights) {
  const Plan& plan = s.plan;
  std::string text =
      fmt::format("a ceiling of {} ({}) is too small\n", size_text(plan.ceiling), s.ceiling_source);
  const auto row = [&text](const std::string& what, uint64_t bytes) {
    text += fmt::format("  {:<34} {:>12}\n", what, size_text(bytes));
  };
  row("program, tokenizer, tables", plan.process_bytes);
  row(fmt::format("KV for {} positions", plan.context), plan.kv_bytes);
  row(fmt::format("activations, {} rows a pass", plan.prefill_chunk), plan.activation_bytes);
  if (s.io_scratch > 0) row("buffers for reading", s.io_scratch);
  row("weights, at least", weights);
  row("left for weights", left);
  return text + fmt::format(
                    "The smallest that works is --memory {}; a smaller --context or "
                    "--prefill-chunk lowers it",
                    size_to_give(plan.smallest_memory));
}

// What was asked for and is more than there can be.
void warn_of_cuts(const EngineOptions& options, const Sizing& s) {
  const Plan& plan = s.plan;
  if (options.budget && *options.budget > plan.ceiling)
    options.warn(fmt::format("--budget {} is above the ceiling of {} ({}): weights get {}",
                             size_text(*options.budget), size_text(plan.ceiling), s.ceiling_source,
                             size_text(plan.budget)));
  if (options.prefill_chunk > plan.context)
    options.warn(
        fmt::format("--prefill-chunk {} is above the context of {} positions: {} are taken",
                    options.prefill_chunk, plan.context, plan.prefill_chunk));
}

}  // namespace

void describe_residency(const Model::Impl& model, const stream::ResidencyPlan& residency, bool fits,
                        Plan* plan) {
  plan->kinds.clear();
  plan->total_bytes = 0;
  plan->bytes_per_token = plan->touched_per_token = 0;
  if (fits) {
    const Traffic traffic = pass_traffic(model, residency, 1);
    plan->touched_per_token = traffic.touched;
    plan->bytes_per_token = traffic.read;
  }
  describe_kinds(model, residency, fits, plan);
}

// Eight bytes for each page of 4 KiB, whether it lies in a huge page or not.
uint64_t page_tables(uint64_t ceiling) {
  return (ceiling - std::min(ceiling, kTablesInSlack)) / 512;
}

Expected<Ceiling> derive_ceiling(const std::optional<uint64_t>& memory, const std::string& root) {
  const auto mib = [](uint64_t b) { return b / kMiB; };
  auto found = stream::memory_limit(root);
  if (!found && memory) return Ceiling{*memory, "--memory", ""};
  MILLRACE_ASSIGN(const auto limit, std::move(found));
  if (memory && *memory <= limit.bytes) return Ceiling{*memory, "--memory", ""};
  if (memory) {
    return Ceiling{
        limit.bytes, fmt::format("{}, less than --memory", limit.source),
        fmt::format("--memory: {} MiB were asked for, and there are {} MiB ({}): that is "
                    "the ceiling",
                    mib(*memory), mib(limit.bytes), limit.source)};
  }
  const uint64_t reserve = std::min(kSystemReserve, limit.bytes / 8);
  const uint64_t most = limit.bytes - reserve;
  // What we hold ourselves is not available to others, and still ours.
  const uint64_t now = std::max(limit.available + stream::current_rss(), limit.bytes / 4);
  const uint64_t bytes = std::min(most, now);
  std::string source = now < most
                           ? fmt::format("{} MiB available now of {} MiB ({})",
                                         mib(limit.available), mib(limit.bytes), limit.source)
                           : fmt::format("{} MiB ({}) less {} MiB for others", mib(limit.bytes),
                                         limit.source, mib(reserve));
  return Ceiling{bytes, std::move(source), ""};
}

Expected<Sizing> size_model(const Model::Impl& model, const EngineOptions& options) {
  Sizing s;
  Plan& plan = s.plan;
  const model::ModelSpec& spec = model.spec;
  plan.architecture = spec.family;
  plan.format = model.info.format;
  plan.parameters = model.info.parameters;
  const uint32_t requests = std::max(1u, options.max_requests);

  MILLRACE_ASSIGN(const Ceiling ceiling, derive_ceiling(options.memory, options.system_root));
  plan.ceiling = ceiling.bytes;
  plan.warning = ceiling.warning;
  s.ceiling_source = ceiling.source;
  const uint64_t tables = page_tables(plan.ceiling);
  plan.process_bytes = stream::current_rss() + kProcessSlack + tables;
  MILLRACE_ASSIGN(const uint64_t scratch, reader_scratch(model));
  const unsigned least_buffers = options.io_threads ? options.io_threads : kFewBuffers;
  const auto set_buffers = [&](uint64_t count) {
    s.io_buffers = static_cast<unsigned>(count);
    s.io_scratch = scratch * s.io_buffers;
  };
  set_buffers(least_buffers);
  if (options.io_threads == 0 && scratch > 0) {
    const uint64_t most =
        std::clamp(std::thread::hardware_concurrency(), kManyBuffers, kMostBuffers);
    set_buffers(std::clamp<uint64_t>(plan.ceiling / kBuffersShare / scratch, kFewBuffers, most));
  }

  // Context: what was asked for, else as much as the model was made for, up to 4096 and a quarter
  // of the ceiling.
  MILLRACE_ASSIGN(const auto kv_type, kv_type_of(options, spec));
  if (options.context > spec.max_context) {
    return fail(Code::kInvalid,
                "--context {} is longer than the {} positions this model was made for",
                options.context, spec.max_context);
  }
  uint32_t context = options.context ? options.context : std::min(spec.max_context, 4096u);
  uint32_t chunk =
      options.prefill_chunk ? std::min(options.prefill_chunk, context) : std::min(256u, context);
  auto kv_bytes = [&] {
    s.kv = model::KvShape::make(spec, kv_type, context, chunk, requests);
    return s.kv.bytes();
  };
  auto buffer_bytes = [&] {
    kv_bytes();
    s.forward = forward_options(options, spec, context, chunk, requests);
    return model::Forward::buffer_bytes(spec, s.forward, s.kv);
  };
  while (!options.context && context > 256 && kv_bytes() > plan.ceiling / 4) context /= 2;
  chunk = std::min(chunk, context);
  while (!options.prefill_chunk && chunk > 16 && buffer_bytes() > plan.ceiling / 10) chunk /= 2;

  stream::Demand& demand = s.demand;
  demand.tied_head = spec.tied;
  for (const auto& layer : spec.layers) {
    if (layer.ffn.moe)
      demand.experts_per_token = std::max(demand.experts_per_token, layer.ffn.moe->used);
  }
  MILLRACE_ASSIGN(const auto whole, stream::plan_residency(model.table, UINT64_MAX / 4, demand));
  plan.smallest_budget = whole.smallest_budget;
  plan.comfortable_budget = whole.comfortable_budget;

  // What was not asked for shrinks further before a ceiling is refused.
  auto shrink = [&] {
    if (s.io_buffers > least_buffers) {
      set_buffers(least_buffers);
    } else if (!options.prefill_chunk && chunk > 16) {
      chunk /= 2;
    } else if (!options.context && context > 256) {
      context /= 2;
      chunk = std::min(chunk, context);
    } else {
      return false;
    }
    return true;
  };
  auto fixed_bytes = [&] {
    const uint64_t buffers = buffer_bytes();
    return plan.process_bytes + s.kv.bytes() + buffers + s.io_scratch;
  };
  // Explicit huge pages are whole: each class of slots may end in one that is used in part.
  const uint64_t rounding =
      options.huge_pages == HugePages::kOn ? whole.classes.size() * stream::Arena::kHugePage : 0;
  const uint64_t least_weights = whole.smallest_budget + rounding;
  while (fixed_bytes() + least_weights > plan.ceiling && shrink()) {
  }
  // The least that works does not depend on the ceiling. The process itself differs a little from
  // run to run; the margin lets the number work in the next one.
  const uint32_t chosen_context = context, chosen_chunk = chunk;
  const unsigned chosen_buffers = s.io_buffers;
  while (shrink()) {
  }
  const uint64_t least = fixed_bytes() - tables + least_weights;
  plan.smallest_memory =
      round_up(least + page_tables(least + page_tables(least)), kMiB) + kSmallestMargin;
  context = chosen_context, chunk = chosen_chunk;
  set_buffers(chosen_buffers);

  const auto budget_beside = [&](uint64_t fixed) {
    fixed += rounding;
    const uint64_t left = plan.ceiling > fixed ? plan.ceiling - fixed : 0;
    return std::min(options.budget.value_or(UINT64_MAX), left);
  };
  // Requests that make tokens do not wait for a long wave of another's prompt.
  s.shared_chunk = chunk;
  if (options.prefill_chunk) {
    plan.prefill_why = "asked for";
  } else {
    WaveLimits limits;
    limits.smallest = chunk;
    limits.context = context;
    limits.most_activations = plan.ceiling / 4;
    limits.activations = [&](uint32_t rows) {
      chunk = rows;
      return buffer_bytes();
    };
    limits.residency = [&](uint32_t rows) {
      chunk = rows;
      return stream::plan_residency(model.table, budget_beside(fixed_bytes()), demand);
    };
    Wave wave = choose_wave(model, limits);
    chunk = wave.rows;
    plan.prefill_why = std::move(wave.why);
  }

  const uint64_t fixed = fixed_bytes();
  plan.context = context;
  plan.prefill_chunk = chunk;
  plan.kv_bytes = s.kv.bytes();
  plan.activation_bytes = model::Forward::buffer_bytes(spec, s.forward, s.kv);
  const uint64_t left = plan.ceiling > fixed ? plan.ceiling - fixed : 0;
  plan.budget = budget_beside(fixed);
  auto residency = stream::plan_residency(model.table, plan.budget, demand);
  if (residency) {
    s.residency = std::move(*residency);
    plan.fits = true;
    plan.budget = std::min(plan.budget, s.residency.arena_bytes);
  } else if (residency.error().code != Code::kNoMemory) {
    return tl::make_unexpected(residency.error());
  } else if (options.budget && *options.budget < whole.smallest_budget) {
    plan.why = fmt::format(
        "--budget {} is too small for the working set of one layer; the smallest that works is "
        "--budget {}",
        size_text(*options.budget), size_to_give(whole.smallest_budget));
  } else {
    plan.why = why_too_small(s, left, whole.smallest_budget);
  }
  if (options.warn && plan.fits) warn_of_cuts(options, s);
  describe_residency(model, s.residency, plan.fits, &plan);
  return s;
}

Expected<Plan> make_plan(const Model& model, const EngineOptions& options) {
  MILLRACE_TRY(check_reading(model.impl(), options));
  MILLRACE_TRY(mirror_folders(model.impl(), options));
  MILLRACE_ASSIGN(auto sizing, size_model(model.impl(), options));
  return std::move(sizing.plan);
}

}  // namespace millrace
