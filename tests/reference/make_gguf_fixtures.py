"""GGUF files of the golden fixtures, as llama.cpp's converter writes the same models.

  pip install gguf numpy
  python3 tests/reference/make_gguf_fixtures.py tests/data/golden tests/data/gguf [fixture ...]

Matrices are bf16, as in the source, so that nothing is lost; vectors, routers and convolutions are
f32. The vocabulary is the smallest that is valid: no test reads text. With --f32, all is f32: for
engines that round activations to the type of the weights.
"""
import json
import pathlib
import re
import struct
import sys

import gguf
import numpy as np

from gguf_families import FAMILIES, head_dim, rope_of


def read_safetensors(path):
    raw = path.read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, entry in json.loads(raw[8:end]).items():
        if name == "__metadata__":
            continue
        begin, stop = (end + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            wide = np.frombuffer(raw[begin:stop], np.uint16).astype(np.uint32) << 16
            values = wide.view(np.float32)
        else:
            assert entry["dtype"] == "F32", (name, entry["dtype"])
            values = np.frombuffer(raw[begin:stop], np.float32)
        out[name] = values.reshape(entry["shape"])
    return out


def common_keys(w, c):
    """What the converter writes for every family."""
    rope = rope_of(c)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    if rope.get("rope_type", rope.get("type")) == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    theta = rope.get("rope_theta", c.get("rope_theta"))
    if theta:
        w.add_rope_freq_base(theta)
    sliding = (c.get("rope_parameters") or {}).get("sliding_attention")
    if sliding:
        w.add_rope_freq_base_swa(sliding["rope_theta"])
    if "rms_norm_eps" in c:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if "layer_norm_epsilon" in c:
        w.add_layer_norm_eps(c["layer_norm_epsilon"])
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if c.get(key):
            w.add_expert_count(c[key])
            break
    used = c.get("num_experts_per_tok") or c.get("top_k_experts")
    if used:
        w.add_expert_used_count(used)
    if c.get("n_group"):
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
    if c.get("head_dim"):
        w.add_key_length(head_dim(c))
        w.add_value_length(head_dim(c))


def vocabulary(w, size, bytes_too):
    """Bytes and made-up words, in the layout of a SentencePiece model."""
    types = gguf.TokenType
    listed = [("<unk>", types.UNKNOWN), ("<s>", types.CONTROL), ("</s>", types.CONTROL)]
    listed += [(f"<0x{byte:02X}>", types.BYTE) for byte in range(256 if bytes_too else 0)]
    listed += [(f"\u2581w{i}", types.NORMAL) for i in range(len(listed), size)]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list([text for text, _ in listed])
    w.add_token_scores([-float(i) for i in range(size)])
    w.add_token_types([kind for _, kind in listed])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_add_space_prefix(False)


def stack_experts(tensors):
    """x.experts.E.y.weight of all experts become x.experts.y.weight."""
    stacks, out = {}, {}
    for name, t in tensors.items():
        match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if match:
            stacks.setdefault(f"{match[1]}.{match[3]}.weight", {})[int(match[2])] = t
        else:
            out[name] = t
    for name, experts in stacks.items():
        out[name] = np.stack([experts[e] for e in range(len(experts))])
    return out


def convert(family, c, tensors):
    """Names and values of the file."""
    changed = {}
    for name, t in tensors.items():
        if c.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        changed.update(family.tensors(c, name, t) if family.tensors else [(name, t)])
    names = gguf.get_tensor_name_map(family.names, c["num_hidden_layers"])
    out = dict(family.extra(c)) if family.extra else {}
    for name, t in stack_experts(changed).items():
        own = name.startswith(("blk.", "token_embd", "output"))
        to = name if own else names.get_name(name, try_suffixes=(".weight", ".bias"))
        if to is None and name.endswith("kv_b_proj.weight"):
            to = f"blk.{name.split('.')[2]}.attn_kv_b.weight"
        if to is None and name.endswith("_bias"):
            to = names.get_name(name.removesuffix("_bias") + ".bias", try_suffixes=(".bias",))
        assert to, f"{name} has no GGUF name"
        assert to not in out, f"{to} twice"
        out[to] = t
    return out


F32 = ("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "conv1d.weight",
       "shortconv.conv.weight")


def add_tensor(w, name, t, all_f32):
    t = np.ascontiguousarray(t, np.float32)
    bits = t.view(np.uint32)
    lossy = (bits & 0xFFFF).any()
    if all_f32 or t.ndim < 2 or name.endswith(F32) or lossy or name.endswith(("ssm_a", "ssm_d")):
        w.add_tensor(name, t)
        return
    raw = (bits >> 16).astype(np.uint16)
    w.add_tensor(name, raw.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def make(golden, out, fixture, all_f32):
    family = FAMILIES[fixture]
    folder = golden / fixture.split("@")[0]
    c = json.loads((folder / "config.json").read_text())
    c.update(family.config or {})
    if "layers_block_type" in c:
        c["num_hidden_layers"] = len(c["layers_block_type"])
    c["tensors"] = read_safetensors(folder / "model.safetensors")
    path = out / f"{fixture}.gguf"
    w = gguf.GGUFWriter(path, family.arch)
    common_keys(w, c)
    if family.keys:
        family.keys(w, c)
    w.add_file_type(gguf.LlamaFileType.ALL_F32 if all_f32 else gguf.LlamaFileType.MOSTLY_BF16)
    # Servers hold tokens back that are not whole characters: none in files made for comparing.
    vocabulary(w, c["vocab_size"], not all_f32)
    for name, t in convert(family, c, c["tensors"]).items():
        add_tensor(w, name, t, all_f32)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(path, path.stat().st_size)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--f32"]
    golden, out = map(pathlib.Path, arguments[:2])
    out.mkdir(parents=True, exist_ok=True)
    for fixture in arguments[2:] or FAMILIES:
        make(golden, out, fixture, "--f32" in sys.argv)


if __name__ == "__main__":
    main()
