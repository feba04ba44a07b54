"""How each family's Hugging Face tensors and config become those of a GGUF file.

The facts (names, order of heads, which norms are stored whole, which keys are written) are those of
llama.cpp's converter and loaders; names and keys come from the gguf package. A family is an
architecture, a function over its tensors and one that writes its own metadata.
"""
import math
import re
from dataclasses import dataclass
from typing import Callable

import gguf
import numpy as np

Arch = gguf.MODEL_ARCH
Gating = gguf.ExpertGatingFuncType


@dataclass
class Family:
    arch: str                 # general.architecture
    names: Arch               # whose tensor names
    tensors: Callable = None  # (config, name, array) -> [(name, array)], Hugging Face or GGUF names
    keys: Callable = None     # (writer, config): metadata besides the common
    extra: Callable = None    # (config) -> {GGUF name: array}
    config: dict = None       # replaces values of the fixture's config


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def rope_of(c):
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    return rope.get("full_attention", rope)


# --- Llama and those whose files turn pairs (2j, 2j + 1)

def interleaved(t, heads):
    """Rows of each head from halves (j, j + d / 2) to neighbours."""
    return t.reshape(heads, 2, -1, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)


def permuted(c, name, t):
    if re.search(r"\.q_proj\.(weight|bias)$", name):
        t = interleaved(t, c["num_attention_heads"])
    elif re.search(r"\.k_proj\.(weight|bias)$", name):
        t = interleaved(t, c["num_key_value_heads"])
    # Mixtral's experts have a name of their own in the map.
    name = re.sub(r"^model\.(layers\.\d+)\.block_sparse_moe\.experts", r"\1.feed_forward.experts", name)
    return [(name, t)]


def llama_keys(w, c):
    w.add_vocab_size(c["vocab_size"])
    w.add_rope_dimension_count(head_dim(c))


def llama3_factors(c):
    """What each frequency is divided by."""
    rope = rope_of(c)
    if rope.get("rope_type") != "llama3":
        return {}
    dim = head_dim(c)
    freqs = rope["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float32) / dim)
    context = rope["original_max_position_embeddings"]
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    out = []
    for turns in context * freqs / (2 * np.pi):  # in the original context
        if turns > high:
            out.append(1.0)
        elif turns < low:
            out.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.array(out, np.float32)}


def ministral_keys(w, c):
    llama_keys(w, c)
    w.add_rope_scaling_yarn_log_mul(rope_of(c)["mscale_all_dim"])
    w.add_attn_temperature_scale(rope_of(c)["llama_4_scaling_beta"])


def granite_keys(w, c):
    llama_keys(w, c)
    w.add_attention_scale(c["attention_multiplier"])
    w.add_embedding_scale(c["embedding_multiplier"])
    w.add_residual_scale(c["residual_multiplier"])
    w.add_logit_scale(c["logits_scaling"])


def apertus_extra_keys(w, c):
    llama_keys(w, c)
    for key in ("alpha_p", "alpha_n", "beta", "eps"):
        values = [float(c["tensors"][f"model.layers.{i}.mlp.act_fn.{key}"].reshape(-1)[0])
                  for i in range(c["num_hidden_layers"])]
        getattr(w, f"add_xielu_{key}")(values)


def apertus(c, name, t):
    return [] if ".act_fn." in name else [(name, t)]


# --- Gemma

def norms_plus_one(c, name, t):
    return [(name, t + 1 if name.endswith("norm.weight") else t)]


def gemma2_keys(w, c):
    w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_sliding_window(c["sliding_window"])


def gemma3_keys(w, c):
    w.add_sliding_window(c["sliding_window"])
    # Not written for published models, whose every sixth layer is full; read when there.
    w.add_sliding_window_pattern(c["layer_types"].index("full_attention") + 1)


def full_layer(c, key, fallback):
    for i, kind in enumerate(c["layer_types"]):
        own = (c.get("per_layer_config") or {}).get(str(i), {})
        if kind == "full_attention" and key in own:
            return own[key]
    return fallback


def gemma4_keys(w, c):
    layers = c["num_hidden_layers"]
    sliding = [kind == "sliding_attention" for kind in c["layer_types"]]
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern(sliding)
    w.add_final_logit_softcapping(c["final_logit_softcapping"] or 0.0)  # 30 where it is absent
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"] or 0)
    full = full_layer(c, "head_dim", c.get("global_head_dim"))
    w.add_key_length(full)
    w.add_value_length(full)
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_rope_dimension_count(full)
    w.add_rope_dimension_count_swa(c["head_dim"])
    if c.get("moe_intermediate_size"):
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if c["use_double_wide_mlp"]:
        own = layers - c["num_kv_shared_layers"]
        w.add_feed_forward_length([c["intermediate_size"] * (1 if i < own else 2)
                                   for i in range(layers)])
    kv = full_layer(c, "num_key_value_heads", c.get("num_global_key_value_heads"))
    if kv is not None:
        w.add_head_count_kv([c["num_key_value_heads"] if s else kv for s in sliding])


