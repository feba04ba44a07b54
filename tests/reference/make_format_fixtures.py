#!/usr/bin/env python3
"""Writes tests/data/format: quantized blocks with the values that the reference packages give them.

    pip install gguf "mlx[cpu]" numpy
    python tests/reference/make_format_fixtures.py tests/data/format

gguf_blocks.safetensors   <type>.blocks u8 [rows, bytes], <type>.values f32 [rows, cols]: rows of random
                          blocks, rows of quantized noise where the package can quantize, and edge rows
mlx_affine.safetensors    b<bits>g<group>.{weight,scales,biases,values}, and b<bits>g<group>.bf16.* with
                          bf16 scales (values computed from those scales widened to f32)
mlx_mxfp4.safetensors     weight u32, scales u8, values f32
small.gguf                every metadata type and several tensor types, by the package's writer
split-0000N-of-00003.gguf a split file, by the package's writer
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

COLS = 512
RANDOM_ROWS = 4


def write_safetensors(path, tensors):
    names = {"float32": "F32", "uint8": "U8", "uint32": "U32", "uint16": "BF16"}
    header, data, at = {}, [], 0
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": names[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(raw)],
        }
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


# Where the f16 values sit in a block, to give them sane sizes in the random rows.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
EDGE_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x3C00, 0xBC00, 0x0400]


def gguf_blocks(folder):
    import gguf
    from gguf import quants

    rng = np.random.default_rng(7)
    tensors = {}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        cols, size = gguf.GGML_QUANT_SIZES[kind]
        per_row = COLS // cols

        def blocks_with(d, fill):
            blocks = fill(per_row)
            for at in halves:
                blocks[:, at : at + 2] = d(per_row).view(np.uint8).reshape(per_row, 2)
            return blocks

        random = lambda n: rng.integers(0, 256, (n, size), dtype=np.uint8)
        rows = []
        for _ in range(RANDOM_ROWS):
            rows.append(blocks_with(lambda n: (rng.standard_normal(n) * 0.02).astype(np.float16), random))
        # Edge rows: zeros, ones, arbitrary bytes (NaN scales included), and each special scale.
        rows.append(np.zeros((per_row, size), np.uint8))
        rows.append(np.full((per_row, size), 255, np.uint8))
        rows.append(random(per_row))
        edge = lambda n: np.resize(np.array(EDGE_HALVES, np.uint16), n)
        rows.append(blocks_with(edge, random))
        rows.append(blocks_with(lambda n: np.full(n, 0x3C00, np.uint16), lambda n: np.full((n, size), 255, np.uint8)))
        rows.append(blocks_with(lambda n: np.full(n, 0xFBFF, np.uint16), lambda n: np.full((n, size), 255, np.uint8)))
        if name == "MXFP4":
            # 255 has no agreed meaning (see dequantize.cpp); the last rows walk over all other exponents.
            for i, row in enumerate(rows[-4:]):
                row[:, 0] = np.arange(per_row) * 4 + i
            rows[5][:, 0] = 254
            rows += [np.concatenate([np.full((per_row, 1), 255 - per_row, np.uint8) + np.arange(per_row, dtype=np.uint8)[:, None], random(per_row)[:, 1:]], axis=1)]
        noise = (rng.standard_normal((2, COLS)) * 0.05).astype(np.float32)
        noise[1, ::7] = 0
        try:
            quantized = quants.quantize(noise, kind).view(np.uint8).reshape(2, per_row, size)
            rows += list(quantized)
        except NotImplementedError:
            pass
        blocks = np.stack(rows).reshape(len(rows), per_row * size)
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks, kind)
        assert values.shape == (len(rows), COLS), values.shape
        tensors[f"{kind.name.lower().replace('_k', '_K')}.blocks"] = blocks
        tensors[f"{kind.name.lower().replace('_k', '_K')}.values"] = values.astype(np.float32)
    write_safetensors(folder / "gguf_blocks.safetensors", tensors)


def mlx_fixtures(folder):
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(11)
    rows, cols = 10, 256
    tensors = {}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            source = (rng.standard_normal((rows, cols)) * 0.05).astype(np.float32)
            source[1] = 0
            source[2, ::5] = 3.0
            w, s, b = mx.quantize(mx.array(source), group_size=group, bits=bits)
            # Random codes and scales too: quantize never makes some patterns.
            w, s, b = np.array(w), np.array(s), np.array(b)
            w[4:8] = rng.integers(0, 1 << 32, w[4:8].shape, dtype=np.uint32)
            w[8] = 0xFFFFFFFF
            s[5] = rng.standard_normal(s[5].shape) * 1e-39
            s[6] = -s[6]
            s[7], b[7] = 3e38, -3e38
            values = mx.dequantize(mx.array(w), mx.array(s), mx.array(b), group_size=group, bits=bits)
            key = f"b{bits}g{group}"
            tensors |= {f"{key}.weight": w, f"{key}.scales": s, f"{key}.biases": b, f"{key}.values": np.array(values)}
            if group != 64:
                continue
            half = [mx.array(x).astype(mx.bfloat16) for x in (s, b)]
            wide = [x.astype(mx.float32) for x in half]
            values = mx.dequantize(mx.array(w), *wide, group_size=group, bits=bits)
            raw = [np.array(x.view(mx.uint16)) for x in half]
            key += ".bf16"
            tensors |= {f"{key}.weight": w, f"{key}.scales": raw[0], f"{key}.biases": raw[1], f"{key}.values": np.array(values)}
    write_safetensors(folder / "mlx_affine.safetensors", tensors)

    source = (rng.standard_normal((9, cols)) * 2).astype(np.float32)
    w, s = mx.quantize(mx.array(source), group_size=32, bits=4, mode="mxfp4")
    w, s = np.array(w), np.array(s)
    w[4:] = rng.integers(0, 1 << 32, w[4:].shape, dtype=np.uint32)
    s[5], s[6] = np.arange(8), np.arange(247, 255)
    values = mx.dequantize(mx.array(w), mx.array(s), group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
    write_safetensors(folder / "mlx_mxfp4.safetensors", {"weight": w, "scales": s, "values": np.array(values)})


def gguf_files(folder):
    import gguf

    rng = np.random.default_rng(13)
    writer = gguf.GGUFWriter(folder / "small.gguf", "llama")
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -100)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4000000000)
    writer.add_int32("test.i32", -2000000000)
    writer.add_uint64("test.u64", 1 << 60)
    writer.add_int64("test.i64", -(1 << 60))
    writer.add_float32("test.f32", 0.5)
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "h\u00e9llo")
    writer.add_array("test.strings", ["a", "", "\u65e5\u672c"])
    writer.add_array("test.ints", [1, -2, 3])
    writer.add_array("test.floats", [1.5, -2.5])
    writer.add_array("test.bools", [True, False, True])
    for kind in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q6_K, gguf.GGMLQuantizationType.MXFP4):
        cols, size = gguf.GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 256, (3, 256 // cols * size), dtype=np.uint8)
        writer.add_tensor(f"{kind.name.lower()}.weight", data, raw_dtype=kind)
    writer.add_tensor("norm.weight", np.arange(5, dtype=np.float32))
    writer.add_tensor("cube.weight", np.arange(24, dtype=np.float16).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    writer = gguf.GGUFWriter(folder / "split.gguf", "llama", split_max_tensors=2)
    writer.add_string("general.name", "split")
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((2, 8), i, np.float32))
    writer.write_header_to_file(folder / "split.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    gguf_blocks(out)
    mlx_fixtures(out)
    gguf_files(out)
