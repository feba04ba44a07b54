// Writes a mixture-of-experts GGUF of any size with random weights, for tests that need a model
// larger than a ceiling.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::test {

struct SynthShape {
  uint32_t layers = 8, hidden = 512, heads = 8, kv_heads = 2, head_dim = 64, vocab = 1024;
  uint32_t experts = 32, used = 4, width = 512;
};

// Router f32, experts and attention q4_0, embedding q8_0 (tied). Returns the size in bytes.
uint64_t write_synth_gguf(const std::string& path, const SynthShape& shape, uint64_t seed = 1);

}  // namespace millrace::test
