// millrace bench --streaming: what reading weights from the disk costs, cold and warm, as a report to share.
#pragma once

#include <vector>

#include "cli/cli.h"
#include "millrace/millrace.h"

namespace millrace::cli {

struct StreamingOptions {
  EngineOptions engine;
  uint32_t prompt = 256, gen = 48;
  std::vector<uint32_t> prompts;  // together and one after another
  uint32_t repetitions = 5;       // of what is warm
  uint64_t seed = 0;
  bool no_probe = false, json = false;
};

int bench_streaming(const Cli& cli, StreamingOptions options);

}  // namespace millrace::cli
