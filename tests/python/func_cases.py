"""Cases of modules_test.py for ranks: torch.func inside and around modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from chains import Chain, apart_from_torch, engine_of, mean, sample
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint


class Changed(Chain):
    """Adds a function of the layers and the input to the input."""

    def __init__(self, change: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.change(self.layers, x))


def of_weight_before(layers: Any, x: torch.Tensor) -> torch.Tensor:
    weight = layers[2].weight.t()
    return grad(lambda v: (v @ weight).pow(2).sum())(x)  # type: ignore[no-any-return]


def of_call(layers: Any, x: torch.Tensor) -> torch.Tensor:
    named = dict(layers[1].named_parameters())
    return grad(lambda p, v: torch.tanh(functional_call(layers[1], p, (v,))).sum(), argnums=1)(named, x)  # type: ignore[no-any-return]


KINDS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "jacrev": lambda layers, x: vmap(jacrev(lambda v: torch.tanh(layers[1](v))))(x).sum(1),
    "jacfwd": lambda layers, x: vmap(jacfwd(lambda v: torch.tanh(layers[1](v))))(x).sum(1),
    "hessian": lambda layers, x: vmap(hessian(lambda v: torch.tanh(layers[1](v)).sum()))(x).sum(1),
    "grad of a read weight": lambda layers, x: grad(lambda v: (v @ layers[2].weight).pow(2).sum())(x),
    "grad of a view of a weight": of_weight_before,
    "vjp": lambda layers, x: vjp(lambda v: torch.tanh(layers[0](v)), x)[1](torch.ones_like(x))[0],
    "jvp": lambda layers, x: jvp(lambda v: torch.tanh(layers[1](v)), (x,), (torch.ones_like(x),))[1],
    "vmap": lambda layers, x: vmap(lambda v: torch.tanh(layers[1](v)))(x),
    "functional_call": of_call,
}


def against_torch() -> dict[str, float]:
    """Returns, by function and placement, how far an engine is from torch."""
    out = {}
    for kind, change in KINDS.items():
        for zero in ({"stage": 2}, {"stage": 3}, {"stage": 3, "stage3_max_live_parameters": 300}):
            out[f"{kind}, {zero}"] = apart_from_torch(lambda change=change: Changed(change), mean, **zero)
    return out


def of_the_engine(stage: int) -> dict[str, Any]:
    """Returns how far derivatives and maps of a whole module are from torch, and the error of a derivative without whole parameters."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    engine, x = engine_of(module, stage), sample(0, 0)

    def per_sample(call: nn.Module) -> torch.Tensor:
        """Gradients of each sample."""
        named = {name: p.detach() for name, p in call.named_parameters()}
        of_one = grad(lambda p, v: functional_call(call, p, (v[None],)).sum())
        return torch.cat([g.flatten() for g in vmap(of_one, in_dims=(None, 0))(named, x).values()])

    with deepspeed.zero.GatheredParameters(list(module.parameters())):
        pairs = [(grad(lambda v: engine(v).sum())(x), grad(lambda v: alone(v).sum())(x)), (per_sample(module), per_sample(alone))]
    pairs += [(vmap(engine)(x), vmap(alone)(x)), (jvp(engine, (x,), (x,))[1], jvp(alone, (x,), (x,))[1])]
    engine.backward(mean(engine, module, x, True))
    engine.step()
    alone_said = plain.said_of(lambda: grad(lambda v: engine(v).sum())(x))
    return {"far": [(a - b).abs().max().item() for a, b in pairs], "alone": alone_said}


def checkpointed() -> str:
    """Returns the error of a derivative inside activation checkpointing."""
    engine = engine_of(models.seeded(lambda: Changed(lambda layers, x: checkpoint(KINDS["jacrev"], layers, x, use_reentrant=False))))
    return plain.said_of(lambda: engine(sample(0, 0)))
