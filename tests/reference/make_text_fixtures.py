"""Writes the fixtures of tests/text: what the Python libraries make of a corpus of hard text.

    python3 -m venv .venv && .venv/bin/pip install tokenizers transformers jinja2
    .venv/bin/python tests/reference/make_text_fixtures.py

Everything is trained here from the texts below, so no download is needed. The rules of the
pre-tokenizers are written out as the families' published tokenizer.json files have them, apart from
the table in text-rs/src/pretokenizer.rs that they check.
"""

import json
import os
import pathlib
import random
import struct
import sys

os.environ["TZ"] = "UTC"
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from text_corpus import CORPUS, TRAINING  # noqa: E402
from text_templates import write_templates  # noqa: E402
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "data" / "text"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
          + TAIL)
O200K = (f"{LEAD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTIONS}?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL)
TEKKEN = (f"{LEAD}{UPPER}*{LOWER}+|{LEAD}{UPPER}+{LOWER}*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL)
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
             r" ?[\p{P}\p{S}]+[\r\n]*|" + TAIL]


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def bytes_(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
            "use_regex": use_regex}


# name of tokenizer.ggml.pre -> (pre-tokenizer steps, NFC first, ignore_merges, BOS by default)
FAMILIES = {
    "llama-bpe": ([split(LLAMA3), bytes_(False)], False, True, True),
    "qwen2": ([split(QWEN2), bytes_(False)], True, False, False),
    "deepseek-r1-qwen": ([split(QWEN2), bytes_(False)], False, False, False),
    "qwen35": ([split(QWEN35), bytes_(False)], True, False, False),
    "gpt-2": ([bytes_(True)], False, False, False),
    "olmo": ([bytes_(True)], True, False, False),
    "gpt-4o": ([split(O200K), bytes_(False)], False, False, False),
    "tekken": ([split(TEKKEN), bytes_(False)], False, True, True),
    "smollm": ([digits(True), bytes_(True)], False, False, False),
    "command-r": ([digits(True), bytes_(True)], True, False, False),
    "falcon": ([{"type": "Punctuation", "behavior": "Contiguous"}, bytes_(True), digits(False),
                split("[0-9][0-9][0-9]")], False, False, False),
    "bloom": ([split(" ?[^(\\s|[.,!?…。，、।۔،])]+"), bytes_(False)], False, False, False),
    "deepseek-v3": ([split(p) for p in DEEPSEEK3] + [bytes_(False)], False, False, False),
    "deepseek-coder": ([split(p) for p in ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]]
                       + [digits(True), bytes_(False)], False, False, False),
}

ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # control
USER_DEFINED = ["<tool_call>", "</tool_call>"]           # found in text, but not control


def added_token(content, special):
    return {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special}


def train_bytes():
    """Merges that cross words, digits and punctuation, so that every cut shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=2200, min_frequency=2, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  max_token_length=12)
    plain = [text for text in CORPUS if not any(t in text for t in ADDED + USER_DEFINED)]
    tokenizer.train_from_iterator(TRAINING + plain * 2, trainer)
    return json.loads(tokenizer.to_str())["model"]


def with_added(tokenizer_json):
    vocab = tokenizer_json["model"]["vocab"]
    size = len(vocab)
    tokenizer_json["added_tokens"] = []
    for i, content in enumerate(ADDED + USER_DEFINED):
        token = added_token(content, content in ADDED)
        assert content not in vocab
        token["id"] = size + i
        tokenizer_json["added_tokens"].append(token)
    return tokenizer_json


def bos_frame(token, token_id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}}}


def document(model, **parts):
    empty = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
             "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
    return {**empty, **parts, "model": model}


def expectations(tokenizer_json):
    """What the library makes of the corpus."""
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json, ensure_ascii=False))
    framed = tokenizer.encode("x").ids
    bare = tokenizer.encode("x", add_special_tokens=False).ids
    at = next(i for i in range(len(framed)) if framed[i:i + len(bare)] == bare)
    cases = []
    for text in CORPUS:
        case = {"ids": tokenizer.encode(text, add_special_tokens=False).ids}
        tokenizer.encode_special_tokens = True
        literal = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        if literal != case["ids"]:
            case["literal"] = literal
        for key, skip in (("skipped", True), ("decoded", False)):
            decoded = tokenizer.decode(case["ids"], skip_special_tokens=skip)
            if decoded != text:
                case[key] = decoded
        cases.append(case)
    return {"prefix": framed[:at], "suffix": framed[at + len(bare):], "cases": cases}


def byte_families():
    model = train_bytes()
    families = {}
    for name, (steps, nfc, ignore_merges, bos) in FAMILIES.items():
        tokenizer_json = with_added(document(
            {**model, "ignore_merges": ignore_merges},
            normalizer={"type": "NFC"} if nfc else None,
            pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
            decoder=bytes_(True) | {"add_prefix_space": True}))
        first = tokenizer_json["added_tokens"][0]
        if bos:
            tokenizer_json["post_processor"] = bos_frame(first["content"], first["id"])
        expected = expectations(tokenizer_json)
        for key in ("normalizer", "pre_tokenizer", "post_processor"):
            expected[key] = tokenizer_json[key]
        expected["ignore_merges"] = ignore_merges
        families[name] = expected
    base = with_added(document(model, decoder=bytes_(True) | {"add_prefix_space": True}))
    return {"tokenizer": base, "families": families}


def merges_from_scores(vocab, scores, skip):
    """As transformers' converters derive merges from a SentencePiece model."""
    merges = []
    for piece, score in scores.items():
        if piece in skip:
            continue
        local = []
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in skip or right in skip:
                continue
            if left in vocab and right in vocab:
                local.append((left, right, score))
        local.sort(key=lambda m: (vocab[m[0]], vocab[m[1]]))
        merges.extend(local)
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [[left, right] for left, right, _ in merges]


