"""Cases of modules_test.py for ranks: random modules."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import torch
from chains import WIDTH, Kept, Saved, Wrapper, apart_from_torch, inside, kept_graph, mean, penalty, twice
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of low rank, as LoRA adapters are."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        self.base.requires_grad_(False)
        self.merges = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["base"], name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.merges:
            return F.linear(x, self.weight + self.b.weight @ self.a.weight, self.bias)
        return self.base(x) + self.b(self.a(x))


class OfFunction(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]


class OfList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(WIDTH, WIDTH) / 3), nn.Parameter(torch.randn(0, WIDTH))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.weights[1]]) @ self.weights[0]


class Drawn(nn.Module):
    """A random graph of layers, adapters, wrappers and functions that are used in random ways."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        kinds: list[Callable[[], nn.Module]] = [
            lambda: nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7),
            lambda: nn.LayerNorm(WIDTH),
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
            lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH)),
            Adapted,
            lambda: Wrapper(nn.Linear(WIDTH, WIDTH)),
            lambda: OfFunction(Kept),
            lambda: OfFunction(Saved),
            OfList,
        ]
        self.layers = nn.ModuleList([draw.choice(kinds)() for _ in range(draw.randint(2, 6))])
        for layer in self.layers:
            if isinstance(layer, Adapted):
                layer.merges = draw.random() < 0.5
            elif draw.random() < 0.15:
                layer.requires_grad_(False)
        linear = [layer for layer in self.layers if type(layer) is nn.Linear]
        for layer in linear[1:]:
            if draw.random() < 0.3:
                layer.weight = linear[0].weight
        ways = ["call", "call", "call", "read", "again", "reentrant", "gated", "dummy", "caught", "forces"]
        self.order = [(draw.randrange(len(self.layers)), draw.choice(ways), draw.randrange(WIDTH)) for _ in range(draw.randint(2, 8))]
        self.twice = any(isinstance(layer, OfFunction) for layer in self.layers)  # such functions cannot be differentiated twice
        self.head = nn.Linear(WIDTH, 1)

    def _forces(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            given = x if x.requires_grad else x.detach().requires_grad_(True)
            return torch.autograd.grad(torch.tanh(layer(given)).sum(), given, create_graph=True)[0]

    def _used(self, layer: nn.Module, way: str, gate: int, x: torch.Tensor) -> torch.Tensor:
        if way == "read" and isinstance(layer, nn.Linear | Wrapper | Adapted):
            return F.linear(x, layer.weight, layer.bias)
        if way in ("again", "reentrant"):
            return checkpoint(layer, x, use_reentrant=way == "reentrant")  # type: ignore[no-any-return]
        if way == "gated" and x[0, gate] > 0:
            return x
        if way == "dummy":
            layer(x)
            return x
        if way == "caught":
            with contextlib.suppress(RuntimeError):
                return layer(x[:, :3]) @ x.t()  # type: ignore[no-any-return]
        if way == "forces" and not self.twice:
            return self._forces(layer, x)
        return layer(x)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, way, gate in self.order:
            x = 0.5 * x + torch.tanh(0.3 * self._used(self.layers[number], way, gate, x))
        return self.head(x)


def drawn(first: int, last: int) -> dict[str, float]:
    """Returns, by seed, loss and placement, how far an engine is from torch for random modules."""
    out = {}
    for seed in range(first, last):
        draw = random.Random(-seed)
        module = Drawn(seed)
        once = module.twice or any(way == "reentrant" for _, way, _ in module.order)
        loss_of = draw.choice([mean, inside] if once else [mean, inside, twice, penalty, kept_graph])
        zero: dict[str, Any] = {"stage": draw.choice([0, 1, 2, 3, 3, 3, 3])}
        if zero["stage"] == 3:
            zero |= {
                "stage3_param_persistence_threshold": draw.choice([0, 0, 10]),
                "stage3_max_live_parameters": draw.choice([800, 1500, 10**9]),
            }
        out[f"seed {seed}, {loss_of.__name__}, {zero}"] = apart_from_torch(lambda seed=seed: Drawn(seed), loss_of, **zero)
    return out
