"""Cases of not_finite_test.py: steps with a loss or gradients that are not finite; each returns JSON."""

from __future__ import annotations

from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from engine_cases import config, digest

BAD_STEP = 2


class OverflowingBackward(torch.autograd.Function):
    """The identity, with a gradient that is not finite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * float("inf")


class Broken(models.Mlp):
    """A model whose backward may overflow before its head."""

    overflows = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.layers(x)
        return self.head(OverflowingBackward.apply(inside) if self.overflows else inside)


def one_step(engine: Any, step: int, bad_micro: int = -1) -> None:
    for micro in range(engine.gradient_accumulation_steps()):
        loss = models.loss(engine, models.batch(step, micro, engine.global_rank))
        engine.backward(loss * float("nan") if micro == bad_micro and engine.global_rank == 1 else loss)
        engine.step()


def causes(stages: list[int], precision: str) -> dict[str, str]:
    """Returns the error of a step with each cause, by stage."""
    said = {}
    for stage in stages:
        for cause in ("loss", "gradient", "weight"):
            made = config(stage, **{precision: {"enabled": True}})
            engine = deepspeed.initialize(model=models.seeded(Broken), config=made)[0]
            one_step(engine, 0)
            if cause == "weight":
                value = engine.parameters_of("layers.3.weight")
                value[4, 7] = float("inf")
                engine.set_parameter("layers.3.weight", value)
            engine.module.overflows = cause == "gradient" and engine.global_rank == 0
            said[f"{stage} {cause}"] = plain.said_of(lambda engine=engine, cause=cause: one_step(engine, 1, 1 if cause == "loss" else -1))
            engine.destroy()
    return said


def skipped(stage: int, precision: str, limit: int) -> dict[str, Any]:
    """Trains with bad steps that are skipped; returns facts, and the digests with these steps and without them."""
    said: dict[str, Any] = {}
    for name in ("with", "without"):
        made = config(stage, cleave={"non_finite": "skip", "non_finite_limit": limit}, gradient_clipping=0.0)
        made[precision] = {"enabled": True}
        engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
        for step in range(5):
            if step == BAD_STEP and name == "without":
                continue
            one_step(engine, step, 0 if step == BAD_STEP else -1)
            if step == BAD_STEP:
                said |= {"applied": engine.was_step_applied(), "skipped": engine.skipped_steps, "steps": engine.global_steps}
        said[name] = digest(engine)
        if name == "with":
            for step in range(limit):
                one_step(engine, step, 0)
            said["limit"] = plain.said_of(lambda engine=engine: one_step(engine, 9, 0))
        engine.destroy()
    return said
