"""Cases of plan_test.py for ranks, and the modules that it plans. Each case returns JSON."""

from __future__ import annotations

import functools
import itertools
import os
from typing import Any

import cleave as deepspeed
import engine_cases
import models
import pipeline_cases
import torch
from torch import nn
from torch.nn import functional as F

HOMES: list[dict[str, Any]] = [
    *({"stage": stage} for stage in range(4)),
    {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.4}},
    {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
]


def against_engines(name: str, precision: str) -> list[dict[str, Any]]:
    """Returns, by home, this rank's plan before there was an engine, and the engine's memory at rest and at its peak."""
    out = []
    momentum = {"type": "RMSprop", "params": {"momentum": 0.9}}
    for zero, optimizer in itertools.product(HOMES, [engine_cases.ADAMW, momentum] if precision == "fp32" else [engine_cases.ADAMW]):
        config = engine_cases.config(0, zero_optimization=dict(zero), optimizer=optimizer, zero_allow_untested_optimizer=True)
        config |= {precision: {"enabled": True}} if precision != "fp32" else {}
        planned = deepspeed.plan(getattr(models, name), config, int(os.environ["WORLD_SIZE"]))
        engine = deepspeed.initialize(model=models.seeded(getattr(models, name)), config=config)[0]
        engine_cases.steps(engine, 2)
        [mine] = [r["memory"] for r in planned.ranks if engine.global_rank in r["ranks"]]
        assert planned.parameters == engine._native.facts()["params"]
        out.append({"planned": mine, **{key: engine.memory()[key] for key in ("live", "peak")}, "home": zero})
        engine.destroy()
    return out


def pipelines_against_engines() -> list[dict[str, Any]]:
    """Does the same for pipelines of two and four stages on four ranks, which share their first and last layers."""
    out = []
    for stages, zero in itertools.product((2, 4), HOMES):
        config = pipeline_cases.config(0, zero_optimization=dict(zero))
        planned = deepspeed.plan(functools.partial(pipeline_cases.module, stages), config, 4)
        engine = deepspeed.initialize(model=pipeline_cases.module(stages), config=config)[0]
        pipeline_cases.trained(engine, 2)
        [mine] = [r["memory"] for r in planned.ranks if engine.global_rank in r["ranks"]]
        assert planned.parameters == engine._native.facts()["params"] and len(planned.ranks) >= stages
        out.append({"planned": mine, **{key: engine.memory()[key] for key in ("live", "peak")}, "home": [stages, zero]})
        engine.destroy()
    return out


class TooLarge(nn.Module):
    """A matrix of 4 TB that takes four bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1).expand(1_000_000, 1_000_000))


def too_large() -> None:
    """Raises an uncaught OutOfMemory."""
    deepspeed.initialize(model=TooLarge(), config=engine_cases.config(1))


def make_mlp() -> nn.Module:
    """A module for the command line."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def make_stages() -> nn.Module:
    """A pipeline of two stages for the command line."""
    return pipeline_cases.module(2)


def loss(module: nn.Module) -> torch.Tensor:
    """Returns the loss of a micro-batch of five samples."""
    return F.mse_loss(module(torch.ones(5, 8)), torch.zeros(5, 4))
