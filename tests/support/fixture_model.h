// A golden fixture that a test rewrites into another layout: it must give the fixture's logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tests/support/engine_run.h"
#include "tests/support/tensor_file.h"

namespace millrace::test {

using Json = nlohmann::json;

// Logits of every row of `ids`, with float activations; empty when the model does not open.
inline std::vector<float> logits_of(const std::string& path, const std::vector<int32_t>& ids,
                                    ActivationPrecision activations = ActivationPrecision::kF32,
                                    TieOrder ties = TieOrder::kLowerPosition) {
  EngineOptions options;
  options.model = path;
  options.activations = activations;
  options.kv = KvPrecision::kF32;
  options.threads = 1;
  auto engine = Engine::open(options);
  std::vector<float> out;
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return out;
  }
  const uint32_t vocab = (*engine)->model().info().vocab;
  auto status = (*engine)->score(
      std::vector<Token>(ids.begin(), ids.end()),
      [&](uint32_t, const float* row) { out.insert(out.end(), row, row + vocab); }, ties);
  EXPECT_TRUE(status);
  return out;
}

// Largest difference over the range of `expected`.
inline double off(const std::vector<float>& expected, const std::vector<float>& got) {
  if (expected.size() != got.size()) return 1e30;
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected[i]));
  return worst / (static_cast<double>(*high) - *low);
}

struct Fixture {
  explicit Fixture(const std::string& name) : folder(repo("tests/data/golden/" + name)) {
    std::ifstream(folder + "/config.json") >> config;
    tensors = read_tensors(folder + "/model.safetensors");
  }
  std::string folder;
  Json config;
  TensorMap tensors;

  void scale(const std::string& name_end, float factor, size_t begin = 0, size_t end = SIZE_MAX) {
    for (auto& [name, tensor] : tensors) {
      if (!name.ends_with(name_end)) continue;
      const size_t row = tensor.values.size() / tensor.shape[0];
      for (size_t i = begin * row; i < std::min(end, tensor.shape[0]) * row; ++i)
        tensor.values[i] *= factor;
    }
  }
  std::vector<int32_t> ids() const {
    return read_tensor<int32_t>(folder + "/expected.safetensors", "input_ids");
  }
  // Largest difference of the logits of the model at `path` from the fixture's, over their range.
  double off(const std::string& path) const {
    return test::off(read_tensor<float>(folder + "/expected.safetensors", "logits"),
                     logits_of(path, ids()));
  }
  double off_as_folder() const {
    TempFolder temp;
    write_folder(temp / "model", config, tensors);
    return off(temp / "model");
  }
};

constexpr double kSame = 1e-5;

// What MLX does to a Qwen3-Next or Qwen 3.5 checkpoint.
inline void convert_to_mlx(Fixture* f) {
  for (auto& [name, tensor] : f->tensors) {
    if (name.ends_with("conv1d.weight")) std::swap(tensor.shape[1], tensor.shape[2]);
    const bool shifted = name.ends_with("layernorm.weight") || name.ends_with("q_norm.weight") ||
                         name.ends_with("k_norm.weight") || name == "model.norm.weight";
    if (!shifted) continue;
    for (float& v : tensor.values) v += 1.0f;
  }
}

// Experts as single tensors, as MLX keeps them: "x.experts.{e}.y" becomes "x.`stack`.y'".
inline void stack_experts(Fixture* f, const std::string& stack,
                          const std::map<std::string, std::string>& renames = {}) {
  TensorMap out;
  for (int expert = 0; expert < 1024; ++expert) {
    const std::string part = ".experts." + std::to_string(expert) + ".";
    for (const auto& [name, tensor] : f->tensors) {
      const size_t at = name.find(part);
      if (at == std::string::npos) continue;
      const std::string last = name.substr(at + part.size());
      const std::string base = last.substr(0, last.find('.'));
      const auto renamed = renames.find(base);
      auto& to = out[name.substr(0, at) + "." + stack + "." +
                     (renamed == renames.end() ? base : renamed->second) + ".weight"];
      to.shape = {static_cast<uint64_t>(expert) + 1, tensor.shape[0], tensor.shape[1]};
      to.values.insert(to.values.end(), tensor.values.begin(), tensor.values.end());
    }
  }
  for (const auto& [name, tensor] : f->tensors) {
    const size_t at = name.find(".experts.");
    const bool one = at != std::string::npos && at + 9 < name.size() && name[at + 9] >= '0' &&
                     name[at + 9] <= '9';
    if (!one) out[name] = tensor;
  }
  f->tensors = std::move(out);
}

// kv_b_proj as MLX keeps it: embed_q [heads, rank, nope] and unembed_out [heads, value, rank].
inline void split_latent(Fixture* f) {
  const auto number = [&](const char* key) { return f->config.at(key).get<uint64_t>(); };
  const uint64_t heads = number("num_attention_heads"), nope = number("qk_nope_head_dim"),
                 value = number("v_head_dim"), rank = number("kv_lora_rank");
  TensorMap out;
  for (const auto& [name, t] : f->tensors) {
    if (!name.ends_with("kv_b_proj.weight")) {
      out[name] = t;
      continue;
    }
    const std::string base = name.substr(0, name.size() - std::string("kv_b_proj.weight").size());
    TensorF32 q{{heads, rank, nope}, {}}, v{{heads, value, rank}, {}};
    for (uint64_t h = 0; h < heads; ++h) {
      const float* rows = t.values.data() + h * (nope + value) * rank;
      for (uint64_t r = 0; r < rank; ++r) {
        for (uint64_t n = 0; n < nope; ++n) q.values.push_back(rows[n * rank + r]);
      }
      v.values.insert(v.values.end(), rows + nope * rank, rows + (nope + value) * rank);
    }
    out[base + "embed_q.weight"] = q;
    out[base + "unembed_out.weight"] = v;
  }
  f->tensors = std::move(out);
}

// Gemma 4's fused experts as MLX keeps them.
inline void split_gemma4_experts(Fixture* f) {
  TensorMap out;
  for (const auto& [name, t] : f->tensors) {
    const size_t at = name.find("experts.");
    const std::string base = name.substr(0, at) + "experts.switch_glu.";
    if (name.ends_with("experts.down_proj")) {
      out[base + "down_proj.weight"] = t;
    } else if (name.ends_with("experts.gate_up_proj")) {
      const uint64_t experts = t.shape[0], width = t.shape[1] / 2, cols = t.shape[2];
      TensorF32 gate{{experts, width, cols}, {}}, up = gate;
      for (uint64_t e = 0; e < experts; ++e) {
        const float* rows = t.values.data() + e * 2 * width * cols;
        gate.values.insert(gate.values.end(), rows, rows + width * cols);
        up.values.insert(up.values.end(), rows + width * cols, rows + 2 * width * cols);
      }
      out[base + "gate_proj.weight"] = gate;
      out[base + "up_proj.weight"] = up;
    } else {
      out[name] = t;
    }
  }
  f->tensors = std::move(out);
}

}  // namespace millrace::test
