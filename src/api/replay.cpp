// Replays: recorded traces under policies and sizes, for the command line and others.
#include "stream/replay.h"

#include <algorithm>
#include <cmath>

#include "millrace/millrace.h"

namespace millrace {

std::vector<std::string> policies() {
  std::vector<std::string> names = {std::string(stream::name(stream::kDefaultPolicy))};
  for (const auto& entry : stream::policy_names())
    if (entry.kind != stream::kDefaultPolicy) names.emplace_back(entry.name);
  return names;
}

Expected<ReplayReport> replay(const ReplayOptions& options) {
  std::vector<stream::PolicyKind> kinds;
  for (const std::string& name : options.policies.empty() ? policies() : options.policies) {
    MILLRACE_ASSIGN(const auto kind, stream::find_policy(name));
    kinds.push_back(kind);
  }
  MILLRACE_ASSIGN(const stream::Trace trace, stream::read_trace(options.trace));
  ReplayReport report;
  report.model = trace.head.model;
  report.layers = trace.head.layers;
  report.experts = trace.head.experts;
  report.used = trace.head.used;
  report.expert_bytes = trace.head.expert_bytes;
  report.steps = trace.passes.back().step + 1;
  if (options.skip_steps >= report.steps)
    return fail(Code::kInvalid, "{}: the trace has {} steps; {} cannot be skipped", options.trace,
                report.steps, options.skip_steps);
  std::vector<bool> layer(trace.head.layers, false);
  for (const auto& pass : trace.passes) layer[pass.layer] = true;
  const auto sparse = static_cast<double>(std::count(layer.begin(), layer.end(), true));
  const double all = sparse * trace.head.experts;
  const auto replay_at = [&](double share, uint32_t slots) -> Status {
    const auto add = [&](std::optional<stream::PolicyKind> kind) -> Status {
      MILLRACE_ASSIGN(const auto result, stream::replay(trace, kind, {slots, options.skip_steps}));
      report.rows.push_back({kind ? std::string(stream::name(*kind)) : "belady", share, slots,
                             result.uses, result.hits});
      return {};
    };
    MILLRACE_TRY(add(std::nullopt));
    for (const auto kind : kinds) MILLRACE_TRY(add(kind));
    return {};
  };
  for (const double share : options.shares)
    MILLRACE_TRY(replay_at(
        share, static_cast<uint32_t>(std::max(std::round(share * all), 1.0 * trace.head.used))));
  for (const uint32_t slots : options.slots) {
    if (slots > all)
      return fail(Code::kInvalid, "{} slots are more than the {:.0f} experts of {}", slots, all,
                  options.trace);
    MILLRACE_TRY(replay_at(slots / all, slots));
  }
  return report;
}

}  // namespace millrace
