// The recurrent families as other tools write them: MLX files (norms shifted, convolution turned),
// wrappers with a vision tower and draft layers, GGUF, and multipliers that the fixtures leave
// at 1. Each is made from a fixture and must give the fixture's logits.
#include <regex>

#include "tests/support/fixture_model.h"

namespace millrace::test {
namespace {

TEST(Variants, MlxShiftsNormsAndTurnsConvolutions) {
  for (const std::string name : {"qwen3_5_text", "qwen3_next", "qwen3_5_moe_text"}) {
    Fixture f(name);
    convert_to_mlx(&f);
    EXPECT_LT(f.off_as_folder(), kSame) << name;
  }
  for (const std::string name : {"lfm2", "nemotron_h"}) {
    Fixture f(name);
    for (auto& [tensor_name, tensor] : f.tensors)
      if (tensor.shape.size() == 3) std::swap(tensor.shape[1], tensor.shape[2]);
    EXPECT_LT(f.off_as_folder(), kSame) << name;
  }
}

TEST(Variants, WrongConvolutionShapeNamesTheTensor) {
  Fixture f("lfm2");
  f.tensors["model.layers.1.conv.conv.weight"].shape = {3, 1, 64};
  TempFolder temp;
  write_folder(temp / "model", f.config, f.tensors);
  const auto model = Model::open(temp / "model");
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find("'model.layers.1.conv.conv.weight'"), std::string::npos)
      << model.error().message;
}

TEST(Variants, WrappersDropOtherModelsOnPurpose) {
  for (const bool mlx : {false, true}) {
    Fixture f("qwen3_5_text");
    if (mlx) convert_to_mlx(&f);
    TensorMap wrapped;
    for (auto& [name, tensor] : f.tensors) {
      std::string to = mlx ? "language_model." + name : name;
      if (!mlx && name.starts_with("model.")) to = "model.language_model." + name.substr(6);
      wrapped[to] = tensor;
    }
    wrapped["model.visual.blocks.0.attn.qkv.weight"] = {{2, 2}, {1, 2, 3, 4}};
    wrapped["mtp.fc.weight"] = {{2, 2}, {1, 2, 3, 4}};
    f.tensors = wrapped;
    Json text = f.config;
    text.erase("tie_word_embeddings");
    f.config = {{"model_type", "qwen3_5"},
                {"tie_word_embeddings", false},
                {"text_config", text},
                {"vision_config", {{"depth", 1}}},
                {"image_token_id", 5}};
    EXPECT_LT(f.off_as_folder(), kSame) << (mlx ? "mlx" : "transformers");
    f.tensors["model.layers.9.odd.weight"] = {{1}, {0}};
    TempFolder temp;
    write_folder(temp / "model", f.config, f.tensors);
    EXPECT_FALSE(Model::open(temp / "model"));  // not everything is dropped
  }
}

TEST(Variants, StackedGateUpExperts) {
  Fixture f("qwen3_5_moe_text");
  for (int layer = 0; layer < 4; ++layer) {
    const std::string e = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    TensorF32 gate_up{{8, 64, 64}, {}}, down{{8, 64, 32}, {}};
    for (int expert = 0; expert < 8; ++expert) {
      for (const auto& [part, to] :
           {std::pair{"gate_proj", &gate_up}, {"up_proj", &gate_up}, {"down_proj", &down}}) {
        const std::string name = e + std::to_string(expert) + "." + part + ".weight";
        const auto& values = f.tensors.at(name).values;
        to->values.insert(to->values.end(), values.begin(), values.end());
        f.tensors.erase(name);
      }
    }
    f.tensors[e + "gate_up_proj"] = gate_up;
    f.tensors[e + "down_proj"] = down;
  }
  EXPECT_LT(f.off_as_folder(), kSame);
}

// Every multiplier another power of two, and the weights divided by what it multiplies.
TEST(Variants, FalconMultipliers) {
  Fixture f("falcon_h1");
  const auto set = [&](const char* key, float value) { f.config[key] = value; };
  set("embedding_multiplier", 2.0f), f.scale("embed_tokens.weight", 0.5f);
  set("lm_head_multiplier", 0.25f), f.scale("lm_head.weight", 4.0f);
  set("attention_in_multiplier", 2.0f), set("key_multiplier", 0.125f);
  f.scale("q_proj.weight", 0.5f), f.scale("k_proj.weight", 4.0f), f.scale("v_proj.weight", 0.5f);
  set("attention_out_multiplier", 0.5f), f.scale("o_proj.weight", 2.0f);
  set("ssm_in_multiplier", 4.0f), set("ssm_out_multiplier", 8.0f);
  f.scale("mamba.out_proj.weight", 0.125f);
  f.config["ssm_multipliers"] = {2.0f, 0.5f, 4.0f, 0.25f, 0.125f};
  // gate 64, x 64, B 16, C 16, dt 4 rows, and the input's 4.
  f.scale("mamba.in_proj.weight", 1.0f / 8, 0, 64), f.scale("mamba.in_proj.weight", 0.5f, 64, 128);
  f.scale("mamba.in_proj.weight", 1.0f / 16, 128, 144);
  f.scale("mamba.in_proj.weight", 1.0f, 144, 160), f.scale("mamba.in_proj.weight", 2.0f, 160, 164);
  f.config["mlp_multipliers"] = {0.5f, 4.0f};
  f.scale("gate_proj.weight", 2.0f), f.scale("down_proj.weight", 0.25f);
  EXPECT_LT(f.off_as_folder(), kSame);
}

// The renames of llama.cpp's converters; `rules` in order, {i} and experts first.
void rename(Fixture* f, const std::vector<std::pair<std::string, std::string>>& rules) {
  TensorMap renamed;
  for (auto& [name, tensor] : f->tensors) {
    std::string to =
        std::regex_replace(name, std::regex("^(model|backbone)\\.layers\\.(\\d+)\\."), "blk.$2.");
    for (const auto& [from, replacement] : rules)
      to = std::regex_replace(to, std::regex(from), replacement);
    // blk.1.ffn_up_exps.3.weight: stacked in order.
    std::smatch match;
    if (std::regex_match(to, match, std::regex("(.*_exps)\\.(\\d+)\\.weight"))) {
      auto& stack = renamed[match[1].str() + ".weight"];
      if (stack.shape.empty()) stack.shape = {0, tensor.shape[0], tensor.shape[1]};
      ASSERT_EQ(match[2].str(), std::to_string(stack.shape[0]++));
      stack.values.insert(stack.values.end(), tensor.values.begin(), tensor.values.end());
      continue;
    }
    if (to.ends_with("conv1d.weight") || to.ends_with("shortconv.conv.weight"))
      tensor.shape = {tensor.shape[0], tensor.shape[2]};
    if (to.ends_with("ssm_a"))
      for (float& v : tensor.values) v = -std::exp(v);
    renamed[to] = tensor;
  }
  f->tensors = renamed;
}

const std::vector<std::pair<std::string, std::string>> kCommon = {
    {"^model\\.embed_tokens", "token_embd"},
    {"^model\\.norm\\.", "output_norm."},
    {"^lm_head", "output"},
    {"input_layernorm", "attn_norm"},
    {"self_attn\\.(q|k)_norm", "attn_$1_norm"},
    {"(self_attn|mixer)\\.(q|k|v)_proj", "attn_$2"},
    {"(self_attn|mixer)\\.o_proj", "attn_output"},
    {"mlp\\.experts\\.(\\d+)\\.(gate|up|down)_proj", "ffn_$2_exps.$1"},
    {"mlp\\.shared_expert\\.(gate|up|down)_proj", "ffn_$1_shexp"},
    {"mlp\\.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp\\.gate\\.", "ffn_gate_inp."},
    {"mlp\\.(gate|up|down)_proj", "ffn_$1"},
    {"(mixer|mamba|linear_attn)\\.(conv1d|norm)\\.", "ssm_$2."},
    {"(mixer|mamba|linear_attn)\\.A_log", "ssm_a"},
    {"(mixer|mamba|linear_attn)\\.D$", "ssm_d"},
    {"(mixer|mamba|linear_attn)\\.dt_bias", "ssm_dt.bias"},
    {"(mixer|mamba|linear_attn)\\.out_proj", "ssm_out"},
    {"(mixer|mamba)\\.in_proj", "ssm_in"},
};

std::vector<std::pair<std::string, std::string>> with_common(
    std::vector<std::pair<std::string, std::string>> rules) {
  rules.insert(rules.end(), kCommon.begin(), kCommon.end());
  return rules;
}

// What every converted file says of these fixtures.
std::map<std::string, GgufField> fields_of(const Json& config,
                                           std::map<std::string, GgufField> own) {
  const auto number = [&](const char* key) { return config.at(key).get<uint32_t>(); };
  own.insert({{"block_count", 4u},
              {"context_length", number("max_position_embeddings")},
              {"embedding_length", number("hidden_size")},
              {"feed_forward_length", number("intermediate_size")},
              {"attention.head_count", number("num_attention_heads")},
              {"attention.head_count_kv", number("num_key_value_heads")},
              {"attention.key_length", number("head_dim")},
              {"attention.value_length", number("head_dim")}});
  if (config.contains("num_experts")) {
    own.insert({{"expert_count", number("num_experts")},
                {"expert_used_count", number("num_experts_per_tok")},
                {"expert_feed_forward_length", number("moe_intermediate_size")}});
  }
  return own;
}

double off_as_gguf(const Fixture& f, const std::string& architecture,
                   const std::map<std::string, GgufField>& fields) {
  TempFolder temp;
  write_gguf(temp / "model.gguf", architecture, fields_of(f.config, fields), f.tensors);
  return f.off(temp / "model.gguf");
}

TEST(Variants, GgufLfm2) {
  for (const bool moe : {false, true}) {
    Fixture f(moe ? "lfm2_moe" : "lfm2");
    rename(&f, with_common({{"^model\\.embedding_norm", "token_embd_norm"},
                            {"operator_norm", "attn_norm"},
                            {"self_attn\\.(q|k)_layernorm", "attn_$1_norm"},
                            {"self_attn\\.out_proj", "attn_output"},
                            {"\\.conv\\.", ".shortconv."},
                            {"feed_forward\\.experts\\.(\\d+)\\.w1", "ffn_gate_exps.$1"},
                            {"feed_forward\\.experts\\.(\\d+)\\.w2", "ffn_down_exps.$1"},
                            {"feed_forward\\.experts\\.(\\d+)\\.w3", "ffn_up_exps.$1"},
                            {"feed_forward\\.expert_bias", "exp_probs_b.bias"},
                            {"feed_forward\\.gate", "ffn_gate_inp"},
                            {"feed_forward\\.w1", "ffn_gate"},
                            {"feed_forward\\.w2", "ffn_down"},
                            {"feed_forward\\.w3", "ffn_up"}}));
    std::map<std::string, GgufField> fields = {
        {"attention.layer_norm_rms_epsilon", 1e-5f},
        {"rope.freq_base", 1e6f},
        {"shortconv.l_cache", 3u},
        {"vocab_size", 320u},
        {"attention.head_count_kv", std::vector<uint32_t>{0, 0, 2, 0}}};
    if (moe) fields["leading_dense_block_count"] = 1u, fields["expert_gating_func"] = 2u;
    EXPECT_LT(off_as_gguf(f, moe ? "lfm2moe" : "lfm2", fields), kSame) << moe;
  }
}

const std::map<std::string, GgufField> kDeltaFields = {{"attention.layer_norm_rms_epsilon", 1e-6f},
                                                       {"rope.freq_base", 1e4f},
                                                       {"rope.dimension_count", 8u},
                                                       {"ssm.conv_kernel", 4u},
                                                       {"ssm.state_size", 16u},
                                                       {"ssm.group_count", 2u},
                                                       {"ssm.time_step_rank", 4u},
                                                       {"ssm.inner_size", 64u}};

// Blocks of `block` values at `begin` from the order by key head (2 of 2 value heads) to tiled.
void tile(TensorF32* t, size_t begin, size_t block) {
  const auto at = [&](size_t i) {
    return t->values.begin() + static_cast<std::ptrdiff_t>(begin + i * block);
  };
  std::swap_ranges(at(1), at(2), at(2));
}

TEST(Variants, GgufQwen35) {
  for (const bool moe : {false, true}) {
    Fixture f(moe ? "qwen3_5_moe_text" : "qwen3_5_text");
    convert_to_mlx(&f);  // norms whole
    for (auto& [name, tensor] : f.tensors)
      if (name.ends_with("conv1d.weight")) std::swap(tensor.shape[1], tensor.shape[2]);
    rename(&f, with_common({{"post_attention_layernorm", "post_attention_norm"},
                            {"linear_attn\\.in_proj_qkv", "attn_qkv"},
                            {"linear_attn\\.in_proj_z", "attn_gate"},
                            {"linear_attn\\.in_proj_b", "ssm_beta"},
                            {"linear_attn\\.in_proj_a", "ssm_alpha"}}));
    for (auto& [name, tensor] : f.tensors) {
      const size_t row = tensor.values.size() / tensor.shape[0];
      if (name.ends_with("attn_qkv.weight") || name.ends_with("ssm_conv1d.weight"))
        tile(&tensor, 64 * row, 16 * row);  // v behind q and k
      if (name.ends_with("attn_gate.weight")) tile(&tensor, 0, 16 * row);
      if (name.ends_with("ssm_beta.weight") || name.ends_with("ssm_alpha.weight") ||
          name.ends_with("ssm_a") || name.ends_with("ssm_dt.bias"))
        tile(&tensor, 0, row);
      for (size_t r = 0; name.ends_with("ssm_out.weight") && r < tensor.shape[0]; ++r)
        tile(&tensor, r * row, 16);
    }
    auto fields = kDeltaFields;
    if (moe) fields["expert_shared_feed_forward_length"] = 32u;
    EXPECT_LT(off_as_gguf(f, moe ? "qwen35moe" : "qwen35", fields), kSame) << moe;
  }
}

TEST(Variants, GgufQwen3NextFused) {
  Fixture f("qwen3_next");
  convert_to_mlx(&f);
  for (auto& [name, tensor] : f.tensors)
    if (name.ends_with("conv1d.weight")) std::swap(tensor.shape[1], tensor.shape[2]);
  rename(&f, with_common({{"post_attention_layernorm", "post_attention_norm"},
                          {"linear_attn\\.in_proj_qkvz", "ssm_in"},
                          {"linear_attn\\.in_proj_ba", "ssm_ba"}}));
  auto fields = kDeltaFields;
  fields["expert_shared_feed_forward_length"] = 32u;
  EXPECT_LT(off_as_gguf(f, "qwen3next", fields), kSame);
}

TEST(Variants, GgufFalconH1) {
  Fixture f("falcon_h1");
  rename(&f, with_common({{"^model\\.final_layernorm", "output_norm"},
                          {"pre_ff_layernorm", "ffn_norm"},
                          {"feed_forward\\.(gate|up|down)_proj", "ffn_$1"}}));
  EXPECT_LT(off_as_gguf(f, "falcon-h1",
                        {{"attention.layer_norm_rms_epsilon", 1e-5f},
                         {"rope.freq_base", 1e4f},
                         {"ssm.conv_kernel", 4u},
                         {"ssm.state_size", 16u},
                         {"ssm.group_count", 1u},
                         {"ssm.time_step_rank", 4u},
                         {"ssm.inner_size", 64u}}),
            kSame);
}

TEST(Variants, GgufNemotronH) {
  Fixture f("nemotron_h");
  rename(&f, with_common({{"^backbone\\.embeddings", "token_embd"},
                          {"^backbone\\.norm_f", "output_norm"},
                          {"mixer\\.experts\\.(\\d+)\\.(up|down)_proj", "ffn_$2_exps.$1"},
                          {"mixer\\.shared_experts\\.(up|down)_proj", "ffn_$1_shexp"},
                          {"mixer\\.gate\\.e_score_correction_bias", "exp_probs_b.bias"},
                          {"mixer\\.gate", "ffn_gate_inp"},
                          {"^(blk\\.\\d+)\\.norm", "$1.attn_norm"}}));
  f.config["num_experts"] = f.config["n_routed_experts"];
  // The file has no lower bound of the time steps: near, but not the same.
  EXPECT_LT(off_as_gguf(f, "nemotron_h_moe",
                        {{"attention.layer_norm_rms_epsilon", 1e-5f},
                         {"attention.head_count_kv", std::vector<uint32_t>{0, 2, 0, 0}},
                         {"feed_forward_length", std::vector<uint32_t>{0, 0, 0, 32}},
                         {"expert_shared_feed_forward_length", 32u},
                         {"expert_shared_count", 1u},
                         {"expert_weights_scale", 1.5f},
                         {"ssm.conv_kernel", 4u},
                         {"ssm.state_size", 16u},
                         {"ssm.group_count", 2u},
                         {"ssm.time_step_rank", 8u},
                         {"ssm.inner_size", 128u}}),
            3e-3);
}

}  // namespace
}  // namespace millrace::test
