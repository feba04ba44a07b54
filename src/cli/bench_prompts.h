// Several prompts decoded in one step loop, which share every weight read, against the same prompts one
// after another.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/table.h"
#include "millrace/millrace.h"

namespace millrace::cli {

struct PromptsShape {
  uint32_t prompt = 16;  // tokens of each prompt, random and different
  uint32_t gen = 32;     // tokens of each answer
};

class PromptsTest {
 public:
  PromptsTest(uint32_t prompts, PromptsShape shape) : prompts_(prompts), shape_(shape) {}

  // Once together and once one after another. Without `keep` it only warms up.
  Status measure(Engine& engine, uint64_t seed, bool keep);
  static Table table(const std::vector<PromptsTest>& tests);
  nlohmann::ordered_json json() const;

 private:
  struct Side {
    std::vector<double> rates;  // tokens a second of all prompts, by repetition
    uint64_t tokens = 0, bytes = 0, hits = 0, misses = 0;
  };
  Status run(Engine& engine, uint64_t seed, bool together, Side* side) const;
  double ratio() const;

  uint32_t prompts_;
  PromptsShape shape_;
  Side together_, apart_;
};

}  // namespace millrace::cli
