#!/usr/bin/env python3
"""Makes a model folder in the published format: make_model.py TEXT FOLDER

A small Llama with random weights (config.json, model.safetensors) and a byte-level BPE of 512 tokens learned from the text
(tokenizer.json). It replaces a published model on machines without a network, and uses only the Python standard library.
"""
import json
import pathlib
import random
import re
import struct
import sys
from collections import Counter

VOCAB, WIDTH, MLP, LAYERS, HEADS, KV_HEADS, POSITIONS = 512, 64, 160, 4, 4, 2, 256
END = "<|endoftext|>"
EXPRESSION = r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"


def byte_letters():
    """Returns the character of each byte in byte-level vocabularies: itself if it is printable, otherwise one from U+0100 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in seen}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + len(letters) - len(seen))
    return letters


def learn_merges(text, count):
    """Merges the most frequent pair of neighbors into a token, `count` times."""
    letters = byte_letters()
    words = Counter(re.findall(EXPRESSION, text))
    words = [([letters[b] for b in word.encode()], n) for word, n in words.items()]
    merges = []
    while len(merges) < count:
        pairs = Counter()
        for parts, n in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += n
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append((left, right))
        for parts, _ in words:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == (left, right):
                    parts[i:i + 2] = [left + right]
                i += 1
    return merges


def tokenizer(text):
    alphabet = sorted(byte_letters().values())
    merges = learn_merges(text, VOCAB - len(alphabet) - 1)
    tokens = [END, *alphabet, *(a + b for a, b in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": 0, "content": END, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                              "special": True}],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": EXPRESSION}, "behavior": "Isolated", "invert": False},
                {**byte_level, "use_regex": False}]},
            "post_processor": None, "decoder": {**byte_level, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [f"{a} {b}" for a, b in merges]}}


CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH,
          "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
          "max_position_embeddings": POSITIONS, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 0,
          "torch_dtype": "float32"}


def shapes():
    kv = WIDTH * KV_HEADS // HEADS
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (WIDTH,)
        for name, rows in (("q", WIDTH), ("k", kv), ("v", kv), ("o", WIDTH)):
            yield f"{layer}.self_attn.{name}_proj.weight", (rows, WIDTH)
        yield f"{layer}.post_attention_layernorm.weight", (WIDTH,)
        yield f"{layer}.mlp.gate_proj.weight", (MLP, WIDTH)
        yield f"{layer}.mlp.up_proj.weight", (MLP, WIDTH)
        yield f"{layer}.mlp.down_proj.weight", (WIDTH, MLP)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)


def safetensors():
    """Writes 8 bytes with the length of a JSON header, the header, and the values."""
    draw = random.Random(7)
    header, values = {}, bytearray()
    for name, shape in shapes():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [1.0] * count if len(shape) == 1 else [draw.gauss(0, 0.05) for _ in range(count)]
        begin = len(values)
        values += struct.pack(f"<{count}f", *numbers)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(values)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values


def main(text, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(pathlib.Path(text).read_text()[:200_000]), ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}) + "\n")
    (folder / "model.safetensors").write_bytes(safetensors())


if __name__ == "__main__":
    main(*sys.argv[1:])
