// Expected values of a model (expected.safetensors), made by a reference implementation in float32.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "millrace/millrace.h"

namespace millrace::cli {

// Two kinds: whole rows of logits with a greedy continuation (small models), or the largest logits
// of each row (big vocabularies).
struct Reference {
  std::vector<Token> input_ids;      // [rows]
  uint32_t vocab = 0;                // of whole rows; 0 for the second kind
  std::vector<float> logits;         // [rows, vocab]
  std::vector<Token> greedy_ids;     // [steps]
  std::vector<float> greedy_logits;  // [steps, vocab]: row i chose greedy_ids[i]
  uint32_t top = 0;                  // of the second kind
  std::vector<Token> top_ids;        // [rows, top], largest first
  std::vector<float> top_logits;     // [rows, top]
  std::vector<float> logsumexp;      // [rows]

  bool whole_rows() const { return vocab > 0; }
  // What the reference says about position `at` of input_ids followed by greedy_ids.
  std::span<const float> row(size_t at) const;
};

Expected<Reference> read_reference(const std::string& path);

}  // namespace millrace::cli
