// MLX-quantized files of every kind of layer, and gpt-oss' blocks: with float activations a
// quantized model gives the logits of the same model with its weights dequantized.
#include <random>
#include <regex>

#include "tests/support/fixture_model.h"

namespace millrace::test {
namespace {

enum class Kind { kAffine4, kAffine8, kMxfp4 };

struct Raw {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

void write_raw(const std::string& folder, const Json& config,
               const std::map<std::string, Raw>& tensors) {
  fs::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump();
  Json header = {{"__metadata__", nullptr}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t at = data.size();
    data += tensor.bytes;
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(folder + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text << data;
}

constexpr size_t kGroupSize = 32;
constexpr float kE2M1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.f, -0.5, -1, -1.5, -2, -3, -4, -6};

struct Quantized {
  std::vector<uint8_t> codes;         // one a value
  std::vector<float> scales, biases;  // one a group; mxfp4 has exponents instead
  std::vector<uint8_t> exponents;
  std::vector<float> values;  // dequantized
};

void quantize_group(const float* w, Kind kind, Quantized* q) {
  if (kind == Kind::kMxfp4) {
    float most = 0;
    for (size_t i = 0; i < kGroupSize; ++i) most = std::max(most, std::abs(w[i]));
    const int exponent = most > 0 ? std::ilogb(most) - 2 : 0;
    q->exponents.push_back(static_cast<uint8_t>(exponent + 127));
    for (size_t i = 0; i < kGroupSize; ++i) {
      uint8_t best = 0;
      for (uint8_t c = 1; c < 16; ++c) {
        const auto far = [&](uint8_t code) {
          return std::abs(std::ldexp(kE2M1[code], exponent) - w[i]);
        };
        if (far(c) < far(best)) best = c;
      }
      q->codes.push_back(best);
      q->values.push_back(std::ldexp(kE2M1[best], exponent));
    }
    return;
  }
  const auto most = static_cast<float>(kind == Kind::kAffine4 ? 15 : 255);
  const auto [low, high] = std::minmax_element(w, w + kGroupSize);
  const float bias = *low, scale = *high > *low ? (*high - *low) / most : 1.0f;
  q->scales.push_back(scale), q->biases.push_back(bias);
  for (size_t i = 0; i < kGroupSize; ++i) {
    const float code = std::clamp(std::round((w[i] - bias) / scale), 0.0f, most);
    q->codes.push_back(static_cast<uint8_t>(code));
    q->values.push_back(scale * code + bias);
  }
}

Quantized quantize(const TensorF32& t, Kind kind) {
  Quantized q;
  for (size_t at = 0; at < t.values.size(); at += kGroupSize)
    quantize_group(t.values.data() + at, kind, &q);
  return q;
}

// Two codes of 4 bits a byte, the first in the low half; or one of 8.
std::string packed_codes(const Quantized& q, Kind kind) {
  if (kind == Kind::kAffine8) return bytes_of(q.codes);
  std::string out;
  for (size_t i = 0; i < q.codes.size(); i += 2)
    out += static_cast<char>(q.codes[i] | q.codes[i + 1] << 4);
  return out;
}

// A model in two copies: quantized, and with the same weights dequantized.
struct Copies {
  Json config;
  std::map<std::string, Raw> quantized;
  TensorMap dequantized;
  int weights = 0;  // quantized ones
};

Copies quantize_model(const Fixture& f, Kind kind) {
  Copies out;
  out.config = f.config;
  out.config["quantization"] = {{"group_size", kGroupSize},
                                {"bits", kind == Kind::kAffine8 ? 8 : 4},
                                {"mode", kind == Kind::kMxfp4 ? "mxfp4" : "affine"}};
  for (const auto& [name, t] : f.tensors) {
    const bool fits = name.ends_with(".weight") && t.shape.size() >= 2 &&
                      t.shape.back() % kGroupSize == 0 && name.find("conv") == std::string::npos;
    if (!fits) {
      out.quantized[name] = {"F32", t.shape, bytes_of(t.values)};
      out.dequantized[name] = t;
      continue;
    }
    const Quantized q = quantize(t, kind);
    auto codes = t.shape, groups = t.shape;
    codes.back() = t.shape.back() * (kind == Kind::kAffine8 ? 8 : 4) / 32;
    groups.back() /= kGroupSize;
    const std::string base = name.substr(0, name.size() - 6);
    out.quantized[name] = {"U32", codes, packed_codes(q, kind)};
    if (kind == Kind::kMxfp4) {
      out.quantized[base + "scales"] = {"U8", groups, bytes_of(q.exponents)};
    } else {
      out.quantized[base + "scales"] = {"F32", groups, bytes_of(q.scales)};
      out.quantized[base + "biases"] = {"F32", groups, bytes_of(q.biases)};
    }
    out.dequantized[name] = {t.shape, q.values};
    ++out.weights;
  }
  return out;
}

void check(const Fixture& f, const std::string& what) {
  for (const Kind kind : {Kind::kAffine4, Kind::kAffine8, Kind::kMxfp4}) {
    const Copies copies = quantize_model(f, kind);
    EXPECT_GT(copies.weights, 8) << what;
    TempFolder temp;
    write_raw(temp / "quantized", copies.config, copies.quantized);
    write_folder(temp / "plain", f.config, copies.dequantized);
    const auto expected = logits_of(temp / "plain", f.ids());
    const auto got = logits_of(temp / "quantized", f.ids());
    EXPECT_LT(off(expected, got), kSame) << what << ", kind " << static_cast<int>(kind);
    if (kind != Kind::kAffine4) continue;
    pack_to(temp / "quantized", temp / "packed");
    EXPECT_EQ(got, logits_of(temp / "packed", f.ids())) << what << " packed";
  }
}

// Latent attention wide enough to be quantized: the fixtures' ranks and heads are below a group.
void widen_latent(Fixture* f) {
  constexpr uint64_t kRank = 32, kNope = 32, kValue = 32, kRope = 8, kHeads = 4;
  f->config["kv_lora_rank"] = kRank, f->config["qk_nope_head_dim"] = kNope;
  f->config["v_head_dim"] = kValue, f->config["qk_head_dim"] = kNope + kRope;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (auto& [name, t] : f->tensors) {
    if (name.ends_with("q_b_proj.weight"))
      t.shape[0] = kHeads * (kNope + kRope);
    else if (name.ends_with("kv_a_proj_with_mqa.weight"))
      t.shape[0] = kRank + kRope;
    else if (name.ends_with("kv_b_proj.weight"))
      t.shape = {kHeads * (kNope + kValue), kRank};
    else if (name.ends_with("o_proj.weight"))
      t.shape[1] = kHeads * kValue;
    else if (name.ends_with("kv_a_layernorm.weight"))
      t = {{kRank}, std::vector<float>(kRank, 1)};
    if (t.shape.size() < 2) continue;
    t.values.resize(t.shape[0] * t.shape[1]);
    for (float& v : t.values) v = normal(random) / std::sqrt(static_cast<float>(t.shape[1]));
  }
}

TEST(QuantizedLayouts, LatentAttention) {
  for (const std::string name : {"deepseek_v3", "deepseek_v32"}) {
    Fixture f(name);
    widen_latent(&f);
    stack_experts(&f, "switch_mlp");
    check(f, name + " kv_b_proj");
    split_latent(&f);
    check(f, name + " embed_q");
  }
}

TEST(QuantizedLayouts, PerLayerEmbeddings) { check(Fixture("gemma4_text_ple"), "gemma4 ple"); }

TEST(QuantizedLayouts, ExpertsBesideADensePart) {
  Fixture f("gemma4_text_moe");
  split_gemma4_experts(&f);
  check(f, "gemma4 moe");
}

TEST(QuantizedLayouts, RecurrentLayers) {
  Fixture next("qwen3_next");
  convert_to_mlx(&next);
  stack_experts(&next, "switch_mlp");
  check(next, "qwen3_next");
  Fixture nemotron("nemotron_h");
  stack_experts(&nemotron, "switch_mlp", {{"up_proj", "fc1"}, {"down_proj", "fc2"}});
  check(nemotron, "nemotron_h");
  Fixture lfm2("lfm2_moe");
  stack_experts(&lfm2, "switch_mlp", {{"w1", "gate_proj"}, {"w2", "down_proj"}, {"w3", "up_proj"}});
  check(lfm2, "lfm2_moe");
}

// gpt-oss' own layout: u8 [experts, outputs, groups, 16] with scales beside it.
TEST(QuantizedLayouts, GptOssBlocks) {
  Fixture f("gpt_oss");
  std::map<std::string, Raw> quantized;
  TensorMap plain;
  for (const auto& [name, t] : f.tensors) {
    if (!std::regex_search(name, std::regex("experts\\.(gate_up|down)_proj$"))) {
      quantized[name] = {"F32", t.shape, bytes_of(t.values)};
      plain[name] = t;
      continue;
    }
    const uint64_t experts = t.shape[0], in = t.shape[1], out = t.shape[2];
    const auto turn = [&](const std::vector<float>& from, uint64_t rows, uint64_t cols) {
      std::vector<float> to(from.size());
      for (uint64_t e = 0; e < experts; ++e) {
        for (uint64_t r = 0; r < rows; ++r) {
          for (uint64_t c = 0; c < cols; ++c)
            to[(e * cols + c) * rows + r] = from[(e * rows + r) * cols + c];
        }
      }
      return to;
    };
    const Quantized q = quantize({{experts, out, in}, turn(t.values, in, out)}, Kind::kMxfp4);
    quantized[name + "_blocks"] = {
        "U8", {experts, out, in / kGroupSize, 16}, packed_codes(q, Kind::kMxfp4)};
    quantized[name + "_scales"] = {"U8", {experts, out, in / kGroupSize}, bytes_of(q.exponents)};
    plain[name] = {t.shape, turn(q.values, out, in)};
  }
  TempFolder temp;
  write_raw(temp / "blocks", f.config, quantized);
  write_folder(temp / "plain", f.config, plain);
  const auto got = logits_of(temp / "blocks", f.ids());
  EXPECT_LT(off(logits_of(temp / "plain", f.ids()), got), kSame);
  pack_to(temp / "blocks", temp / "packed");
  EXPECT_EQ(got, logits_of(temp / "packed", f.ids()));
}

// The value of an e4m3 code, spelled out.
float e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

uint8_t nearest_e4m3(float value) {
  uint8_t best = 0;
  for (int code = 0; code < 256; ++code) {
    if ((code & 127) != 127 && std::abs(e4m3(code) - value) < std::abs(e4m3(best) - value))
      best = static_cast<uint8_t>(code);
  }
  return best;
}

bool is_quantized_by_others(const std::string& name, const TensorF32& t) {
  return name.ends_with("_proj.weight") && t.shape.size() == 2 && t.shape[1] % kGroupSize == 0;
}

// DeepSeek's 8-bit floats: a scale for each rectangle of weights, those at the edges smaller.
Copies to_fp8(const Fixture& f, uint64_t rows, uint64_t cols) {
  Copies out;
  out.config = f.config;
  out.config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}};
  if (rows != 128 || cols != 128)
    out.config["quantization_config"]["weight_block_size"] = {rows, cols};
  for (const auto& [name, t] : f.tensors) {
    if (!is_quantized_by_others(name, t)) {
      out.quantized[name] = {"F32", t.shape, bytes_of(t.values)};
      out.dequantized[name] = t;
      continue;
    }
    const uint64_t across = (t.shape[1] + cols - 1) / cols, down = (t.shape[0] + rows - 1) / rows;
    std::vector<float> scales(across * down, 0.0f);
    const auto scale_at = [&](uint64_t i) -> float& {
      return scales[i / t.shape[1] / rows * across + i % t.shape[1] / cols];
    };
    for (uint64_t i = 0; i < t.values.size(); ++i)
      scale_at(i) = std::max(scale_at(i), std::abs(t.values[i]) / 448.0f);
    std::vector<uint8_t> codes;
    TensorF32 back{t.shape, {}};
    for (uint64_t i = 0; i < t.values.size(); ++i) {
      codes.push_back(scale_at(i) > 0 ? nearest_e4m3(t.values[i] / scale_at(i)) : uint8_t{0});
      back.values.push_back(e4m3(codes.back()) * scale_at(i));
    }
    out.quantized[name] = {"F8_E4M3", t.shape, bytes_of(codes)};
    out.quantized[name + "_scale_inv"] = {"F32", {down, across}, bytes_of(scales)};
    // Files for static activation scales have them; they are dropped on purpose.
    const std::string base = name.substr(0, name.size() - 6);
    if (rows == 40) out.quantized[base + "input_scale"] = {"F32", {1}, std::string(4, '\0')};
    out.dequantized[name] = back;
    ++out.weights;
  }
  return out;
}

// modelopt's nvfp4: e2m1 codes, an e4m3 scale for 16 of them, an f32 scale for the tensor.
Copies to_nvfp4(const Fixture& f) {
  Copies out;
  out.config = f.config;
  out.config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  for (const auto& [name, t] : f.tensors) {
    if (!is_quantized_by_others(name, t)) {
      out.quantized[name] = {"F32", t.shape, bytes_of(t.values)};
      out.dequantized[name] = t;
      continue;
    }
    float most = 0;
    for (const float v : t.values) most = std::max(most, std::abs(v));
    const float whole = most / (6 * 448);
    Quantized q;
    std::vector<uint8_t> scales;
    TensorF32 back{t.shape, {}};
    for (uint64_t i = 0; i < t.values.size(); i += 16) {
      float peak = 0;
      for (uint64_t k = 0; k < 16; ++k) peak = std::max(peak, std::abs(t.values[i + k]));
      scales.push_back(nearest_e4m3(peak / 6 / whole));
      const float scale = whole * e4m3(scales.back());
      for (uint64_t k = 0; k < 16; ++k) {
        uint8_t best = 0;
        for (uint8_t c = 1; c < 16; ++c) {
          const auto far = [&](uint8_t code) {
            return std::abs(kE2M1[code] * scale - t.values[i + k]);
          };
          if (far(c) < far(best)) best = c;
        }
        q.codes.push_back(best);
        back.values.push_back(kE2M1[best] * scale);
      }
    }
    const std::vector<uint64_t> none;
    out.quantized[name] = {"U8", {t.shape[0], t.shape[1] / 2}, packed_codes(q, Kind::kMxfp4)};
    out.quantized[name + "_scale"] = {"F8_E4M3", {t.shape[0], t.shape[1] / 16}, bytes_of(scales)};
    out.quantized[name + "_scale_2"] = {"F32", none, bytes_of(std::vector<float>{whole})};
    const std::string base = name.substr(0, name.size() - 6);
    out.quantized[base + "input_scale"] = {"F32", none, bytes_of(std::vector<float>{1.0f})};
    out.dequantized[name] = back;
    ++out.weights;
  }
  return out;
}

void check_copies(const Copies& copies, const Fixture& f, const std::string& what) {
  EXPECT_GT(copies.weights, 8) << what;
  TempFolder temp;
  write_raw(temp / "quantized", copies.config, copies.quantized);
  write_folder(temp / "plain", f.config, copies.dequantized);
  const auto got = logits_of(temp / "quantized", f.ids());
  EXPECT_LT(off(logits_of(temp / "plain", f.ids()), got), kSame) << what;
  // Float codes take float activations; the other weights of these models are floats too.
  EXPECT_EQ(got, logits_of(temp / "quantized", f.ids(), ActivationPrecision::kInt8)) << what;
  pack_to(temp / "quantized", temp / "packed");
  EXPECT_EQ(got, logits_of(temp / "packed", f.ids())) << what << " packed";
  PackOptions back;
  back.source = temp / "packed";
  back.out = temp / "back";
  const auto unpacked = unpack(back);
  ASSERT_TRUE(unpacked) << unpacked.error().message;
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(bytes(temp / "quantized/model.safetensors"), bytes(temp / "back/model.safetensors"))
      << what << " unpacked";
}

TEST(QuantizedLayouts, DeepSeekFp8) {
  Fixture f("deepseek_v3");
  widen_latent(&f);
  check_copies(to_fp8(f, 128, 128), f, "deepseek_v3, 128 x 128");
  check_copies(to_fp8(f, 40, 64), f, "deepseek_v3, 40 x 64");
  const Fixture dense("qwen3");
  check_copies(to_fp8(dense, 48, 32), dense, "qwen3, 48 x 32");
}

TEST(QuantizedLayouts, ModeloptNvfp4) {
  Fixture f("deepseek_v3");
  widen_latent(&f);
  check_copies(to_nvfp4(f), f, "deepseek_v3");
  const Fixture dense("qwen3");
  check_copies(to_nvfp4(dense), dense, "qwen3");
}

TEST(QuantizedLayouts, WhatIsMissingBesideFloatCodesIsNamed) {
  const Fixture f("qwen3");
  const std::string weight = "model.layers.0.self_attn.q_proj.weight";
  const auto message = [&](const Copies& copies) {
    TempFolder temp;
    write_raw(temp / "m", copies.config, copies.quantized);
    EngineOptions options;
    options.model = temp / "m";
    auto engine = Engine::open(options);
    return engine ? std::string("opened") : engine.error().message;
  };
  Copies fp8 = to_fp8(f, 128, 128), nvfp4 = to_nvfp4(f);
  EXPECT_EQ(message(fp8), "opened");
  EXPECT_EQ(message(nvfp4), "opened");
  auto broken = fp8;
  broken.quantized.erase(weight + "_scale_inv");
  EXPECT_NE(message(broken).find(weight + "_scale_inv"), std::string::npos) << message(broken);
  broken = fp8;
  broken.quantized[weight + "_scale_inv"].shape = {1, 1};
  broken.quantized[weight + "_scale_inv"].bytes.resize(4);
  broken.config["quantization_config"]["weight_block_size"] = {16, 32};
  EXPECT_NE(message(broken).find("_scale_inv"), std::string::npos) << message(broken);
  broken = fp8;
  broken.config["quantization_config"]["weight_block_size"] = {128};
  EXPECT_NE(message(broken).find("weight_block_size"), std::string::npos) << message(broken);
  broken.config["quantization_config"]["weight_block_size"] = {128, 100};
  EXPECT_NE(message(broken).find("128 x 100"), std::string::npos) << message(broken);
  for (const char* part : {"_scale", "_scale_2"}) {
    broken = nvfp4;
    broken.quantized.erase(weight + part);
    EXPECT_NE(message(broken).find(weight + part), std::string::npos) << message(broken);
  }
  broken = nvfp4;
  broken.quantized["model.layers.0.self_attn.z_proj.input_scale"] =
      broken.quantized["model.layers.0.self_attn.q_proj.input_scale"];
  EXPECT_NE(message(broken).find("z_proj.input_scale"), std::string::npos) << message(broken);
}

}  // namespace
}  // namespace millrace::test
