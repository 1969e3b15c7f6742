#!/usr/bin/env python3
"""Counts the waits of the host for a device per training step, by layout, on interpreted GPUs.

usage: waits.py CLEAVE [--nccl] [--only WORD]

A call counts also if the work is already complete. Stream waits (cudaStreamSynchronize): the norm's, and those of layouts with more. Event
waits (cudaEventSynchronize): one per micro-batch, because its inputs must have been read before the next ones. Threads other than the
launching one, such as those of host updates, wait for words in memory and do not count.
"""
import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

CALLS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
COMMON = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
ON_HOST = {"offload_update": "host"}  # a measurement would change the number of calls
# name: ranks, additions to the configuration COMMON, waits of a rank for streams and events per step
LAYOUTS = {
    "one rank": (1, {}, 1, 2),
    "one rank, no clipping": (1, {"gradient_clipping": 0.0}, 1, 2),
    "one rank, fp16": (1, {"fp16": {"enabled": True, "loss_scale": 64}}, 1, 2),
    "stage 1": (2, {"zero_optimization": {"stage": 1}}, 1, 2),
    "stage 2, overlapped": (2, {"zero_optimization": {"stage": 2, "overlap_comm": True}}, 1, 2),
    "stage 3": (2, {"zero_optimization": {"stage": 3}}, 1, 2),
    "exact sums": (2, {"cleave": {"exact_sums": True}}, 1, 2),
    "cut layers": (2, {"tensor_parallel": {"autotp_size": 2}}, 2, 2),
    "sequence ranks": (2, {"sequence_parallel_size": 2}, 1, 2),
    "two stages": (2, {"pipeline": {"stages": 2, "schedule": "1f1b"}}, 1, 2),
    "offload": (1, {"cleave": ON_HOST, "zero_optimization": {"stage": 2, **OFFLOAD}}, 3, 2),
    "stage 3, offload": (2, {"cleave": ON_HOST, "zero_optimization": {"stage": 3, **OFFLOAD}}, 3, 2),
}


def counts(cleave, folder, name, steps, transport):
    """Returns the ranks' numbers of calls of each function in CALLS for a training of `steps` steps."""
    ranks, beside, *_ = LAYOUTS[name]
    config = {**COMMON, **beside}
    (folder / "ds_config.json").write_text(json.dumps(config))
    (folder / "corpus.txt").write_text("Who waits for a device says what for. " * 500)
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    command = [cleave, "launch", "-n", str(ranks), "--", "train", "--deepspeed_config", folder / "ds_config.json", "--model", "llama-tiny",
               "--data", folder / "corpus.txt", "--seq_len", "32", "--steps", str(steps), "--device", "cuda", "--gpu_transport", transport]
    environment = {**os.environ, "CUDA_INTERPRETER_GPUS": str(ranks), "CUDA_INTERPRETER_CALLS": str(calls), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"{name}: the training ends with {done.returncode}:\n{done.stdout[-3000:]}")
    found = collections.Counter()
    for line in calls.read_text().splitlines():
        _, function, count = line.split()
        found[function] += int(count)
    return {function: found[function] for function in CALLS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cleave", type=pathlib.Path)
    parser.add_argument("--nccl", action="store_true", help="over the stand-in for NCCL, too")
    parser.add_argument("--only", default="", help="layouts with this text in their name")
    options = parser.parse_args()
    wrong = tried = 0
    for name, (ranks, _, streams, events) in LAYOUTS.items():
        for transport in ("ipc", "nccl") if options.nccl and ranks > 1 else ("ipc",):
            if options.only not in name:
                continue
            with tempfile.TemporaryDirectory(prefix="cleave waits ") as kept:
                few, many = (counts(options.cleave, pathlib.Path(kept), name, steps, transport) for steps in (2, 4))
            got = [(many[f] - few[f]) / 2 / ranks for f in CALLS]
            tried += 1
            wrong += got != [streams, events, 0, 0]
            print(f"{name}, {transport}: {got[0]:g} for streams, {got[1]:g} for events, {got[2] + got[3]:g} for a device"
                  f"{'' if got == [streams, events, 0, 0] else f' WRONG: wanted {streams}, {events}, 0'}", flush=True)
    print(f"{tried - wrong} of {tried} layouts wait as often as they are said to")
    sys.exit(0 if tried and not wrong else 1)


if __name__ == "__main__":
    main()
