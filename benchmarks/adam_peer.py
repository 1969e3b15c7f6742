#!/usr/bin/env python3
"""AdamW on the CPU in PyTorch and DeepSpeed: fp32 state, bf16 gradients as input and a bf16 copy as output, as in an offloaded step.
`kernels_bench --benchmark_filter=adamw/100M/bf16_copy` does the same in one pass.

    for i in 1 2 3; do build/release/bin/kernels_bench --benchmark_filter=adamw; DS_ACCELERATOR=cpu benchmarks/adam_peer.py; done

Prints the median time of the update alone and of all three passes.
"""
import argparse
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--params", type=int, default=100_000_000)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--repeat", type=int, default=7)
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import torch

torch.set_num_threads(args.threads)


def measure(name, make):
    master = torch.nn.Parameter(torch.randn(args.params))
    master.grad = torch.empty(args.params)
    gradient = torch.randn(args.params, dtype=torch.bfloat16)
    copy = torch.empty(args.params, dtype=torch.bfloat16)
    optimizer = make([master])
    update, whole = [], []
    for _ in range(args.repeat + 2):
        begin = time.perf_counter()
        master.grad.copy_(gradient)
        before = time.perf_counter()
        optimizer.step()
        update.append(time.perf_counter() - before)
        copy.copy_(master.data)
        whole.append(time.perf_counter() - begin)
    ms = [1e3 * statistics.median(times[2:]) for times in (update, whole)]
    print(f"{name:24} update {ms[0]:6.1f} ms   with bf16 gradients and copy {ms[1]:6.1f} ms", flush=True)


measure("PyTorch fused AdamW", lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True))
try:
    from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError:
    print("DeepSpeed is not installed")
else:
    measure("DeepSpeed CPUAdam", lambda p: DeepSpeedCPUAdam(p, lr=1e-3, adamw_mode=True))
