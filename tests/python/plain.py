"""A plain torch loop over all samples of all ranks, the reference for engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Batch = tuple[torch.Tensor, ...]
Loss = Callable[[torch.nn.Module, Batch], torch.Tensor]


def train(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Callable[[int, int, int], Batch],
    loss: Loss,
    *,
    steps: int,
    micros: int,
    ranks: int,
    clipping: float = 0.0,
    scheduler: Any = None,
) -> list[tuple[float, float]]:
    """Returns (loss, norm before clipping) of each step; batches(step, micro, rank)."""
    out = []
    for step in range(steps):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p)  # unused parameters have gradient zero, as in DeepSpeed
        total = 0.0
        for micro in range(micros):
            for rank in range(ranks):
                value = loss(module, batches(step, micro, rank)) / (micros * ranks)
                value.backward()
                total += value.item()
        trained = [p for p in module.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(trained, clipping if clipping > 0 else float("inf")).item()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        out.append((total, norm))
    return out


def apart(engine: Any, module: torch.nn.Module) -> float:
    """The largest distance of an engine's parameters from a module's. Collective."""
    return max((engine.parameters_of(name) - p.detach()).abs().max().item() for name, p in module.named_parameters())


def said_of(call: Callable[[], Any]) -> str:
    """The error of a call."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def first_step(
    module: torch.nn.Module, batches: Callable[[int, int, int], Batch], loss: Loss, *, micros: int, ranks: int
) -> tuple[float, float]:
    """Returns (loss, norm) of the first step, with passes in the module's type and gradient sums in fp64."""
    total, sums = 0.0, [torch.zeros(p.shape, dtype=torch.float64) for p in module.parameters()]
    for micro in range(micros):
        for rank in range(ranks):
            value = loss(module, batches(0, micro, rank))
            gradients = torch.autograd.grad(value, list(module.parameters()), torch.tensor(1024.0))
            for s, g in zip(sums, gradients, strict=True):
                s += g.double() / (1024 * micros * ranks)
            total += value.item() / (micros * ranks)
    return total, sum(s.square().sum() for s in sums).sqrt().item()
