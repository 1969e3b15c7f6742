"""Small modules, losses, and their comparison with torch, for cases of modules_test.py."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import models
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, RATE = 8, 0.05


Loss = Callable[
    [Any, nn.Module, torch.Tensor, bool], torch.Tensor
]  # called with an engine or a module, the module, x, and True for an engine


class Chain(nn.Module):
    """Linear layers; `again` computes each with activation checkpointing."""

    def __init__(self, layers: int = 4, again: bool = False) -> None:
        super().__init__()
        self.layers, self.head, self.again = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(layers)]), nn.Linear(WIDTH, 1), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=False) if self.again else layer(x))
        return self.head(x)


class Forces(Chain):
    """Returns the gradient of an energy by the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.requires_grad_(True)
            return torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)[0]


class Kept(torch.autograd.Function):
    """Keeps the weight as an attribute of its context."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weights = [weight]
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        [x] = ctx.saved_tensors
        return gradient @ ctx.weights[0], gradient.t() @ x


class Saved(torch.autograd.Function):
    """Gathers the saved weight again unless it is available."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        status = getattr(weight, "ds_status", None)
        with deepspeed.zero.GatheredParameters([weight] if status is not None and status.name != "AVAILABLE" else []):
            return gradient @ weight, gradient.t() @ x


class SavedParameter(Saved):
    """Needs the parameter itself."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        assert isinstance(ctx.saved_tensors[1], nn.Parameter)
        return Saved.backward(ctx, gradient)


class Custom(Chain):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(self.function.apply(x, layer.weight) + layer.bias)  # type: ignore[no-untyped-call]
        return self.head(x)


class Wrapper(nn.Module):
    """A trained copy of a module that replaces the original, and forwards attributes to it, as adapters do."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original, self.copies = original, nn.ModuleDict({"default": copy.deepcopy(original)})
        original.requires_grad_(False)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["copies"]["default"], name)  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.copies["default"](x)


def mean(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    return call(x).pow(2).mean()


def penalty(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """The gradient penalty of a critic, before its loss."""
    given = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(call(given).sum(), given, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).pow(2).mean() + call(x * 2).mean()


def kept_graph(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """A penalty of an output that the loss uses also."""
    given = x.clone().requires_grad_(True)
    y = call(given)
    (gradient,) = torch.autograd.grad(y.sum(), given, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).pow(2).mean() + y.mean()


def inside(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """A forward inside GatheredParameters; another one before the backward overwrites gathered memory."""
    head = next(module.children())
    with deepspeed.zero.GatheredParameters(list(head.parameters())) if gathers else contextlib.nullcontext():
        loss = call(x).pow(2).mean()
    return loss + call(x * 2).pow(2).mean()


def twice(call: Any, module: nn.Module, x: torch.Tensor, gathers: bool) -> torch.Tensor:
    """Plain gradients of an output, in addition to its loss."""
    given = x.clone().requires_grad_(True)
    y = call(given)
    (gradient,) = torch.autograd.grad(y.sum(), given, retain_graph=True)
    return y.mean() * gradient.norm()


def config(stage: int, **zero: Any) -> dict[str, Any]:
    if stage == 3:
        zero = {"stage3_param_persistence_threshold": 0, **zero}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "SGD", "params": {"lr": RATE}},
        "zero_optimization": {"stage": stage, **zero},
    }


def engine_of(module: nn.Module, stage: int = 3, **zero: Any) -> Any:
    return deepspeed.initialize(model=module, config=config(stage, **zero))[0]


def sample(step: int, rank: int) -> torch.Tensor:
    return models.batch(step, 0, rank)[0]


def apart_from_torch(made: Callable[[], nn.Module], loss_of: Loss, stage: int, **zero: Any) -> float:
    """Returns the largest difference of weights and norms of 3 steps from a loop in torch alone, relative above 1."""
    module, alone = (models.seeded(made) for _ in range(2))
    engine = engine_of(module, stage, **zero)
    optimizer = torch.optim.SGD([p for p in alone.parameters() if p.requires_grad], RATE)
    far = 0.0
    for step in range(3):
        engine.backward(loss_of(engine, engine.module, sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        for rank in range(engine.world_size):
            (loss_of(alone, alone, sample(step, rank), False) / engine.world_size).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in alone.parameters() if p.grad is not None])
        optimizer.step()
        far = max(far, abs(engine.get_global_grad_norm() - norm.item()) / max(1.0, norm.item()))
    names = {name for name, p in alone.named_parameters() if p.numel()}
    far = max(far, *((engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in alone.named_parameters() if n in names))
    engine.destroy()
    return far
