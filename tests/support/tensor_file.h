// Small models rewritten by tests: tensors as f32 in memory, written as safetensors or GGUF.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace millrace::test {

struct TensorF32 {
  std::vector<uint64_t> shape;  // outermost first
  std::vector<float> values;
};

using TensorMap = std::map<std::string, TensorF32>;

// All tensors of a safetensors file of bf16 and f32.
TensorMap read_tensors(const std::string& path);

// A model folder: config.json and model.safetensors, all f32.
void write_folder(const std::string& folder, const nlohmann::json& config,
                  const TensorMap& tensors);

// GGUF values that our families read.
using GgufField = std::variant<uint32_t, float, std::vector<uint32_t>>;
// `fields` without the architecture's prefix.
void write_gguf(const std::string& path, const std::string& architecture,
                const std::map<std::string, GgufField>& fields, const TensorMap& tensors);

}  // namespace millrace::test
