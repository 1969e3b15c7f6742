"""Cases of profile_test.py for ranks; each prints lines, and returns JSON."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from typing import Any

import cleave as deepspeed
import models
import monitor_cases
import pipeline_cases
import torch
from engine_cases import config
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS = 256, 128
FORWARD_S, BACKWARD_S = 0.02, 0.03


class _Slow(torch.autograd.Function):
    """Takes FORWARD_S and BACKWARD_S."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(BACKWARD_S)
        return gradient


class Slow(models.Mlp):
    """A module with a known minimum time of its passes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(_Slow.apply(x.requires_grad_()))


class Tall(nn.Module):
    """Two blocks of a matrix product each, and one in the module itself."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self._recomputes = recomputes
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2)])
        self.last = nn.Parameter(torch.eye(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self._recomputes else block(x)
        return (x @ self.last).square().mean()


@contextlib.contextmanager
def _printed() -> Iterator[list[str]]:
    out, lines = io.StringIO(), list[str]()
    with contextlib.redirect_stdout(out):
        yield lines
    lines.extend(out.getvalue().splitlines())


def _passes(engine: Any, step: int, own: bool) -> None:
    for micro in range(engine.gradient_accumulation_steps()):
        loss = models.loss(engine, models.batch(step, micro, engine.global_rank))
        if own:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()


def timed(stage: int, own: bool, folder: str) -> dict[str, Any]:
    """Trains four steps with times; own: the script calls the backward. Returns the printed lines and the seconds of each step."""
    writes = {"csv_monitor": {"enabled": True, "output_path": folder, "job_name": "job"}}
    made = config(stage, wall_clock_breakdown=True, steps_per_print=2, **writes)
    engine = deepspeed.initialize(model=models.seeded(Slow), config=made)[0]
    seconds = []
    with _printed() as lines:
        for step in range(4):
            began = time.perf_counter()
            _passes(engine, step, own)
            seconds.append(time.perf_counter() - began)
            with torch.no_grad():
                engine(models.batch(step, 0, 0)[0])  # counts in no step
    engine.destroy()
    return {"lines": lines, "seconds": seconds}


def profiled(section: dict[str, Any], own: bool = False, stage: int = 0, recomputes: bool = False) -> list[str]:
    """Trains three steps of a module with a profile; returns the printed lines."""
    made = config(stage, gradient_accumulation_steps=2, flops_profiler={"enabled": True, **section})
    engine = deepspeed.initialize(model=models.seeded(Tall, 0, recomputes), config=made)[0]
    with _printed() as lines:
        for step in range(3):
            for _ in range(2):
                torch.manual_seed(step)
                loss = engine(torch.randn(ROWS, WIDTH))
                if own:
                    loss.backward()
                else:
                    engine.backward(loss)
                engine.step()
    return lines


def weights(section: dict[str, Any]) -> list[float]:
    """Returns the losses of a small module with or without a profile."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(3, **section))[0]
    losses = []
    for step in range(3):
        _passes(engine, step, False)
        losses.append(engine.last_result.loss)
    return losses


def logged(stage: int, section: dict[str, Any]) -> dict[str, Any]:
    """Trains two steps with a log of collectives. Returns the lines of the steps, the table so far and the number of parameters."""
    made = config(stage, comms_logger={"enabled": True, **section}, gradient_clipping=0.0, gradient_accumulation_steps=1)
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
    with _printed() as lines:
        for step in range(2):
            _passes(engine, step, False)
    with _printed() as table:
        deepspeed.comm.log_summary()
    with _printed() as end:
        engine.destroy()
    return {"lines": lines, "table": table, "end": end, "params": sum(p.numel() for p in models.Mlp().parameters())}


def pipeline() -> list[str]:
    """Trains a pipeline with times and a profile."""
    engine = pipeline_cases.made(2, 1, wall_clock_breakdown=True, steps_per_print=1, flops_profiler={"enabled": True})
    with _printed() as lines:
        pipeline_cases.trained(engine, 2)
    return lines


def native() -> list[str]:
    """Trains a model that the engine computes with times and a profile."""
    with _printed() as lines:
        monitor_cases.native("", wall_clock_breakdown=True, steps_per_print=1, flops_profiler={"enabled": True})
    return lines


def unfinished() -> None:
    """Trains without a call of destroy; the rest is printed at the end."""
    more = {"wall_clock_breakdown": True, "steps_per_print": 4, "comms_logger": {}}
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(1, **more))[0]
    _passes(engine, 0, False)
