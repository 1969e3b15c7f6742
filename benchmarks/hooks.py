#!/usr/bin/env python3
"""Measures the CPU time that hooks cost in a PyTorch script, on a model of tiny layers, which cost almost nothing themselves.

usage: cleave launch -n 2 -- python benchmarks/hooks.py [--perf] [--compiled] [--blocks N] [--steps N]

Prints the CPU time of the main thread of rank 0 per step: of torch alone, and of an engine at ZeRO stages 0 and 3. --perf divides it by the
libraries that spend it, by samples of Linux perf: the interpreter with ctypes, torch, the engine, and the kernel, where ranks wait for each
other.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import cleave
import torch
from torch import nn

WIDTH = 8
FIRST = os.environ.get("RANK", "0") == "0"
LIBRARIES = {
    "libpython": "python",
    "python3": "python",
    "_ctypes": "python",
    "libffi": "python",
    "libtorch_python": "torch's bindings",
    "libtorch": "torch",
    "libc10": "torch",
    "kernel": "kernel",
    "libcleave": "engine",
}


class Block(nn.Module):
    """Eleven modules with ten parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(6))
        self.gelu, self.dropout = nn.GELU(), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        x = x + self.dropout(self.o(self.q(h) + self.k(h) + self.v(h)))
        return x + self.dropout(self.down(self.gelu(self.up(self.second(x)))))  # type: ignore[no-any-return]


def phases(steps: int, parts: list[Callable[[Any], Any]]) -> str:
    """Returns the median time of the forward, the backward and the update."""
    times: list[list[float]] = []
    for _ in range(steps):
        value, at = None, [time.thread_time()]
        for part in parts:
            value = part(value)
            at.append(time.thread_time())
        times.append([1e3 * (after - before) for before, after in itertools.pairwise(at)])
    medians = [statistics.median(each) for each in zip(*times[steps // 5 :], strict=True)]
    return ", ".join(f"{name} {ms:.2f}" for name, ms in zip(("forward", "backward", "step"), medians, strict=True))


def shares(steps: int, parts: list[Callable[[Any], Any]]) -> str:
    """Returns the mean time of a step by library."""
    phases(steps // 5, parts)
    with tempfile.NamedTemporaryFile() as file:
        command = ["perf", "record", "-e", "cpu-clock", "-F", "1000", "-o", file.name, "-t", str(threading.get_native_id())]
        perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) if FIRST else None
        time.sleep(1)
        began = time.thread_time()
        phases(steps, parts)
        ms = 1e3 * (time.thread_time() - began) / steps
        if perf is None:
            return ""
        perf.send_signal(signal.SIGINT)
        perf.wait()
        report = subprocess.run(["perf", "report", "-i", file.name, "--sort", "dso", "--stdio"], capture_output=True, text=True).stdout
    by_library: dict[str, float] = collections.defaultdict(float)
    for line in filter(None, map(str.strip, report.splitlines())):
        if not line.startswith("#"):
            percent, library = line.split()[:2]
            name = next((name for part, name in LIBRARIES.items() if part in library), "others")
            by_library[name] += ms * float(percent.rstrip("%")) / 100
    return f"{ms:.2f}: " + ", ".join(f"{name} {by_library[name]:.2f}" for name in dict.fromkeys([*LIBRARIES.values(), "others"]))


def main() -> None:
    """Measures torch alone and each stage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=13)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--compiled", action="store_true", help="compile each block, with backend aot_eager")
    parser.add_argument("--perf", action="store_true", help="divide the time by libraries")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure, x = (shares if options.perf else phases), torch.randn(2, WIDTH)

    def compiled(module: nn.Module) -> nn.Module:
        for block in module.children() if options.compiled else ():
            block.compile(backend="aot_eager")
        return module

    def report(what: str, parts: list[Callable[[Any], Any]]) -> None:
        line = measure(options.steps, parts)
        if FIRST:
            print(f"{what}: {line} ms", flush=True)

    alone = compiled(nn.Sequential(*(Block() for _ in range(options.blocks))))
    counts = f"{len(list(alone.modules()))} modules, {len(list(alone.parameters()))} parameters"
    report(f"torch alone, {counts}", [lambda _: alone(x).sum(), lambda loss: loss.backward(), lambda _: alone.zero_grad()])
    for stage in options.stages:
        zero = {"stage": stage, **({"stage3_param_persistence_threshold": 0} if stage == 3 else {})}
        optimizer = {"type": "AdamW", "params": {"lr": 1e-3}}
        config = {"train_micro_batch_size_per_gpu": 2, "optimizer": optimizer, "zero_optimization": zero}
        module = nn.Sequential(*(Block() for _ in range(options.blocks)))
        engine: Any = cleave.initialize(model=module, config=config)[0]
        compiled(module)
        report(f"stage {stage}", [lambda _, e=engine: e(x).sum(), engine.backward, lambda _, e=engine: e.step()])  # type: ignore[misc]
        engine.destroy()


if __name__ == "__main__":
    main()
