// Where a role's tensor is found in a checkpoint: name patterns, tried in order.
#pragma once

#include <string>
#include <vector>

#include "format/piece.h"

namespace millrace::model {

// Which rows of a fused source tensor belong to the role.
enum class Part : uint8_t {
  kAll,
  kQ,
  kK,
  kV,           // of a fused qkv
  kFirstHalf,   // gate of a fused gate_up
  kSecondHalf,  // up of a fused gate_up
  kEven,
  kOdd,  // gate and up interleaved
  kHeadKey,
  kHeadValue,  // of a stack of heads, each first its keys' rows, then its values'
  kLayer,      // of a stack of layers
};

struct NameRule {
  format::Role role;
  std::string pattern;      // whole tensor name; {i} is the layer, {e} the expert
  bool stacked = false;     // one tensor holds all experts on its first axis
  bool transposed = false;  // stored [inner, outputs]
  Part part = Part::kAll;
};

using NameRules = std::vector<NameRule>;

// Names that most Hugging Face and MLX checkpoints use, and those of GGUF. A family puts its own in
// front.
NameRules default_names(bool gguf);

// Weights and biases of {prefix}q_proj, k_proj, v_proj and o_proj; of {prefix}gate_proj, up_proj and
// down_proj.
NameRules attention_names(const std::string& prefix);
NameRules dense_names(const std::string& prefix);

// Tensors that are dropped on purpose: patterns where '*' matches anything, and a prefix before
// "{beyond}" the layers behind the model's own that predict further tokens.
std::vector<std::string> default_drops(bool gguf);

bool matches(std::string_view pattern, std::string_view name);
std::string expand(const std::string& pattern, int layer, int expert);

}  // namespace millrace::model
