// What the families with latent attention share: its config keys and tensor names, and those of the
// indexer that selects positions.
#include <cmath>

#include "model/families/builders.h"
#include "model/rope.h"

namespace millrace::model {

Status read_latent_base(Config& config, ModelSpec* spec) {
  // Attention as in the plain config is not there, and its dimensions mean other things.
  if (config.is_gguf()) {  // files older than the split of attn_kv_b have only the plain lengths
    config.alias("head_dim", "qk_head_dim");
    config.alias("value_head_dim", "v_head_dim");
  }
  config.put("head_dim", config.is_gguf() ? config.uint("rope_dims", 2) : 2);
  config.put("value_head_dim", config.json("head_dim"));
  config.put("num_key_value_heads", config.json("num_attention_heads"));
  // GGUF: a tenth of mscale_all_dim, which mscale equals.
  auto rope = config.json("rope_scaling");
  if (config.is_gguf() && rope.is_object() && rope.contains("yarn_log_multiplier") &&
      rope["yarn_log_multiplier"].is_number()) {
    rope["mscale"] = rope["mscale_all_dim"] = rope["yarn_log_multiplier"].get<double>() * 10.0;
    rope.erase("yarn_log_multiplier");
    config.put("rope_scaling", rope);
  }
  MILLRACE_TRY(llama_like(config, spec));
  drop_predicted(config, spec);
  return {};
}

// Latent attention of every layer; the ropes are replaced by one of the rotated part.
Status read_latent(Config& config, ModelSpec* spec, bool interleaved) {
  MlaSpec m;
  m.heads = spec->layers[0].attention.heads;
  m.q_rank = config.uint("q_lora_rank", 0);
  m.rank = config.uint("kv_lora_rank");
  m.rope_dim = config.is_gguf() ? config.uint("rope_dims") : config.uint("qk_rope_head_dim");
  m.nope_dim =
      config.is_gguf() ? config.uint("qk_head_dim") - m.rope_dim : config.uint("qk_nope_head_dim");
  m.value_dim = config.uint("v_head_dim");
  if (config.is_gguf() && config.uint("qk_head_dim") <= m.rope_dim)
    config.fail_key("qk_head_dim", "is not larger than its rotated part");
  config.ignore({"qk_head_dim", "head_dim", "value_head_dim", "embedding_initializer_range"});
  config.expect("ep_size", 1);
  m.bias = spec->layers[0].attention.o_bias;
  m.key_up_transposed =
      !config.shape_of("embed_q.weight").empty() || !config.shape_of(".attn_k_b.weight").empty();
  m.rope = 0;
  double scale = 1.0 / std::sqrt(static_cast<double>(m.nope_dim + m.rope_dim));
  auto rope = config.json("rope_parameters");
  if (!rope.is_object()) rope = config.json("rope_scaling");
  const auto number = [&](const char* key, double fallback) {
    return rope.is_object() && rope.contains(key) && rope[key].is_number() ? rope[key].get<double>()
                                                                           : fallback;
  };
  if (const double all = number("mscale_all_dim", 0.0); all != 0) {
    const double factor = number("factor", 1.0);
    const double mscale = factor > 1 ? 0.1 * all * std::log(factor) + 1.0 : 1.0;
    scale *= mscale * mscale;
  }
  m.scale = static_cast<float>(scale);
  MILLRACE_ASSIGN(auto own, make_rope(rope, config.number("rope_theta", 10000.0), m.rope_dim,
                                      spec->max_context, interleaved));
  spec->ropes = {std::move(own)};
  for (auto& layer : spec->layers) {
    layer.attention = {};
    layer.mla = m;
  }
  return config.status();
}

// A selection of positions in every layer; layers called "shared" use the one before theirs.
Status read_indexers(Config& config, ModelSpec* spec, bool interleaved) {
  IndexerSpec x;
  x.heads = config.uint("index_n_heads");
  x.dim = config.uint("index_head_dim");
  x.top = config.uint("index_topk");
  if (x.dim < spec->layers[0].mla->rope_dim)
    return fail(Code::kInvalid, "config: 'index_head_dim' is smaller than 'qk_rope_head_dim'");
  x.rope = 1;
  config.ignore({"layer_types", "index_share_for_mtp_iteration", "indexer_rope_interleave"});
  RopeSpec rope = spec->ropes[0];
  rope.interleaved = interleaved;
  spec->ropes.push_back(rope);
  const auto types = config.json("indexer_types");
  const auto pattern = config.text("index_topk_pattern", "");
  const uint32_t every = config.uint("index_topk_freq", 1),
                 offset = config.uint("index_skip_topk_offset", 2);
  for (uint32_t i = 0; i < spec->layers.size(); ++i) {
    if (types.is_array() && i < types.size()) {
      x.shared = types[i] == "shared";
    } else if (i < pattern.size()) {
      x.shared = pattern[i] == 'S';
    } else {
      x.shared = every > 1 && (i + 1 > offset ? i + 1 - offset : 0) % every != 0;
    }
    if (x.shared && i == 0) return fail(Code::kInvalid, "config: the first indexer is shared");
    spec->layers[i].mla->indexer = x;
  }
  return config.status();
}

void names_latent(bool gguf, NameRules* rules, std::vector<std::string>* drops) {
  using format::Role;
  drops->push_back(gguf ? "blk.{beyond}" : "model.layers.{beyond}");
  const std::string a = gguf ? "blk.{i}." : "model.layers.{i}.self_attn.", x = a + "indexer.";
  if (gguf) {
    put_first(rules, {{Role::kQDown, a + "attn_q_a.weight"},
                      {Role::kQDownNorm, a + "attn_q_a_norm.weight"},
                      {Role::kQ, a + "attn_q_b.weight"},
                      {Role::kKvDown, a + "attn_kv_a_mqa.weight"},
                      {Role::kKvDownNorm, a + "attn_kv_a_norm.weight"},
                      {Role::kKeyUpTransposed, a + "attn_k_b.weight", true},
                      {Role::kValueUp, a + "attn_v_b.weight", true},
                      {Role::kKeyUp, a + "attn_kv_b.weight", false, false, Part::kHeadKey},
                      {Role::kValueUp, a + "attn_kv_b.weight", false, false, Part::kHeadValue},
                      {Role::kIndexQ, x + "attn_q_b.weight"},
                      {Role::kIndexK, x + "attn_k.weight"},
                      {Role::kIndexKNorm, x + "k_norm.weight"},
                      {Role::kIndexKNormBias, x + "k_norm.bias"},
                      {Role::kIndexWeights, x + "proj.weight"}});
    return;
  }
  put_first(rules, {{Role::kQDown, a + "q_a_proj.weight"},
                    {Role::kQDownBias, a + "q_a_proj.bias"},
                    {Role::kQDownNorm, a + "q_a_layernorm.weight"},
                    {Role::kQ, a + "q_b_proj.weight"},
                    {Role::kKvDown, a + "kv_a_proj_with_mqa.weight"},
                    {Role::kKvDownBias, a + "kv_a_proj_with_mqa.bias"},
                    {Role::kKvDownNorm, a + "kv_a_layernorm.weight"},
                    {Role::kKeyUp, a + "kv_b_proj.weight", false, false, Part::kHeadKey},
                    {Role::kValueUp, a + "kv_b_proj.weight", false, false, Part::kHeadValue},
                    {Role::kKeyUpTransposed, a + "embed_q.weight", true},
                    {Role::kValueUp, a + "unembed_out.weight", true},
                    {Role::kIndexQ, x + "wq_b.weight"},
                    {Role::kIndexK, x + "wk.weight"},
                    {Role::kIndexKNorm, x + "k_norm.weight"},
                    {Role::kIndexKNormBias, x + "k_norm.bias"},
                    {Role::kIndexWeights, x + "weights_proj.weight"}});
}

}  // namespace millrace::model
