#!/usr/bin/env python3
"""Compares the memory of one rank of GPT-2 124M (bf16, 2 ranks, one sequence each): Cleave's plan and measured resident memory, and
DeepSpeed's estimator and measured resident memory, on the same ds_config. Prints a Markdown table.

  PATH=VENV/bin:$PATH VENV/bin/python benchmarks/memory.py      VENV has torch, transformers and deepspeed
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import random_tokens
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as estimate3
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as estimate2

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLEAVE = str(ROOT / "build/release/bin/cleave")
SEQ, MIB = 256, 1 << 20
PARAMS, LARGEST = 124439808, 50257 * 768
STATES = {"weights", "gradients", "master", "optimizer_state"}
CPU = {"device": "cpu", "pin_memory": True}
LAYOUTS = {
    "stage 1": {"stage": 1},
    "stage 2": {"stage": 2},
    "stage 2, optimizer in host memory": {"stage": 2, "offload_optimizer": CPU},
    "stage 3": {"stage": 3},
    "stage 3, optimizer and parameters in host memory": {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU},
}


def estimate(zero):
    offload, params = "offload_optimizer" in zero, "offload_param" in zero
    if zero["stage"] == 1:
        return None
    if zero["stage"] == 2:
        host, device = estimate2(PARAMS, num_gpus_per_node=2, cpu_offload=offload)
    else:
        host, device, _ = estimate3(PARAMS, LARGEST, num_gpus_per_node=2, cpu_offload=offload, cpu_offload_params=params)
    return device + host / 2  # host memory is per node


def run_cleave(path, data):
    shape = ["--deepspeed_config", path, "--model", "gpt2", "--seq_len", str(SEQ)]
    plan = json.loads(subprocess.run([CLEAVE, "plan", *shape, "--world_size", "2", "--vocab", "50257", "--json"], check=True,
                                     capture_output=True, text=True).stdout)
    tables = [rank["memory"] for rank in plan["ranks"]]
    planned = max(sum(sum(kind.values()) for kind in table.values()) for table in tables)
    states = max(sum(b for kind in table.values() for c, b in kind.items() if c in STATES) for table in tables)
    # The launcher waits for its ranks, so the peak resident memory of its children is that of a rank.
    script = "import resource, subprocess, sys; c = subprocess.run(sys.argv[1:], stdout=2).returncode; " \
             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(c)"
    train = [CLEAVE, "launch", "-n", "2", "--", "train", *shape, "--data", data, "--steps", "2"]
    peak = int(subprocess.run([sys.executable, "-c", script, *train], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True).stdout) * 1024
    return states, planned, peak


def run_deepspeed(path):
    out = subprocess.run(["deepspeed", "--num_gpus", "2", str(ROOT / "benchmarks/memory_peer.py"), "--deepspeed_config", path, "--seq",
                          str(SEQ)], env={**os.environ, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True)
    ranks = [json.loads(m) for m in re.findall(r'\{"peer".*?\}', out.stdout)]
    if len(ranks) != 2:
        sys.exit(out.stdout[-2000:] + out.stderr[-2000:])
    return ranks[0]["peer"], max(r["ready"] - r["before"] for r in ranks), max(r["peak"] - r["before"] for r in ranks)


with tempfile.TemporaryDirectory() as folder:
    data = os.path.join(folder, "tokens.bin")
    random_tokens.write(data, 20000)
    rows = []
    for name, zero in LAYOUTS.items():
        path = os.path.join(folder, "ds_config.json")
        with open(path, "w") as f:
            json.dump({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": zero}, f)
        states, planned, peak = run_cleave(path, data)
        peer, ready, peer_peak = run_deepspeed(path)
        guess = estimate(zero)
        rows.append([name, *(f"{v / MIB:,.0f}" if v else "none" for v in (states, planned, peak, guess, ready, peer_peak))])
        print(rows[-1], file=sys.stderr)
head = ["MiB a rank", "our plan, states", "our plan, all", "our resident set", "its estimator, states", "its growth in `initialize`",
        "its growth in two steps"]
print(peer)
print("|", " | ".join(head), "|")
print("|", " | ".join(["---"] * len(head)), "|")
for row in rows:
    print("|", " | ".join(row), "|")
