#include "tests/support/synth_gguf.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "base/numeric.h"

namespace millrace::test {
namespace {

constexpr uint32_t kTypeF32 = 0, kTypeQ4_0 = 2, kTypeQ8_0 = 8;

struct Tensor {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first
  uint32_t type;
  uint64_t elements() const {
    uint64_t n = 1;
    for (const uint64_t d : dims) n *= d;
    return n;
  }
  uint64_t bytes() const {
    return type == kTypeF32 ? elements() * 4 : elements() / 32 * (type == kTypeQ4_0 ? 18 : 34);
  }
};

class Writer {
 public:
  explicit Writer(const std::string& path) : out_(path, std::ios::binary) {}
  template <class T>
  void put(T value) {
    out_.write(reinterpret_cast<const char*>(&value), sizeof value), at_ += sizeof value;
  }
  void text(const std::string& s) { put<uint64_t>(s.size()), raw(s.data(), s.size()); }
  void raw(const char* data, size_t n) {
    out_.write(data, static_cast<std::streamsize>(n)), at_ += n;
  }
  void key_u32(const std::string& key, uint32_t value) { text(key), put<uint32_t>(4), put(value); }
  void key_f32(const std::string& key, float value) { text(key), put<uint32_t>(6), put(value); }
  void key_text(const std::string& key, const std::string& value) {
    text(key), put<uint32_t>(8), text(value);
  }
  void pad() {
    while (at_ % 32) put<uint8_t>(0);
  }
  uint64_t at() const { return at_; }

 private:
  std::ofstream out_;
  uint64_t at_ = 0;
};

// Weights of about 1 / sqrt(inner): blocks of random codes with one scale.
void put_weights(Writer& out, const Tensor& t, std::mt19937_64& random) {
  const double gain = 1.0 / std::sqrt(static_cast<double>(t.dims[0]));
  if (t.type == kTypeF32) {
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < t.elements(); ++i)
      out.put(t.dims.size() == 1 ? 1.0f : normal(random) * static_cast<float>(gain));
    return;
  }
  const uint16_t scale = f32_to_f16(static_cast<float>(gain / (t.type == kTypeQ4_0 ? 4.61 : 73.9)));
  const size_t codes = t.type == kTypeQ4_0 ? 16 : 32;
  std::vector<char> block(2 + codes);
  std::memcpy(block.data(), &scale, 2);
  for (uint64_t b = 0; b < t.elements() / 32; ++b) {
    for (size_t i = 0; i < codes; i += 8) {
      const uint64_t bits = random();
      std::memcpy(block.data() + 2 + i, &bits, 8);
    }
    out.raw(block.data(), block.size());
  }
}

}  // namespace

uint64_t write_synth_gguf(const std::string& path, const SynthShape& s, uint64_t seed) {
  std::vector<Tensor> tensors = {{"token_embd.weight", {s.hidden, s.vocab}, kTypeQ8_0},
                                 {"output_norm.weight", {s.hidden}, kTypeF32}};
  for (uint32_t i = 0; i < s.layers; ++i) {
    const std::string b = "blk." + std::to_string(i) + ".";
    const uint64_t q = uint64_t{s.heads} * s.head_dim, k = uint64_t{s.kv_heads} * s.head_dim;
    tensors.push_back({b + "attn_norm.weight", {s.hidden}, kTypeF32});
    tensors.push_back({b + "ffn_norm.weight", {s.hidden}, kTypeF32});
    tensors.push_back({b + "attn_q.weight", {s.hidden, q}, kTypeQ4_0});
    tensors.push_back({b + "attn_k.weight", {s.hidden, k}, kTypeQ4_0});
    tensors.push_back({b + "attn_v.weight", {s.hidden, k}, kTypeQ4_0});
    tensors.push_back({b + "attn_output.weight", {q, s.hidden}, kTypeQ4_0});
    tensors.push_back({b + "attn_q_norm.weight", {s.head_dim}, kTypeF32});
    tensors.push_back({b + "attn_k_norm.weight", {s.head_dim}, kTypeF32});
    tensors.push_back({b + "ffn_gate_inp.weight", {s.hidden, s.experts}, kTypeF32});
    tensors.push_back({b + "ffn_gate_exps.weight", {s.hidden, s.width, s.experts}, kTypeQ4_0});
    tensors.push_back({b + "ffn_up_exps.weight", {s.hidden, s.width, s.experts}, kTypeQ4_0});
    tensors.push_back({b + "ffn_down_exps.weight", {s.width, s.hidden, s.experts}, kTypeQ4_0});
  }
  Writer out(path);
  out.raw("GGUF", 4);
  out.put<uint32_t>(3);
  out.put<uint64_t>(tensors.size());
  out.put<uint64_t>(14);
  const std::string a = "qwen3moe.";
  out.key_text("general.architecture", "qwen3moe");
  out.key_u32(a + "block_count", s.layers);
  out.key_u32(a + "context_length", 4096);
  out.key_u32(a + "embedding_length", s.hidden);
  out.key_u32(a + "feed_forward_length", s.width);
  out.key_u32(a + "attention.head_count", s.heads);
  out.key_u32(a + "attention.head_count_kv", s.kv_heads);
  out.key_u32(a + "attention.key_length", s.head_dim);
  out.key_u32(a + "attention.value_length", s.head_dim);
  out.key_f32(a + "rope.freq_base", 1e6f);
  out.key_f32(a + "attention.layer_norm_rms_epsilon", 1e-6f);
  out.key_u32(a + "expert_count", s.experts);
  out.key_u32(a + "expert_used_count", s.used);
  out.key_u32(a + "expert_feed_forward_length", s.width);
  uint64_t offset = 0;
  for (const Tensor& t : tensors) {
    out.text(t.name);
    out.put<uint32_t>(static_cast<uint32_t>(t.dims.size()));
    for (const uint64_t d : t.dims) out.put(d);
    out.put(t.type);
    out.put(offset);
    offset += round_up(t.bytes(), 32);
  }
  out.pad();
  std::mt19937_64 random(seed);
  for (const Tensor& t : tensors) put_weights(out, t, random), out.pad();
  return out.at();
}

}  // namespace millrace::test
