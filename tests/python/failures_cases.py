"""Hangs, slow ranks and weights that differ, for failures_test.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import cleave as deepspeed
import models
import torch


def _engine(stage: int, **own: Any) -> Any:
    module = models.seeded(models.Mlp)
    made = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, "cleave": own}
    return deepspeed.initialize(model=module, optimizer=torch.optim.AdamW(module.parameters(), lr=1e-2), config=made)[0]


def _step(engine: Any, number: int) -> None:
    engine.backward(models.loss(engine, models.batch(number, 0, engine.global_rank)))
    engine.step()


def hangs() -> None:
    """One rank hangs in its script."""
    engine = _engine(2, comm_timeout_s=3)
    _step(engine, 0)
    if engine.global_rank == 1:
        time.sleep(20)
    _step(engine, 1)


def leaves(code: int) -> None:
    """One rank ends its script while the other trains."""
    engine = _engine(2)
    _step(engine, 0)
    if engine.global_rank == 1:
        sys.exit(code)
    _step(engine, 1)


def records() -> str:
    """Both ranks get SIGQUIT and continue."""
    engine = _engine(1)
    _step(engine, 0)
    os.kill(os.getpid(), signal.SIGQUIT)
    _step(engine, 1)
    print("continues", flush=True)
    return ""


def is_slow() -> None:
    """One rank needs more time for its data than the other."""
    engine = _engine(2, straggler_share=0.5, straggler_steps=4)
    for number in range(8):
        if engine.global_rank == 1:
            time.sleep(0.2)
        _step(engine, number)


def drifts(policy: str) -> None:
    """A bit of a weight changes in the memory of one rank."""
    engine = _engine(0, replica_check_steps=3, replica_policy=policy)
    _step(engine, 0)
    if engine.global_rank == 1:
        weight = next(engine.module.parameters())
        with torch.no_grad():
            weight.view(-1)[3].neg_()
    for number in range(1, 9):
        _step(engine, number)
    weights = next(engine.module.parameters()).detach().clone()
    sums = engine._job.sum([float(weights.double().sum()) if engine.global_rank == r else 0.0 for r in range(2)])
    print("equal" if sums[0] == sums[1] else "different", flush=True)