def gemma4(c, name, t):
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if name.endswith("router.scale"):
        return [(f"blk.{layer[1]}.ffn_gate_inp.scale", t)]
    if name.endswith("per_expert_scale"):
        return [(f"blk.{layer[1]}.ffn_down_exps.scale", t)]
    if name.endswith("layer_scalar") or ".experts." in name:
        name += ".weight"
    return [(name, t)]


def gemma4_factors(c):
    """Full layers turn the first pairs only: the others' frequencies are divided by a lot."""
    full = full_layer(c, "head_dim", c.get("global_head_dim"))
    turning = int(full * rope_of(c)["partial_rotary_factor"] / 2)
    return {"rope_freqs.weight":
            np.array([1.0] * turning + [1e30] * (full // 2 - turning), np.float32)}


# --- gpt-oss

def gpt_oss(c, name, t):
    if name.endswith("sinks"):
        return [(name + ".weight", t)]
    if name.endswith("_bias"):
        name = name.removesuffix("_bias") + ".bias"
    elif "experts" in name:
        name, t = name + ".weight", t.swapaxes(-1, -2)
    if "gate_up_proj" not in name:
        return [(name, t)]
    return [(name.replace("gate_up", "gate"), t[:, ::2]), (name.replace("gate_up", "up"), t[:, 1::2])]


def gpt_oss_keys(w, c):
    w.add_sliding_window(c["sliding_window"])
    w.add_expert_feed_forward_length(c["intermediate_size"])


# --- Qwen

def qwen_moe_keys(w, c):
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def qwen3_moe(c, name, t):
    """Files have no dense layers among sparse ones: such a layer becomes the sum of its slices, as
    experts that a router of zeros picks in order, each weighed 1 / used."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj\.weight", name)
    if not match:
        return [(name, t)]
    used, width = c["num_experts_per_tok"], c["moe_intermediate_size"]
    assert used * width == c["intermediate_size"]
    base = f"model.layers.{match[1]}.mlp."
    out = [(base + "gate.weight", np.zeros((c["num_local_experts"], c["hidden_size"])))]
    for e in range(c["num_local_experts"]):
        at = slice(e % used * width, (e % used + 1) * width)
        part = t[:, at] * used if match[2] == "down" else t[at]
        out.append((f"{base}experts.{e}.{match[2]}_proj.weight", part))
    return out


def delta_keys(w, c):
    if "moe_intermediate_size" in c:
        qwen_moe_keys(w, c)
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    w.add_array(f"{w.arch}.attention.recurrent_layers",
                [kind == "linear_attention" for kind in c["layer_types"]])
    w.add_full_attention_interval(c.get("full_attention_interval", 4))
    w.add_rope_dimension_count(int(head_dim(c) * rope_of(c)["partial_rotary_factor"]))


def qwen35_keys(w, c):
    delta_keys(w, c)
    w.add_rope_dimension_sections(rope_of(c).get("mrope_section", [11, 11, 10]) + [0])


def delta(c, name, t):
    if name.endswith(".A_log"):
        t = -np.exp(t)
    elif name.endswith(".dt_bias"):
        name = name.removesuffix(".dt_bias") + ".dt_proj.bias"
    elif "conv1d" in name:
        t = t.squeeze(1)
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        t = t + 1
    return [(name, t)]


def qwen3_next(c, name, t):
    if "in_proj_qkvz" not in name:
        return delta(c, name, t)
    # From [q | k | v | z] of each key head to all q, all k, all v; and all z.
    groups, kd = c["linear_num_key_heads"], c["linear_key_head_dim"]
    vd = c["linear_value_head_dim"] * c["linear_num_value_heads"] // groups
    heads = t.reshape(groups, 2 * kd + 2 * vd, -1)
    parts = np.split(heads, [kd, 2 * kd, 2 * kd + vd], axis=1)
    q, k, v, z = (part.reshape(-1, t.shape[1]) for part in parts)
    layer = name.split(".")[2]
    return [(f"blk.{layer}.attn_qkv.weight", np.concatenate([q, k, v])),
            (f"blk.{layer}.attn_gate.weight", z)]


def tiled(c, t, axis, width):
    """Value heads from the order of their key heads to one of each key head at a time."""
    groups = c["linear_num_key_heads"]
    ratio = c["linear_num_value_heads"] // groups
    shape = t.shape
    t = t.reshape(*shape[:axis], groups, ratio, width, *shape[axis + 1:])
    return t.swapaxes(axis, axis + 1).reshape(shape)


def qwen3_5(c, name, t):
    width = c["linear_value_head_dim"]
    keys = 2 * c["linear_key_head_dim"] * c["linear_num_key_heads"]
    if ".in_proj_qkv." in name or "conv1d" in name:
        t = np.concatenate([t[:keys], tiled(c, t[keys:], 0, width)])
    elif ".in_proj_z." in name:
        t = tiled(c, t, 0, width)
    elif re.search(r"\.in_proj_[ab]\.|\.A_log$|\.dt_bias$", name):
        t = tiled(c, t, 0, 1)
    elif "linear_attn.out_proj." in name:
        t = tiled(c, t, 1, width)
    return delta(c, name, t)


# --- DeepSeek and its kin

def latent_keys(w, c):
    rope = rope_of(c)
    experts = c.get("n_routed_experts")
    w.add_head_count_kv(1)
    w.add_leading_dense_block_count(
        c.get("first_k_dense_replace", 0 if experts else c["num_hidden_layers"]))
    w.add_vocab_size(c["vocab_size"])
    if c.get("q_lora_rank"):
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_value_length(c["kv_lora_rank"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_expert_feed_forward_length(c.get("moe_intermediate_size", c["intermediate_size"]))
    w.add_expert_shared_count(c.get("n_shared_experts", 0))
    if "routed_scaling_factor" in c:
        w.add_expert_weights_scale(c["routed_scaling_factor"])
    if c.get("norm_topk_prob"):
        w.add_expert_weights_norm(True)
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    if "mscale_all_dim" in rope:
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def unsplit_keys(w, c):
    """Files older than the split of kv_b: heads as they are, no lengths of the latent."""
    latent_keys(w, c)
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length(c["v_head_dim"])
    for key in ("key_length_mla", "value_length_mla"):
        del w.kv_data[0][f"{w.arch}.attention.{key}"]


def deepseek_v3_keys(w, c):
    latent_keys(w, c)
    w.add_expert_gating_func(Gating.SIGMOID)  # published configs name it


def deepseek_v3_unsplit_keys(w, c):
    unsplit_keys(w, c)
    w.add_expert_gating_func(Gating.SIGMOID)


def sparse_keys(w, c):
    deepseek_v3_keys(w, c)
    w.add_indexer_head_count(c["index_n_heads"])
    w.add_indexer_key_length(c["index_head_dim"])
    w.add_indexer_top_k(c["index_topk"])


def glm_dsa_keys(w, c):
    sparse_keys(w, c)
    if "indexer_types" in c:
        w.add_array(f"{w.arch}.attention.indexer.types", [t == "full" for t in c["indexer_types"]])


def unsplit(c, name, t):
    return [(name.replace("switch_mlp", "experts"), t)]  # stacked already


def latent(c, name, t):
    name = name.replace("switch_mlp", "experts")
    if not name.endswith("kv_b_proj.weight"):
        return [(name, t)]
    heads = t.reshape(c["num_attention_heads"], -1, t.shape[1])
    nope = c["qk_nope_head_dim"]
    return [(name.replace("kv_b", "k_b"), heads[:, :nope].swapaxes(1, 2)),
            (name.replace("kv_b", "v_b"), heads[:, nope:])]


# --- GLM 4, MiniMax, and dense families with a key of their own

def chatglm_keys(w, c):
    # The converter does not write the usual lengths of a head.
    for key in ("key_length", "value_length"):
        w.kv_data[0].pop(f"{w.arch}.attention.{key}", None)
    glm_rope_keys(w, c)


def glm_rope_keys(w, c):
    w.add_rope_dimension_count(int(head_dim(c) * rope_of(c).get("partial_rotary_factor", 0.5)))


def glm4_moe_keys(w, c):
    glm_rope_keys(w, c)
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_gating_func(Gating.SIGMOID)
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])


def minimax_keys(w, c):
    w.add_expert_gating_func(Gating.SIGMOID)
    w.add_expert_feed_forward_length(c["intermediate_size"])
    # The reference rotates whole heads when the config has rope_parameters without a factor.
    w.add_rope_dimension_count(int(head_dim(c) * rope_of(c).get("partial_rotary_factor", 1.0)))


def phi3_keys(w, c):
    for key in ("key_length", "value_length"):
        w.kv_data[0].pop(f"{w.arch}.attention.{key}", None)
    w.add_rope_scaling_orig_ctx_len(c["original_max_position_embeddings"])
    w.add_rope_dimension_count(head_dim(c))
    w.add_sliding_window(c["sliding_window"] or 0)


# As of the models with 128k positions; the test knows the same numbers.
LONGROPE = {"rope_theta": 10000.0, "rope_type": "longrope", "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 8, "long_factor": [1.0 + j / 4 for j in range(8)]}


def longrope_keys(w, c):
    phi3_keys(w, c)
    ratio = c["max_position_embeddings"] / c["original_max_position_embeddings"]
    w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    w.add_rope_scaling_attn_factors(
        math.sqrt(1 + math.log(ratio) / math.log(c["original_max_position_embeddings"])))


def longrope_factors(c):
    return {f"rope_factors_{kind}.weight": np.array(rope_of(c)[f"{kind}_factor"], np.float32)
            for kind in ("long", "short")}


def olmo3_keys(w, c):
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])


def hunyuan_keys(w, c):
    rope = rope_of(c)
    dim = head_dim(c)
    w.add_rope_freq_base(rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2)))
    w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    w.add_rope_scaling_factor(1)


# --- Convolutions and state spaces

def conv_kv_heads(c):
    return [c["num_key_value_heads"] if kind == "full_attention" else 0 for kind in c["layer_types"]]


def lfm2_keys(w, c):
    w.add_head_count_kv(conv_kv_heads(c))
    w.add_vocab_size(c["vocab_size"])
    w.add_shortconv_l_cache(c["conv_L_cache"])
    w.add_layer_norm_rms_eps(c["norm_eps"])


def lfm2_moe_keys(w, c):
    lfm2_keys(w, c)
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_leading_dense_block_count(c["num_dense_layers"])
    w.add_expert_gating_func(Gating.SIGMOID)


def lfm2(c, name, t):
    if "conv.conv" in name:
        t = t.squeeze(1)
    if name.endswith(".expert_bias"):
        name += ".bias"
    return [(re.sub(r"^model\.(layers\.\d+\.feed_forward\.experts)", r"\1", name), t)]


def mamba2(c, name, t):
    groups = c.get("n_groups") or c["mamba_n_groups"]
    if name.endswith(".dt_bias"):
        name = name.removesuffix("dt_bias") + "dt_proj.bias"
    elif "conv1d.weight" in name:
        t = t.squeeze(1)
    elif name.endswith(".A_log"):
        t = -np.exp(t).reshape(-1, 1)
    elif name.endswith(".D"):
        t = t.reshape(-1, 1)
    elif re.search(r"\.(mixer|mamba)\.norm\.weight$", name):
        t = t.reshape(groups, -1)
    return [(name, t)]


def nemotron_h(c, name, t):
    name = re.sub(r"^backbone\.(layers\.\d+)\.mixer\.experts", r"model.\1.mlp.experts", name)
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    return [(n.replace("mixer.dt_proj", "mixer.dt"), v) for n, v in mamba2(c, name, t)]


def nemotron_h_keys(w, c):
    kinds = c["layers_block_type"]
    w.add_context_length(2 ** 20)  # attention has no positions
    w.add_ssm_conv_kernel(c["conv_kernel"])
    w.add_ssm_state_size(c["ssm_state_size"])
    w.add_ssm_group_count(c["n_groups"])
    w.add_ssm_inner_size(c["mamba_num_heads"] * c["mamba_head_dim"])
    w.add_ssm_time_step_rank(c["mamba_num_heads"])
    w.add_head_count_kv([c["num_key_value_heads"] if k in ("attention", "full_attention") else 0
                         for k in kinds])
    w.add_rope_scaling_finetuned(False)
    w.add_layer_norm_rms_eps(c["layer_norm_epsilon"])
    w.add_feed_forward_length([c["moe_intermediate_size"] if k == "moe" else 0 for k in kinds])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])


def falcon_h1_keys(w, c):
    w.add_vocab_size(c["vocab_size"])
    w.add_ssm_conv_kernel(c["mamba_d_conv"])
    w.add_ssm_state_size(c["mamba_d_state"])
    w.add_ssm_group_count(c["mamba_n_groups"])
    w.add_ssm_inner_size(c["mamba_d_ssm"])
    w.add_ssm_time_step_rank(c["mamba_d_ssm"] // c["mamba_d_head"])


FAMILIES = {
    "llama": Family("llama", Arch.LLAMA, permuted, llama_keys, llama3_factors),
    "llama_tied_bias": Family("llama", Arch.LLAMA, permuted, llama_keys),
    "mixtral": Family("llama", Arch.LLAMA, permuted, llama_keys),
    "ministral3": Family("mistral3", Arch.MISTRAL3, permuted, ministral_keys),
    "smollm3": Family("smollm3", Arch.SMOLLM3, permuted, llama_keys),
    "granite": Family("granite", Arch.GRANITE, permuted, granite_keys),
    "apertus": Family("apertus", Arch.APERTUS, apertus, apertus_extra_keys, llama3_factors),
    "qwen2": Family("qwen2", Arch.QWEN2),
    "qwen2_moe": Family("qwen2moe", Arch.QWEN2MOE, None, qwen_moe_keys),
    "qwen3": Family("qwen3", Arch.QWEN3),
    "qwen3_moe": Family("qwen3moe", Arch.QWEN3MOE, qwen3_moe, qwen_moe_keys),
    "qwen3_next": Family("qwen3next", Arch.QWEN3NEXT, qwen3_next, delta_keys),
    "qwen3_5_text": Family("qwen35", Arch.QWEN35, qwen3_5, qwen35_keys),
    "qwen3_5_moe_text": Family("qwen35moe", Arch.QWEN35MOE, qwen3_5, qwen35_keys),
    "gemma2": Family("gemma2", Arch.GEMMA2, norms_plus_one, gemma2_keys),
    "gemma3_text": Family("gemma3", Arch.GEMMA3, norms_plus_one, gemma3_keys),
    "gemma4_text": Family("gemma4", Arch.GEMMA4, gemma4, gemma4_keys, gemma4_factors),
    "gemma4_text_ple": Family("gemma4", Arch.GEMMA4, gemma4, gemma4_keys, gemma4_factors),
    "gemma4_text_moe": Family("gemma4", Arch.GEMMA4, gemma4, gemma4_keys, gemma4_factors),
    "gpt_oss": Family("gpt-oss", Arch.GPT_OSS, gpt_oss, gpt_oss_keys),
    "deepseek_v2": Family("deepseek2", Arch.DEEPSEEK2, latent, latent_keys),
    "deepseek_v3": Family("deepseek2", Arch.DEEPSEEK2, latent, deepseek_v3_keys),
    "deepseek_v2@kv_b": Family("deepseek2", Arch.DEEPSEEK2, unsplit, unsplit_keys),
    "deepseek_v3@kv_b": Family("deepseek2", Arch.DEEPSEEK2, unsplit, deepseek_v3_unsplit_keys),
    "youtu": Family("deepseek2", Arch.DEEPSEEK2, latent, latent_keys),
    "deepseek_v32": Family("deepseek32", Arch.GLM_DSA, latent, sparse_keys),
    "glm_moe_dsa": Family("glm-dsa", Arch.GLM_DSA, latent, glm_dsa_keys),
    "glm": Family("chatglm", Arch.CHATGLM, None, chatglm_keys),
    "glm4": Family("glm4", Arch.GLM4, None, glm_rope_keys),
    "glm4_moe": Family("glm4moe", Arch.GLM4_MOE, None, glm4_moe_keys),
    "minimax_m2": Family("minimax-m2", Arch.MINIMAXM2, None, minimax_keys),
    "phi3": Family("phi3", Arch.PHI3, None, phi3_keys),
    "phi3@longrope": Family("phi3", Arch.PHI3, None, longrope_keys, longrope_factors,
                            {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    "olmo2": Family("olmo2", Arch.OLMO2),
    "olmo3": Family("olmo2", Arch.OLMO2, None, olmo3_keys),
    "ernie4_5": Family("ernie4_5", Arch.ERNIE4_5),
    "hunyuan_v1_dense": Family("hunyuan-dense", Arch.HUNYUAN_DENSE, None, hunyuan_keys),
    "seed_oss": Family("seed_oss", Arch.SEED_OSS),
    "lfm2": Family("lfm2", Arch.LFM2, lfm2, lfm2_keys),
    "lfm2_moe": Family("lfm2moe", Arch.LFM2MOE, lfm2, lfm2_moe_keys),
    "nemotron_h": Family("nemotron_h_moe", Arch.NEMOTRON_H_MOE, nemotron_h, nemotron_h_keys),
    "falcon_h1": Family("falcon-h1", Arch.FALCON_H1, mamba2, falcon_h1_keys),
}
