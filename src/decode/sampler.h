// Positional sampling: the token at position i is a function of (logits, parameters, seed, i) and
// nothing else.
//
// Filters run in the order temperature, top-k, top-p, min-p over candidates ordered by logit (equal
// logits rank by lower id). The draw is Gumbel-max: argmax of logit / T + g(seed, i, id), with g
// from a counter-based generator, so a drafter that knows the seed can use the same noise at the
// same position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/millrace.h"

namespace millrace::decode {

// Greedy: the largest logit, lowest id among equals. NaN never wins.
Token argmax(std::span<const float> logits);

class Sampler {
 public:
  // `allowed`: ids from this one on have no token and are never chosen (heads can have more rows
  // than the tokenizer).
  Sampler(const SamplingParams& params, uint32_t allowed) : params_(params), allowed_(allowed) {}
  Token sample(std::span<const float> logits, uint64_t position);

 private:
  SamplingParams params_;
  uint32_t allowed_;
  std::vector<uint32_t> order_;
  std::vector<float> scaled_;
};

// Standard Gumbel noise of (seed, position, id); Philox4x32-10 (Salmon et al. 2011) and
// -log(-log(u)).
double gumbel(uint64_t seed, uint64_t position, uint32_t id);

Status check(const SamplingParams& params);

}  // namespace millrace::decode
