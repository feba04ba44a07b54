// Gemma 4: Gemma 3 with values normed, full layers of another head size (keys that serve as values,
// in some) and proportional rope, layers that read the keys and values of an earlier one, per-layer
// embeddings, and experts beside the dense part.
#include <cmath>

#include "model/families/builders.h"
#include "model/rope.h"

namespace millrace::model {
namespace {

// Head size and kv heads of full layers, from whichever key the config uses.
void full_dims(Config& config, const nlohmann::json& own, AttentionSpec* a) {
  const auto number = [&](const char* key, uint32_t fallback) {
    return own.is_object() && own.contains(key) && own[key].is_number_unsigned()
               ? own[key].get<uint32_t>()
               : fallback;
  };
  a->key_dim = a->value_dim = number("head_dim", config.uint("global_head_dim", a->key_dim));
  a->kv_heads =
      number("num_key_value_heads",
             a->k_eq_v ? config.uint("num_global_key_value_heads", a->kv_heads) : a->kv_heads);
}

Status attention(Config& config, ModelSpec* spec, const Gemma4Lists& lists) {
  const auto rope = config.json("rope_parameters");
  if (!rope.is_object() || !rope.contains("full_attention") || !rope.contains("sliding_attention"))
    return fail(Code::kInvalid,
                "config: 'rope_parameters' must have 'full_attention' and 'sliding_attention'");
  const bool k_eq_v = config.flag("attention_k_eq_v", false);
  const auto own = config.json("per_layer_config");
  const uint32_t shared = config.uint("num_kv_shared_layers", 0);
  const auto layers = static_cast<uint32_t>(spec->layers.size());
  if (shared >= layers)
    return fail(Code::kInvalid, "config: 'num_kv_shared_layers' leaves no layer");
  uint32_t full_dim = spec->layers[0].attention.key_dim;
  int last[2] = {-1, -1};  // layer with keys and values of its own: full, sliding
  for (uint32_t i = 0; i < layers; ++i) {
    auto& a = spec->layers[i].attention;
    const bool full = a.window == 0;
    a.scale = 1.0f;
    a.qk_norm = QkNorm::kHead;
    a.v_norm = true;
    const std::string key = std::to_string(i);
    a.k_eq_v = full && k_eq_v;
    if (config.is_gguf()) {
      a.k_eq_v = config.shape_of("blk." + key + ".attn_v.weight").empty();
      a.kv_heads = lists.kv_heads[i];
      spec->layers[i].ffn.width = lists.widths[i];
    }
    if (full) {
      full_dims(config, own.is_object() && own.contains(key) ? own[key] : nlohmann::json(), &a);
      full_dim = a.key_dim;
    }
    if (a.kv_heads == 0 || a.heads % a.kv_heads != 0)
      return fail(Code::kInvalid, "config: {} kv heads do not divide {} heads", a.kv_heads,
                  a.heads);
    if (i < layers - shared) {
      last[full ? 0 : 1] = static_cast<int>(i);
    } else if (last[full ? 0 : 1] < 0) {
      return fail(Code::kInvalid, "config: layer {} has no layer to share keys with", i);
    } else {
      a.kv_from = last[full ? 0 : 1];
      if (config.flag("use_double_wide_mlp", true)) spec->layers[i].ffn.width *= 2;
    }
  }
  spec->ropes.clear();
  MILLRACE_ASSIGN(auto full,
                  make_rope(rope["full_attention"], 1e6, full_dim, spec->max_context, false));
  MILLRACE_ASSIGN(auto sliding, make_rope(rope["sliding_attention"], 1e4, config.uint("head_dim"),
                                          spec->max_context, false));
  sliding.divided = false;
  spec->ropes = {std::move(full), std::move(sliding)};
  return {};
}

}  // namespace

Status build_gemma4(Config& config, ModelSpec* spec) {
  config.enter("text_config");
  config.expect("use_bidirectional_attention", "vision");  // then only between parts of a picture
  config.ignore({"vocab_size_per_layer_input", "expert_intermediate_size"});
  Gemma4Lists lists;
  if (config.is_gguf()) gemma4_from_gguf(config, &lists);
  MILLRACE_TRY(llama_like(config, spec, {.act = "gelu_pytorch_tanh", .rope_theta = 1e6}));
  MILLRACE_TRY(apply_windows(config, spec, [](uint32_t i) { return (i + 1) % 5 != 0; }));
  MILLRACE_TRY(attention(config, spec, lists));
  spec->embed_scale = static_cast<float>(std::sqrt(static_cast<double>(spec->hidden)));
  spec->tied = config.flag("tie_word_embeddings", true);
  spec->logit_softcap = static_cast<float>(config.number("final_logit_softcapping", 0.0));
  spec->layer_input = config.uint("hidden_size_per_layer_input", 0);
  const bool experts = config.flag("enable_moe_block", false);
  config.alias("top_k_experts", "num_experts_per_tok");
  const bool scaled =
      !config.is_gguf() || !config.shape_of("blk.0.layer_output_scale.weight").empty();
  for (auto& layer : spec->layers) {
    layer.mixer_out_norm = layer.ffn_out_norm = true;
    layer.scaled = scaled;
    layer.ffn.act = kernels::Activation::kGeluTanh;
    if (!experts) continue;
    MoeSpec moe = read_moe(config);
    moe.score = RouterScore::kSoftmaxSelected;
    moe.shared_width = layer.ffn.width;
    moe.apart = moe.expert_scale = true;
    layer.ffn.moe = moe;
  }
  return config.status();
}

void names_gemma4(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  using format::Role;
  if (gguf) return names_gemma4_gguf(rules);
  names_gemma(gguf, rules, drops);
  const std::string layer = "model.layers.{i}.", experts = layer + "experts.";
  put_first(rules, {{Role::kLayerTable, "model.embed_tokens_per_layer.weight"},
                    {Role::kLayerInProjection, "model.per_layer_model_projection.weight", false,
                     false, Part::kLayer},
                    {Role::kLayerInNorm, "model.per_layer_projection_norm.weight"},
                    {Role::kLayerInGate, layer + "per_layer_input_gate.weight"},
                    {Role::kLayerInOut, layer + "per_layer_projection.weight"},
                    {Role::kLayerInOutNorm, layer + "post_per_layer_input_norm.weight"},
                    {Role::kLayerScale, layer + "layer_scalar"},
                    {Role::kSharedOutNorm, layer + "post_feedforward_layernorm_1.weight"},
                    {Role::kExpertInNorm, layer + "pre_feedforward_layernorm_2.weight"},
                    {Role::kExpertOutNorm, layer + "post_feedforward_layernorm_2.weight"},
                    {Role::kRouter, layer + "router.proj.weight"},
                    {Role::kRouterScale, layer + "router.scale"},
                    {Role::kExpertScale, layer + "router.per_expert_scale"},
                    {Role::kSharedGate, layer + "mlp.gate_proj.weight"},
                    {Role::kSharedUp, layer + "mlp.up_proj.weight"},
                    {Role::kSharedDown, layer + "mlp.down_proj.weight"},
                    {Role::kGate, experts + "gate_up_proj", true, false, Part::kFirstHalf},
                    {Role::kUp, experts + "gate_up_proj", true, false, Part::kSecondHalf},
                    {Role::kDown, experts + "down_proj", true},
                    {Role::kGate, experts + "switch_glu.gate_proj.weight", true},
                    {Role::kUp, experts + "switch_glu.up_proj.weight", true},
                    {Role::kDown, experts + "switch_glu.down_proj.weight", true}});
  accept_wrapped(rules);
  drop_vision(drops);
}

}  // namespace millrace::model
