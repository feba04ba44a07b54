// Traces of experts that fired: any text is an error that names its line, or a trace that every
// policy can be replayed on.
#include <sstream>

#include "check_source.h"
#include "stream/replay.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  const auto trace = stream::read_trace("f", text);
  if (!trace) {
    fuzz::require(trace.error().message.starts_with("f: "));
    return 0;
  }
  fuzz::require(!trace->passes.empty());
  for (const stream::TracePass& pass : trace->passes) {
    fuzz::require(pass.layer < trace->head.layers);
    fuzz::require(!pass.experts.empty() && pass.experts.size() % trace->head.used == 0);
    for (const uint32_t expert : pass.experts) fuzz::require(expert < trace->head.experts);
  }
  const stream::ReplayOptions options{trace->head.used, 0};
  const auto best = stream::replay(*trace, std::nullopt, options);
  fuzz::require(best.has_value() && best->hits <= best->uses);
  if (uint64_t{trace->head.layers} * trace->head.experts > 65536) return 0;  // only slower
  for (const stream::PolicyName& policy : stream::policy_names()) {
    const auto result = stream::replay(*trace, policy.kind, options);
    fuzz::require(result.has_value() && result->uses == best->uses && result->hits <= result->uses);
  }
  return 0;
}
