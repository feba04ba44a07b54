"""Fixtures of variants that the others leave out, made with Hugging Face transformers on the CPU.

  pip install torch transformers safetensors
  python3 tests/reference/make_variant_fixtures.py tests/data/golden [fixture ...]

Kinds of rope and routers, latent norms and index keys that are small (so that their eps shows), and
text models inside others, with what the file then holds for pictures and sound. A folder each:
config.json, model.safetensors (bf16; weights are rounded before the reference runs) and
expected.safetensors: input_ids [28], logits [28, V], greedy_ids [12], greedy_logits [12, V].
"""
import copy
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=320, rms_norm_eps=1e-5, max_position_embeddings=256,
            head_dim=16, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0)
YARN = dict(type="yarn", factor=4.0, original_max_position_embeddings=16)
LATENT = dict(BASE, num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=8,
              n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
              kv_lora_rank=24, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
              v_head_dim=16, n_group=4, topk_group=2, routed_scaling_factor=1.7,
              attention_bias=False)
LATENT.pop("head_dim")
LONGROPE = dict(type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5],
                long_factor=[1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 8.0, 12.0])
DELTA = dict(BASE, num_hidden_layers=4, head_dim=32, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
             linear_conv_kernel_dim=4, layer_types=["linear_attention"] * 3 + ["full_attention"],
             rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                  partial_rotary_factor=0.25, mrope_section=[2, 1, 1]))
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32,
               shared_expert_intermediate_size=32)
QWEN_VISION = dict(depth=1, hidden_size=32, intermediate_size=32, num_heads=2, patch_size=4,
                   out_hidden_size=64, num_position_embeddings=16)
SIGLIP = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
              image_size=16, patch_size=4)
PIXTRAL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
               image_size=16, patch_size=4, head_dim=16)

# Fixture: model type, config, what the written config says instead (older keys, as published).
FIXTURES = {
    "qwen2_yarn": ("qwen2", dict(BASE, rope_scaling=YARN, rope_theta=10000.0), dict(
        rope_parameters=None, rope_theta=10000.0, rope_scaling=YARN)),
    "phi3_longrope": ("phi3", dict(BASE, rope_scaling=LONGROPE, rope_theta=10000.0,
                                   original_max_position_embeddings=16), dict(
        rope_parameters=None, rope_theta=10000.0, rope_scaling=LONGROPE,
        original_max_position_embeddings=16)),
    "phi3_longrope_short": ("phi3", dict(BASE, rope_scaling=LONGROPE, rope_theta=10000.0,
                                         original_max_position_embeddings=256), dict(
        rope_parameters=None, rope_theta=10000.0, rope_scaling=LONGROPE,
        original_max_position_embeddings=256)),
    "gemma3_linear": ("gemma3_text", dict(
        BASE, hidden_size=96, num_hidden_layers=6, sliding_window=8, query_pre_attn_scalar=16,
        tie_word_embeddings=True, rope_theta=1e6, rope_local_base_freq=1e4,
        rope_scaling=dict(rope_type="linear", factor=8.0)), dict(
        rope_parameters=None, rope_theta=1e6, rope_local_base_freq=1e4,
        rope_scaling=dict(rope_type="linear", factor=8.0))),
    "deepseek_v2_groups": ("deepseek_v2", dict(
        LATENT, topk_method="group_limited_greedy", norm_topk_prob=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0)), {}),
    "deepseek_v3_yarn": ("deepseek_v3", dict(
        LATENT, norm_topk_prob=True, rope_theta=10000.0, rope_scaling=dict(
            YARN, factor=40, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1)), dict(
        rope_parameters=None, rope_theta=10000.0, scoring_func="sigmoid", topk_method="noaux_tc",
        moe_layer_freq=1, ep_size=1, rope_scaling=dict(
            YARN, factor=40, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1))),
    "glm_moe_dsa_shared": ("glm_moe_dsa", dict(
        LATENT, num_hidden_layers=5, norm_topk_prob=True, index_head_dim=16, index_n_heads=8,
        index_topk=8, rms_norm_eps=1e-5,
        indexer_types=["full", "shared", "full", "shared", "shared"],
        mlp_layer_types=["dense"] + ["sparse"] * 4,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0)), {}),
    "nemotron_h_mlp": ("nemotron_h", dict(
        {key: value for key, value in BASE.items() if key not in ("num_hidden_layers", "rms_norm_eps")},
        layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"], mamba_num_heads=8,
        mamba_head_dim=16, ssm_state_size=16, n_groups=2, conv_kernel=4, chunk_size=8,
        layer_norm_epsilon=1e-5, time_step_limit=(0.0, float("inf"))), {}),
    "qwen3_5": ("qwen3_5", dict(text_config=DELTA, vision_config=QWEN_VISION), {}),
    "qwen3_5_moe": ("qwen3_5_moe", dict(text_config=dict(DELTA, **EXPERTS),
                                        vision_config=QWEN_VISION), {}),
    "gemma3": ("gemma3", dict(
        text_config=dict(BASE, num_hidden_layers=6, sliding_window=8, query_pre_attn_scalar=16,
                         tie_word_embeddings=True), vision_config=SIGLIP,
        mm_tokens_per_image=4, tie_word_embeddings=True), {}),
    "mistral3": ("mistral3", dict(text_config=dict(BASE, model_type="mistral", sliding_window=None),
                                  vision_config=dict(PIXTRAL, model_type="pixtral")), {}),
    "gemma4": ("gemma4", dict(
        text_config=dict(BASE, num_hidden_layers=6, sliding_window=8, tie_word_embeddings=True,
                         global_head_dim=32, hidden_size_per_layer_input=0, num_kv_shared_layers=0,
                         use_double_wide_mlp=False, vocab_size_per_layer_input=320,
                         layer_types=["sliding_attention"] * 2 + ["full_attention"] +
                         ["sliding_attention"] * 2 + ["full_attention"]),
        vision_config=dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                           num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                           patch_size=4, position_embedding_size=16),
        audio_config=dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                          output_proj_dims=32, subsampling_conv_channels=[16, 8]),
        tie_word_embeddings=True), {}),
    "muse_glimmer_wrapped": ("muse_glimmer", dict(
        text_config=dict(BASE, num_hidden_layers=4, sliding_window=8, output_multiplier=0.5),
        vision_config=dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                           num_attention_heads=2, patch_size=4, pos_emb_height=4, pos_emb_width=4,
                           max_position_embeddings=16),
        out_hidden_size=32, projector_hidden_size=32), {}),
}
SMALL = ("kv_a_proj_with_mqa.weight", "q_a_proj.weight", "indexer.wk.weight")