def train_sentencepiece():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=1300, min_frequency=2, show_progress=False,
                                  limit_alphabet=220, max_token_length=10)
    tokenizer.train_from_iterator(TRAINING + CORPUS, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    pieces = [left + right for left, right in learned["merges"]]
    pieces = list(dict.fromkeys(pieces))
    alphabet = [t for t in sorted(learned["vocab"], key=learned["vocab"].get) if len(t) == 1]
    order = (["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
             + pieces + [c for c in alphabet if c not in pieces])
    vocab = {piece: i for i, piece in enumerate(order)}
    scores = {p: 0.0 if i < 259 else -float(i - 259) for i, p in enumerate(order)}
    skip = set(order[:259])
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>",
             "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
             "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
             "merges": merges_from_scores(vocab, scores, skip)}
    return model, [scores[p] for p in order]


BLANK_DECODER = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                 {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
TO_BLANKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def sentencepiece():
    model, scores = train_sentencepiece()
    added = [{**added_token(t, True), "id": i} for i, t in enumerate(["<unk>", "<s>", "</s>"])]
    frame = bos_frame("<s>", 1)
    variants = {
        # Llama 2: a blank before every stretch of text
        "prefix": document(model, added_tokens=added, post_processor=frame,
                           normalizer={"type": "Sequence", "normalizers": [
                               {"type": "Prepend", "prepend": "▁"}, TO_BLANKS]},
                           decoder={"type": "Sequence", "decoders": BLANK_DECODER + [STRIP]}),
        # Gemma: none
        "no_prefix": document(model, added_tokens=added, post_processor=frame,
                              normalizer=TO_BLANKS,
                              decoder={"type": "Sequence", "decoders": BLANK_DECODER}),
        # Llama 2 without "legacy": Metaspace, a blank before the first word only
        "metaspace": document(model, added_tokens=added, post_processor=frame,
                              pre_tokenizer={"type": "Metaspace", "replacement": "▁",
                                             "prepend_scheme": "first", "split": False},
                              decoder={"type": "Sequence", "decoders": BLANK_DECODER + [STRIP]}),
    }
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {"tokenizer": variants["prefix"], "scores": scores,
            "variants": {name: expectations(v) | {part: v[part] for part in parts}
                         for name, v in variants.items()}}


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=700, show_progress=False, unk_token="<unk>",
                                      special_tokens=["<pad>", "</s>", "<unk>"])
    tokenizer.train_from_iterator(TRAINING + CORPUS, trainer)
    tokenizer_json = json.loads(tokenizer.to_str())
    as_f32 = lambda v: struct.unpack("f", struct.pack("f", v))[0]  # what a GGUF file can hold
    vocab = [[piece, as_f32(score)] for piece, score in tokenizer_json["model"]["vocab"]]
    tokenizer_json["model"]["vocab"] = vocab
    tokenizer_json["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
    tokenizer_json["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}
    return {"tokenizer": tokenizer_json, **expectations(tokenizer_json)}


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    (OUT / name).write_text(text + "\n", encoding="utf-8")
    print(f"{name}: {len(text) // 1024} KiB")


def main():
    random.seed(7)
    OUT.mkdir(parents=True, exist_ok=True)
    write("corpus.json", CORPUS)
    write("byte_bpe.json", byte_families())
    write("sentencepiece.json", sentencepiece())
    write("unigram.json", unigram())
    bundled = json.loads((ROOT / "models" / "tiny-moe-4bit" / "tokenizer.json").read_text())
    write("bundled.json", expectations(bundled))
    write("templates.json", write_templates())


if __name__ == "__main__":
    main()
