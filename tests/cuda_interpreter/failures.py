#!/usr/bin/env python3
"""Lets calls of the CUDA runtime, cuBLASLt and NCCL fail in a training on two interpreted GPUs, one call per training, and checks its end.

usage: failures.py CLEAVE [--only WORD] [--sample N --seed S]

Each function that a training calls fails on one rank, once at its first call and once in the middle of the steps. The training must
continue with the losses of a run without failure, or every rank must end in time, with an exit code and a message that names the call or
the library's error. No files may remain in /dev/shm. Prints a line for each other case, and the share of correct cases, by layout and in
total.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

COMMON = {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "gradient_clipping": 1.0}
LAYOUTS = {  # name: transport, registration of buffers, and additions to the configuration COMMON
    "ipc": ("ipc", "off", {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}),
    "pipe": ("nccl", "off", {"pipeline": {"stages": 2, "schedule": "1f1b"}}),
    "nccl": ("nccl", "on", {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}),
}
STEPS, LIMIT = 2, 90
# Documented errors of functions, by the start of their name; the first match counts.
ERRORS = (
    ("cudaMalloc", 2), ("cudaHostAlloc", 2), ("cudaHostRegister", 2), ("cudaStreamCreate", 2), ("cudaEventCreate", 2), ("cudaGraph", 2),
    ("cudaIpcOpen", 205), ("cudaLaunch", 719), ("__cudaLaunch", 719), ("cudaSetDevice", 101), ("cudaGetDeviceCount", 100),
    ("cudaGetDevice", 101), ("cuda", 1), ("cuStream", 1), ("cublasLtMatmulAlgo", 15), ("cublasLtMatmulDescCreate", 3),
    ("cublasLtCreate", 1), ("cublasLtMatmul", 13), ("cublas", 7), ("ncclCommInit", 2), ("ncclGetUniqueId", 2), ("ncclMem", 1), ("nccl", 3),
)


class Training:
    def __init__(self, cleave, layout):
        self.cleave, (self.route, self.registers, beside) = cleave, LAYOUTS[layout]
        self.kept = tempfile.TemporaryDirectory(prefix="cleave failures ")  # during the life of this object
        self.folder = pathlib.Path(self.kept.name)
        (self.folder / "ds_config.json").write_text(json.dumps({**COMMON, **beside}))
        (self.folder / "corpus.txt").write_text("A failed call is reported, and no rank waits for it. " * 400)

    def run(self, steps, **interpreter):
        """Returns the exit code (None if it did not end), the output, and the losses."""
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        command = [self.cleave, "launch", "-n", "2", "--", "train", "--deepspeed_config", self.folder / "ds_config.json",
                   "--model", "llama-tiny", "--data", self.folder / "corpus.txt", "--seq_len", "32", "--steps", str(steps),
                   "--device", "cuda", "--gpu_transport", self.route, "--metrics", metrics]
        environment = {**os.environ, "CUDA_INTERPRETER_GPUS": "2", "CUDA_INTERPRETER_DEADLOCK_S": "60", "OMP_NUM_THREADS": "1",
                       "CLEAVE_NCCL_REGISTER": self.registers, **{"CUDA_INTERPRETER_" + name: value for name, value in interpreter.items()}}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                                   start_new_session=True)
        try:
            said = process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0], []
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        return process.returncode, said, [line["loss"] for line in lines if "loss" in line and "event" not in line]

    def counts(self, steps):
        """Returns the number of calls of each function on rank 1, or on the rank with the most."""
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        code, said, losses = self.run(steps, CALLS=str(calls))
        if code != 0:
            sys.exit(f"the training fails without a failure:\n{said[-3000:]}")
        most = collections.Counter()
        for line in calls.read_text().splitlines():
            _, name, count = line.split()
            most[name] = max(most[name], int(count))
        return most, losses


def problem(training, case, want):
    """Returns why the training did not end correctly, "" if it did, and None if no rank calls the function that often."""
    function, number, error = case
    shared = set(os.listdir("/dev/shm"))
    for rank in (1, 0):
        code, said, losses = training.run(STEPS, FAIL=f"{function}:{number}:{error}:{rank}")
        if f"of {function} fails with" in said:
            break
    else:
        return None
    if code is None:
        return f"did not end within {LIMIT} s"
    left = {name for name in set(os.listdir("/dev/shm")) - shared if re.search("cleave|nccl", name)}  # other jobs may use this machine
    if left:
        return f"leaves {', '.join(sorted(left))} in /dev/shm"
    if code == 0:
        return "" if same(losses, want, function) else f"continues with other losses (got {losses}, expected {want})"
    if not 1 <= code < 126:
        return f"ends with {code}"
    named = re.sub("WithFlags|WithPriority|ByVersion|Config$|Async$|32$|ExC$|^__", "", function)
    if not any(named in line or "error" in line.lower() for line in said.splitlines() if "as it was told" not in line):
        return "ends without naming the call"
    return ""


def same(losses, want, function):
    """Compares losses; without one product of the library, another one may add in another order."""
    near = 1e-4 if function.startswith("cublas") else 0
    return len(losses) == len(want) and all(math.isclose(a, b, rel_tol=near) for a, b in zip(losses, want))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cleave", type=pathlib.Path)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    parser.add_argument("--sample", type=int, help="number of cases")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    right, tried, begin, known = collections.Counter(), collections.Counter(), time.monotonic(), set()
    trainings, cases, losses = {}, [], {}
    for layout in LAYOUTS:
        trainings[layout] = Training(options.cleave, layout)
        before, _ = trainings[layout].counts(0)
        after, losses[layout] = trainings[layout].counts(STEPS)
        for function in sorted(after):
            error = next(code for prefix, code in ERRORS if function.startswith(prefix))
            numbers = {1} | ({(before[function] + after[function]) // 2} if after[function] > before[function] else set())
            cases += [(layout, (function, number, error)) for number in sorted(numbers)]
            known.add(function)
    cases = [c for c in cases if options.only in f"{c[0]} {c[1][0]}"]
    if options.sample:
        cases = random.Random(options.seed).sample(cases, min(options.sample, len(cases)))
    for layout, case in cases:
        why = problem(trainings[layout], case, losses[layout])
        if why is None:
            continue
        tried[layout] += 1
        right[layout] += not why
        if why:
            print(f"{layout}: call {case[1]} of {case[0]} fails with {case[2]}: {why}", flush=True)
    for layout in tried:
        print(f"{layout}: {right[layout]} of {tried[layout]}")
    ended, cases = right.total(), tried.total()
    print(f"{ended} of {cases} failures of {len(known)} functions end as they should ({100 * ended / max(1, cases):.1f} %), "
          f"{time.monotonic() - begin:.0f} s")
    sys.exit(0 if ended == cases > 0 else 1)


if __name__ == "__main__":
    main()
