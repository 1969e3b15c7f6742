#!/usr/bin/env python3
"""Compares steps that `cleave plan` predicts from the `cleave bench` report of this machine with measured steps.

    benchmarks/predicted_steps.py [--report FILE] [--steps 4] [--only WORD]

Without --report, the script first measures the machine (cleave bench matmul kernels optimizer comm step). It prints a table of twelve
configurations: the predicted time of a step, the median and the fastest of --steps measured ones after two others, and the ratio of the
prediction to both. The prediction assumes no other load; if the fastest step is far from the median, there was other load.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA = {"model_type": "llama", "vocab_size": 50257, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
         "tie_word_embeddings": False}
SMALL = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 256, "n_embd": 128, "n_layer": 4, "n_head": 4,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
# Name, ranks, model, tokens per sample, and the keys of the ds_config in addition to an optimizer.
CASES = [
    ("GPT-2 124M, bf16", 1, "gpt2", 1024, {}),
    ("GPT-2 124M, fp32", 1, "gpt2", 1024, {"bf16": {"enabled": False}}),
    ("the same, 4 x 256 tokens", 1, "gpt2", 256, {"bf16": {"enabled": False}, "train_micro_batch_size_per_gpu": 4}),
    ("bf16, 4 micro-batches of 512", 1, "gpt2", 512, {"gradient_accumulation_steps": 4}),
    ("bf16, blocks recomputed", 1, "gpt2", 1024, {"activation_checkpointing": {"number_checkpoints": 12}}),
    ("GPT-2 350M, fp32, 512 tokens", 1, "gpt2-medium", 512, {"bf16": {"enabled": False}}),
    ("2 ranks, ZeRO-2, bf16", 2, "gpt2", 1024, {"zero_optimization": {"stage": 2}}),
    ("2 ranks, ZeRO-3, fp32, 512 tokens", 2, "gpt2", 512, {"bf16": {"enabled": False}, "zero_optimization": {"stage": 3}}),
    ("pipe 2, 4 micro-batches of 512", 2, "gpt2", 512, {"gradient_accumulation_steps": 4, "pipeline": {"stages": 2}}),
    ("tensor 2, bf16", 2, "gpt2", 1024, {"tensor_parallel": {"autotp_size": 2}}),
    ("Llama 512 wide, 8 blocks, 2 x 512", 1, LLAMA, 512, {"train_micro_batch_size_per_gpu": 2}),
    ("GPT-2 128 wide, 4 blocks, 8 x 256", 1, SMALL, 256, {"train_micro_batch_size_per_gpu": 8}),
]


def cleave(*words):
    done = subprocess.run([ROOT / "build/release/bin/cleave", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"cleave {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def options(folder, model, seq, given):
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, **given}
    (folder / "ds.json").write_text(json.dumps(config))
    if isinstance(model, dict):
        (folder / "config.json").write_text(json.dumps(model))
        model = folder / "config.json"
    return ["--deepspeed_config", folder / "ds.json", "--model", model, "--seq_len", seq]


def measured(folder, ranks, shared, steps):
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
    cleave(*launch, "train", *shared, "--data", folder / "tokens.bin", "--steps", steps + 2, "--metrics", metrics)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    times = [line["step_ms"] / 1e3 for line in lines if "step_ms" in line][2:]
    return statistics.median(times), min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", default="", help="configurations with this in their name")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        subprocess.run([sys.executable, ROOT / "benchmarks/random_tokens.py", folder / "tokens.bin"], check=True)
        if not args.report:
            args.report = folder / "report.json"
            args.report.write_text(cleave("bench", "matmul", "kernels", "optimizer", "comm", "step", "--ranks", 2, "--json"))
        cpu = json.loads(args.report.read_text())["cpu"]
        print(f"{cpu}, {os.cpu_count()} cores\n\n| | predicted, s | measured, s | ratio | fastest, s | ratio |\n{'|---' * 6}|", flush=True)
        ratios = []
        for name, ranks, model, seq, given in CASES:
            if args.only not in name:
                continue
            shared = options(folder, model, seq, given)
            plan = json.loads(cleave("plan", *shared, "--world_size", ranks, "--device", args.report, "--json"))
            predicted, real = plan["predicted"]["step_s"], measured(folder, ranks, shared, args.steps)
            ratios.append([predicted / seconds for seconds in real])
            cells = " | ".join(f"{seconds:.3f} | {ratio:.2f}" for seconds, ratio in zip(real, ratios[-1]))
            print(f"| {name} | {predicted:.3f} | {cells} |", flush=True)
        near = [sum(abs(ratio - 1) <= 0.1 for ratio in column) for column in zip(*ratios)]
        if near:
            print(f"\nwithin 10 % of {len(ratios)}: {near[0]} by the medians, {near[1]} by the fastest steps")


if __name__ == "__main__":
    main()
