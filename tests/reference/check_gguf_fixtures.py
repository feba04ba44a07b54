"""Runs the GGUF fixtures in llama.cpp and compares with the reference's greedy continuation: that the
files are what the field reads, rather than what our loader expects.

  pip install gguf numpy xllamacpp
  python3 tests/reference/make_gguf_fixtures.py --f32 tests/data/golden OUT
  python3 tests/reference/check_gguf_fixtures.py tests/data/golden OUT [fixture ...]

With f32 files, since llama.cpp rounds activations to the type of the weights. Prints the largest
difference of log-probabilities over the range of the logits, and whether the ids are equal. Each
model runs in a process of its own: one that cannot be loaded ends it.
"""
import json
import pathlib
import struct
import subprocess
import sys

import numpy as np


def tensor(path, name):
    raw = path.read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    entry = json.loads(raw[8:end])[name]
    begin, stop = (end + offset for offset in entry["data_offsets"])
    kind = {"F32": np.float32, "I32": np.int32, "I64": np.int64}[entry["dtype"]]
    return np.frombuffer(raw[begin:stop], kind).reshape(entry["shape"])


def run(file, ids, steps, vocab):
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path = str(file)
    p.n_ctx, p.n_parallel, p.n_gpu_layers, p.warmup = 256, 1, 0, False
    p.cpuparams.n_threads = 1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    answer = xllamacpp.Server(p).handle_completions(
        {"prompt": [int(i) for i in ids], "max_tokens": steps, "temperature": 0, "logprobs": vocab,
         "cache_prompt": False})
    rows = np.full((steps, vocab), np.nan)
    chosen = []
    for i, step in enumerate(answer["choices"][0]["logprobs"]["content"]):
        chosen.append(step["id"])
        for entry in step["top_logprobs"]:
            rows[i, entry["id"]] = entry["logprob"]
    return chosen, rows


def check(golden, file):
    expected = golden / file.stem.split("@")[0] / "expected.safetensors"
    ids, greedy = tensor(expected, "input_ids"), tensor(expected, "greedy_ids")
    logits = tensor(expected, "greedy_logits").astype(np.float64)
    chosen, rows = run(file, ids, len(greedy), logits.shape[1])
    same = 0
    while same < min(len(chosen), len(greedy)) and chosen[same] == greedy[same]:
        same += 1
    rows_to = min(same + 1, len(chosen), len(greedy))
    want = logits - logits.max(-1, keepdims=True)
    want -= np.log(np.exp(want).sum(-1, keepdims=True))
    off = np.nanmax(np.abs(rows[:rows_to] - want[:rows_to])) / np.ptp(logits)
    print(f"{file.stem}: {off:.1e} of the range over {rows_to} rows, ids equal: {same}/{len(greedy)}")


def main():
    golden, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if sys.argv[3:4] == ["--one"]:
        return check(golden, folder)
    for file in sorted(folder.glob("*.gguf")):
        if sys.argv[3:] and file.stem not in sys.argv[3:]:
            continue
        done = subprocess.run([sys.executable, __file__, golden, file, "--one"],
                              capture_output=True, text=True)
        said = done.stdout.strip().splitlines()
        why = [l for l in done.stderr.splitlines() if "error" in l.lower()] + [done.stderr[-300:]]
        print(said[-1] if done.returncode == 0 and said else f"{file.stem}: failed: {why[0]}", flush=True)


if __name__ == "__main__":
    main()
