"""Fixtures of families that the other reference library does not have, made with mlx-lm on the CPU.

  pip install "mlx[cpu]" mlx-lm
  python3 tests/reference/make_family_fixtures.py tests/data/golden [family ...]

A folder each: config.json, model.safetensors (bf16; weights are rounded before the reference runs)
and expected.safetensors: input_ids [28], logits [28, V], greedy_ids [12], greedy_logits [12, V].
"""
import importlib
import json
import pathlib
import sys

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=320, rms_norm_eps=1e-5, max_position_embeddings=256,
            rope_theta=10000.0, tie_word_embeddings=False)

LATENT = dict(BASE, num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=8,
              n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1, moe_layer_freq=1,
              kv_lora_rank=24, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
              v_head_dim=16, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True,
              n_group=2, topk_group=1, routed_scaling_factor=1.7, attention_bias=False,
              index_head_dim=16, index_n_heads=8, index_topk=8)

FAMILIES = {
    "internlm3": dict(BASE, bias=False, qkv_bias=True),
    "mimo": dict(BASE, head_dim=16, num_nextn_predict_layers=1),
    "telechat3": dict(BASE, head_dim=16, attention_bias=True, mlp_bias=True),
    "deepseek_v2": dict(BASE, num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=8,
                        n_shared_experts=2, num_experts_per_tok=2, first_k_dense_replace=1,
                        moe_layer_freq=1, kv_lora_rank=24, q_lora_rank=None, qk_nope_head_dim=16,
                        qk_rope_head_dim=8, v_head_dim=16, topk_method="greedy", n_group=1,
                        topk_group=1, routed_scaling_factor=1.5, attention_bias=False,
                        rope_scaling={"type": "yarn", "factor": 4.0, "mscale": 0.707,
                                      "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1,
                                      "original_max_position_embeddings": 16}),
    "nanbeige": dict(BASE, head_dim=16, num_loops=2, skip_loop_final_norm=False),
    "nanbeige_skip": dict(BASE, head_dim=16, num_loops=3, skip_loop_final_norm=True),
    "muse_glimmer": dict(BASE, num_hidden_layers=4, head_dim=16, sliding_window=8,
                         qk_scale_factor=3.87, post_norm_eps=1e-8, output_multiplier=0.5,
                         final_logit_softcapping=20.0,
                         layer_types=["sliding_attention"] * 3 + ["full_attention"],
                         layer_rope_theta=[5e5, 5e5, 5e5, 0.0],
                         rope_parameters={"rope_theta": 5e5, "rope_type": "default"}),
    # With eight index heads no two positions match equally well (nothing is clipped to 0 by all).
    "deepseek_v32_mlx": dict(LATENT, indexer_rope_interleave=False),
    "glm_moe_dsa_mlx": dict(LATENT, indexer_rope_interleave=True,
                        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}),
}


def make(folder, fixture, config):
    family = fixture.removesuffix("_mlx").removesuffix("_skip")
    module = importlib.import_module(f"mlx_lm.models.{family}")
    config = dict(config, model_type=family)
    model = module.Model(module.ModelArgs.from_dict(config))
    mx.random.seed(sum(family.encode()))
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        noise = mx.random.normal(value.shape)
        if name.endswith("norm.weight"):
            fresh = 1 + 0.1 * noise
        elif value.ndim == 1:
            fresh = 0.2 * noise
        else:
            fresh = noise * value.shape[-1] ** -0.5
        weights[name] = fresh.astype(mx.bfloat16)
    exact = {name: value.astype(mx.float32) for name, value in weights.items()}
    model.update(tree_unflatten(list(exact.items())))

    ids = [(7 * i * i + 13 * i + 5) % config["vocab_size"] for i in range(28)]
    logits = model(mx.array([ids]))[0]
    greedy_ids, greedy_logits, text = [], [], list(ids)
    for _ in range(12):
        last = model(mx.array([text]))[0, -1]
        greedy_logits.append(last)
        greedy_ids.append(int(mx.argmax(last)))
        text.append(greedy_ids[-1])

    out = pathlib.Path(folder) / fixture
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    mx.save_safetensors(str(out / "expected.safetensors"), {
        "input_ids": mx.array(ids, dtype=mx.int32), "logits": logits.astype(mx.float32),
        "greedy_ids": mx.array(greedy_ids, dtype=mx.int32),
        "greedy_logits": mx.stack(greedy_logits).astype(mx.float32)}, metadata={"format": "mlx"})
    print(fixture, "logit range", float(logits.max() - logits.min()))


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    for family in sys.argv[2:] or FAMILIES:
        make(sys.argv[1], family, FAMILIES[family])