def weights_of(model, small):
    generator = torch.Generator().manual_seed(7)
    for name, value in sorted(model.state_dict().items()):
        if not value.is_floating_point():
            continue
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("norm.weight") or "layernorm" in name:
            one = 0.0 if float(value.abs().max()) == 0.0 else 1.0
            fresh = one + 0.1 * noise
        elif value.ndim == 0:
            fresh = 1 + 0.1 * noise
        elif value.ndim == 1:
            fresh = 0.2 * noise
        else:
            fresh = noise * value.shape[-1] ** -0.5
        if small and name.endswith(SMALL):
            fresh = fresh * 2e-3
        value.copy_(fresh.to(torch.bfloat16))


@torch.no_grad()
def make(folder, fixture):
    kind, fields, written = FIXTURES[fixture]
    fields = copy.deepcopy(fields)  # transformers writes into them
    config = transformers.AutoConfig.for_model(kind, **fields)
    config._attn_implementation = "eager"
    wrapped = "text_config" in fields
    auto = transformers.AutoModelForImageTextToText if wrapped else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager").float().eval()
    weights_of(model, fixture == "glm_moe_dsa_shared")

    vocab = (fields.get("text_config") or fields)["vocab_size"]
    ids = [(7 * i * i + 13 * i + 5) % (vocab - 20) for i in range(28)]

    def logits_of(text):
        return model(input_ids=torch.tensor([text]), use_cache=False).logits[0].float()

    logits = logits_of(ids)
    greedy_ids, greedy_logits, text = [], [], list(ids)
    for _ in range(12):
        last = logits_of(text)[-1]
        greedy_logits.append(last)
        greedy_ids.append(int(last.argmax()))
        text.append(greedy_ids[-1])

    out = pathlib.Path(folder) / fixture
    shutil.rmtree(out, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((out / "config.json").read_text())
    config.update(written)
    config = {key: value for key, value in config.items() if value is not None}
    (out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    save_file({"input_ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.contiguous(),
               "greedy_ids": torch.tensor(greedy_ids, dtype=torch.int32),
               "greedy_logits": torch.stack(greedy_logits)}, str(out / "expected.safetensors"))
    print(fixture, "range", float(logits.max() - logits.min()), "tensors",
          len(load_file(str(out / "model.safetensors"))))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:] or FIXTURES:
        make(sys.argv[1], name)
