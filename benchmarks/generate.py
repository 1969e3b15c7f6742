#!/usr/bin/env python3
"""Compares tokens per second of cleave generate with a KV cache and with whole windows, on a model with random weights.

    benchmarks/generate.py build/release/bin/cleave [--window 512] [--rounds 5] [--types fp32,bf16] [--threads N]

Both ways run in turn, in one process each, on the same folder. A round is the time of the last tokens that fill the window: a run with many
tokens minus a run with few, so start, weights and prompt do not count. The result is the median of the rounds.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

import numpy as np

SIZES = {"gpt2": dict(n_layer=12, n_head=12, n_embd=768, vocab_size=50257)}


def write_model(folder, sizes, positions):
    """Writes GPT-2 with the names and shapes of transformers."""
    width, vocab = sizes["n_embd"], sizes["vocab_size"]
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "n_positions": positions, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True, **sizes}))
    shapes = {"transformer.wte.weight": (vocab, width), "transformer.wpe.weight": (positions, width)}
    for layer in range(sizes["n_layer"]):
        for name, shape in (("ln_1.weight", (width,)), ("ln_1.bias", (width,)), ("ln_2.weight", (width,)), ("ln_2.bias", (width,)),
                            ("attn.c_attn.weight", (width, 3 * width)), ("attn.c_attn.bias", (3 * width,)),
                            ("attn.c_proj.weight", (width, width)), ("attn.c_proj.bias", (width,)),
                            ("mlp.c_fc.weight", (width, 4 * width)), ("mlp.c_fc.bias", (4 * width,)),
                            ("mlp.c_proj.weight", (4 * width, width)), ("mlp.c_proj.bias", (width,))):
            shapes[f"transformer.h.{layer}.{name}"] = shape
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (width,)
    header, at, random = {}, 0, np.random.default_rng(1)
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            out.write((np.float32(0.02) * random.standard_normal(shape, np.float32) + np.float32("ln_" in name and "weight" in name)).tobytes())


def seconds(cleave, folder, config, window, prompt, tokens, args):
    run = subprocess.run([cleave, "generate", folder, "--tokenizer", "byte", "--deepspeed_config", config, "--seq_len", str(window), "--prompt",
                          prompt, "--tokens", str(tokens), "--temperature", "0", *args], capture_output=True, text=True, errors="replace")
    if run.returncode != 0:
        raise SystemExit(run.stderr)
    count, took = re.search(r"(\d+) tokens in ([\d.]+) s", run.stderr).groups()
    if int(count) != tokens:
        raise SystemExit(f"{count} tokens in place of {tokens}")
    return float(took)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--types", default="fp32,bf16")
    parser.add_argument("--model", default="gpt2", choices=SIZES)
    parser.add_argument("--threads", type=int, help="of both ways (default: the program's own choice)")
    args = parser.parse_args()
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    threads = [] if args.threads is None else ["--threads", str(args.threads)]
    print(f"CPU: {cpu.group(1) if cpu else 'unknown'}; {args.model}, window of {args.window}, {args.rounds} rounds, "
          f"threads: {args.threads or 'as many as the program takes'}")
    print("| type | whole windows, ms a token | kept, ms a token | times as fast | of the rounds |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "model"
        folder.mkdir()
        write_model(folder, SIZES[args.model], args.window)
        for kind in args.types.split(","):
            config = pathlib.Path(temporary) / f"{kind}.json"
            config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, **({} if kind == "fp32" else {kind: {"enabled": True}})}))
            many, few = 64, 4
            ways = {"whole": (few, ["--no_kv_cache"]), "kept": (many, [])}
            taken = {way: [] for way in ways}
            for _ in range(args.rounds):
                for way, (tokens, more) in ways.items():
                    prompt = "x" * (args.window - tokens)
                    long, short = (seconds(args.cleave, folder, config, args.window, prompt, n, [*more, *threads]) for n in (tokens, 1))
                    taken[way].append((long - short) / (tokens - 1))
            ratios = [w / k for w, k in zip(taken["whole"], taken["kept"])]
            whole, kept = (statistics.median(taken[way]) for way in ("whole", "kept"))
            print(f"| {kind} | {whole * 1e3:.1f} | {kept * 1e3:.2f} | {whole / kept:.1f} | {min(ratios):.1f} to {max(ratios):.1f} |", flush=True)


if __name__ == "__main__":
    main()
