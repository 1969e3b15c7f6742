#!/usr/bin/env python3
"""Compares validation losses of small models trained in bf16 and with FP8 products (cleave.fp8), from the same weights on the same data.

usage: benchmarks/fp8_loss.py CORPUS [--cleave build/release/bin/cleave] [--steps 400] [--seeds 3]

Prints a Markdown table: for each model the loss in bf16 and its spread over seeds, then the mean and largest difference to bf16 with the
same seed, for delayed scales and for row scales.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

MODELS = ("tiny", "llama-tiny", "qwen3-tiny")
VALIDATION_BYTES = 1 << 17
SCALINGS = ("off", "delayed", "row")


def validation_loss(arguments: argparse.Namespace, folder: pathlib.Path, model: str, scaling: str, seed: int) -> float:
    """Returns the final validation loss of a training on two ranks at ZeRO-2."""
    config, metrics = folder / "ds_config.json", folder / "metrics.jsonl"
    config.write_text(
        json.dumps(
            {
                "train_batch_size": 16,
                "bf16": {"enabled": True},
                "gradient_clipping": 1.0,
                "zero_optimization": {"stage": 2},
                "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
                "scheduler": {
                    "type": "WarmupCosineLR",
                    "params": {"total_num_steps": arguments.steps, "warmup_num_steps": arguments.steps // 10},
                },
                "cleave": {"fp8": {"scaling": scaling}},
            }
        )
    )
    command = [
        arguments.cleave,
        "launch",
        "-n",
        "2",
        "--",
        "train",
        "--deepspeed_config",
        config,
        "--model",
        model,
        "--data",
        folder / "train.txt",
    ]
    command += ["--eval_data", folder / "validation.txt", "--eval_interval", arguments.steps, "--seq_len", 128, "--steps", arguments.steps]
    command += ["--seed", seed, "--metrics", metrics]
    subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    losses = [line["validation_loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "validation_loss" in line]
    return float(losses[-1])


def main() -> None:
    """Prints the table, one row per finished model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--cleave", default="build/release/bin/cleave")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    print("| model | bf16 | spread over seeds | delayed, mean | largest | row, mean | largest |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        split = [
            arguments.cleave,
            "data",
            "split",
            arguments.corpus,
            "--train",
            folder / "train.txt",
            "--validation",
            folder / "validation.txt",
        ]
        subprocess.run([str(word) for word in split], check=True, capture_output=True)
        with open(folder / "validation.txt", "r+b") as validation:
            validation.truncate(VALIDATION_BYTES)
        for model in MODELS:
            of = {s: [validation_loss(arguments, folder, model, s, seed) for seed in range(1, arguments.seeds + 1)] for s in SCALINGS}
            row = [model, f"{statistics.mean(of['off']):.4f}", f"{max(of['off']) - min(of['off']):.4f}"]
            for scaling in SCALINGS[1:]:
                apart = [got - want for got, want in zip(of[scaling], of["off"], strict=True)]
                row += [f"{statistics.mean(apart):+.4f}", f"{max(map(abs, apart)):.4f}"]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
