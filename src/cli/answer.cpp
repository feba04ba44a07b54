#include "cli/answer.h"

#include <spdlog/spdlog.h>

#include <optional>

#include "cli/interrupt.h"
#include "cli/size.h"

namespace millrace::cli {
namespace {

double per_second(uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

// The first token comes out of prefill, so decode makes one less than there are.
uint64_t decoded(const Answer& answer) {
  const uint64_t made = answer.completion.timings.generated_tokens;
  return made > 0 ? made - 1 : 0;
}

double bytes_per_token(const Answer& answer) {
  const uint64_t read = answer.after.bytes_read - answer.first_token.bytes_read;
  return decoded(answer) > 0 ? static_cast<double>(read) / static_cast<double>(decoded(answer))
                             : 0.0;
}

uint64_t hits(const Answer& answer) { return answer.after.expert_hits - answer.before.expert_hits; }
uint64_t misses(const Answer& answer) {
  return answer.after.expert_misses - answer.before.expert_misses;
}

double hit_rate(const Answer& answer) {
  const uint64_t fired = hits(answer) + misses(answer);
  return fired > 0 ? static_cast<double>(hits(answer)) / static_cast<double>(fired) : 0.0;
}

}  // namespace

Expected<Answer> generate_answer(const Cli& cli, Engine& engine, Request request, bool stream) {
  Answer answer;
  answer.before = engine.io();
  answer.first_token = answer.before;
  bool first = true;
  bool written = true;
  Progress progress(cli.terminal, cli.quiet, "reading the prompt", Unit::kTokens);

  const auto on_event = [&](const Event& event) {
    if (!event.token && event.prompt_done < event.prompt_total)
      progress.update(event.prompt_done, event.prompt_total);
    if (event.token && first) {
      first = false;
      progress.finish();
      answer.first_token = engine.io();
    }
    if (stream && !event.text.empty()) {
      progress.finish();
      written = written && put(event.text);
      answer.ends_line = event.text.back() == '\n';
    }
    return written && !interrupted();
  };
  auto completion = engine.generate(std::move(request), on_event);
  progress.finish();
  if (!completion) return tl::make_unexpected(completion.error());
  if (!written) return tl::make_unexpected(Error{Code::kIo, "standard output cannot be written"});
  answer.completion = std::move(*completion);
  answer.after = engine.io();
  return answer;
}

std::string answer_report(const Engine& engine, const Answer& answer) {
  const Timings& time = answer.completion.timings;
  const MemoryReport memory = engine.memory();
  const IoReport& io = answer.after;
  const auto size = [](uint64_t bytes) { return format_size(static_cast<double>(bytes)); };

  std::string text;
  const auto line = [&text](std::string_view label, const std::string& value) {
    text += fmt::format("  {:<10} {}\n", label, value);
  };
  line("loaded", fmt::format("in {}", format_seconds(time.load_s)));
  line("prompt",
       fmt::format("{} tokens in {}, {:.1f} tok/s; first token after {}", time.prompt_tokens,
                   format_seconds(time.prefill_s), per_second(time.prompt_tokens, time.prefill_s),
                   format_seconds(time.ttft_s)));
  line("answer",
       fmt::format("{} tokens in {}, {:.1f} tok/s; ended by {}", time.generated_tokens,
                   format_seconds(time.decode_s), per_second(decoded(answer), time.decode_s),
                   name(answer.completion.finish)));
  line("read",
       fmt::format("{} in {} reads ({}), {} a token while answering; waited {} for the disk",
                   size(io.bytes_read), io.reads, io.mode, format_size(bytes_per_token(answer)),
                   format_seconds(io.stall_s)));
  line("disk", fmt::format("busy for {}; at rest for {} while something was waited for",
                           format_seconds(io.busy_s), format_seconds(io.idle_s)));
  if (io.prefetch_issued + io.prefetch_cancelled > 0)
    line("prefetch",
         fmt::format("{} experts read ahead: {} used, {} not; {} gave way", io.prefetch_issued,
                     io.prefetch_used, io.prefetch_wasted, io.prefetch_cancelled));
  if (hits(answer) + misses(answer) > 0)
    line("experts", fmt::format("{} of {} were in memory when needed ({:.1f} %)", hits(answer),
                                hits(answer) + misses(answer), 100 * hit_rate(answer)));
  line("memory",
       fmt::format("{} weights of {} in all, {} KV, {} activations; process peak {} "
                   "under a ceiling of {}",
                   size(memory.arena), size(engine.plan().total_bytes), size(memory.kv),
                   size(memory.activations), size(memory.peak_rss), size(memory.ceiling)));
  const PressureReport pressure = engine.pressure();
  if (pressure.warnings + pressure.criticals > 0)
    line("pressure",
         fmt::format("memory ran short: {} warnings, {} standstills; {} of weights given back, {} "
                     "of the page cache; {} of weights not taken again yet",
                     pressure.warnings, pressure.criticals, size(pressure.bytes_shed),
                     size(pressure.cache_dropped), size(pressure.given_up)));
  return text;
}

nlohmann::ordered_json memory_json(const MemoryReport& memory) {
  return {{"ceiling", memory.ceiling}, {"arena", memory.arena},
          {"kv", memory.kv},           {"activations", memory.activations},
          {"process", memory.process}, {"peak_rss", memory.peak_rss},
          {"changes", memory.changes}, {"longest_change_s", memory.longest_change_s}};
}

nlohmann::ordered_json answer_json(const Engine& engine, const Answer& answer) {
  const Engine::Completion& done = answer.completion;
  const Timings& time = done.timings;
  const PressureReport pressure = engine.pressure();
  const IoReport& io = answer.after;
  return {
      {"model", engine.model().info().name},
      {"prompt_ids", done.prompt_ids},
      {"token_ids", done.token_ids},
      {"text", done.text},
      {"finish_reason", std::string(name(done.finish))},
      {"timings",
       {{"load_s", time.load_s},
        {"prefill_s", time.prefill_s},
        {"decode_s", time.decode_s},
        {"ttft_s", time.ttft_s},
        {"prefill_tps", per_second(time.prompt_tokens, time.prefill_s)},
        {"decode_tps", per_second(decoded(answer), time.decode_s)}}},
      {"memory", memory_json(engine.memory())},
      {"pressure",
       {{"watching", pressure.watching},
        {"warnings", pressure.warnings},
        {"criticals", pressure.criticals},
        {"bytes_shed", pressure.bytes_shed},
        {"given_up", pressure.given_up},
        {"cache_dropped", pressure.cache_dropped}}},
      {"io",
       {{"mode", io.mode},
        {"bytes_read", io.bytes_read},
        {"reads", io.reads},
        {"expert_hits", hits(answer)},
        {"expert_misses", misses(answer)},
        {"hit_rate", hit_rate(answer)},
        {"bytes_per_token", bytes_per_token(answer)},
        {"stall_s", io.stall_s},
        {"busy_s", io.busy_s},
        {"idle_s", io.idle_s},
        {"prefetch_issued", io.prefetch_issued},
        {"prefetch_used", io.prefetch_used},
        {"prefetch_wasted", io.prefetch_wasted},
        {"prefetch_cancelled", io.prefetch_cancelled}}},
      {"choices", engine.choices()},
  };
}

std::string choices_report(const Engine& engine) {
  std::string text;
  for (const auto& [what, chosen] : engine.choices())
    text += fmt::format("  {:<20} {}\n", what, chosen);
  return text;
}

}  // namespace millrace::cli
