"""Small modules with features of real ones: tied, frozen, unused, shared and skipped parameters, convolutions, attention."""

from __future__ import annotations

import random

import plain
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint  # noqa: F401

CLASSES, WIDTH = 5, 12


def seeded(make: type[nn.Module] | object, seed: int = 0, *args: object) -> nn.Module:
    torch.manual_seed(seed)
    return make(*args)  # type: ignore[operator, no-any-return]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


class Conv(nn.Module):
    """Two convolutions with a batch norm, as in CIFAR-10 examples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.Conv2d(6, 4, 3)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, :8].reshape(-1, 2, 2, 2).repeat(1, 1, 2, 2)
        return self.head(F.relu(self.second(F.relu(self.norm(self.first(x))))).flatten(1).repeat(1, 1)[:, :16])


class Gpt(nn.Module):
    """A decoder with a tied embedding, positions, and a scalar parameter."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(CLASSES, WIDTH), nn.Parameter(torch.randn(8, WIDTH) * 0.1)
        layer = nn.TransformerEncoderLayer(WIDTH, 3, 24, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([layer, nn.TransformerEncoderLayer(WIDTH, 3, 24, dropout=0.0, batch_first=True)])
        self.norm, self.gain = nn.LayerNorm(WIDTH), nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x[:, :8].abs() * 7).long() % CLASSES
        h = self.embed(tokens) + self.positions
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h) * self.gain).mean(1)


class Odd(nn.Module):
    """A module used twice, an unused one, a frozen one, a parameter that another module reads, and a frozen parameter next to a trained
    one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.never = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(3, 3)
        self.frozen, self.partly = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.frozen.requires_grad_(False)
        self.partly.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.twice(torch.tanh(self.twice(self.first(x)))))
        h = self.partly(self.frozen(h)) + self.first.bias
        return self.head(h)


class Skipping(nn.Module):
    """Branches selected by the first values of a sample: a rank may skip any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.branches, self.head = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)]), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for k, branch in enumerate(self.branches):
            if x[0, k] > 0:
                h = h + branch(h).tanh()
        return self.head(h)


class Random(nn.Module):
    """A random graph of layers: some used several times, tied, frozen, unused, or skipped by a sample."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        kinds = (lambda: nn.Linear(8, 8), lambda: nn.LayerNorm(8), lambda: nn.Linear(8, 8, bias=False), lambda: nn.Bilinear(8, 8, 8))
        self.layers = nn.ModuleList([draw.choice(kinds)() for _ in range(draw.randint(2, 7))])
        linear = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        for layer in linear[1:]:
            if draw.random() < 0.3:
                layer.weight = linear[0].weight
        for layer in self.layers:
            if draw.random() < 0.2:
                layer.requires_grad_(False)
        self.order = [(draw.randrange(len(self.layers)), draw.random()) for _ in range(draw.randint(2, 9))]
        self.gates = [draw.randrange(8) if draw.random() < 0.3 else None for _ in self.order]
        self.checkpoints = draw.random() < 0.3
        self.gain = nn.Parameter(torch.randn(8)) if draw.random() < 0.5 else None
        self.head = nn.Linear(8, CLASSES)

    def _run(self, k: int, h: torch.Tensor) -> torch.Tensor:
        layer = self.layers[k]
        return torch.tanh(layer(h, h) if isinstance(layer, nn.Bilinear) else layer(h))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x if self.gain is None else x * self.gain
        for (k, residual), gate in zip(self.order, self.gates, strict=True):
            if gate is not None and x[0, gate] > 0:
                continue
            if self.checkpoints and h.requires_grad:
                out = torch.utils.checkpoint.checkpoint(self._run, k, h, use_reentrant=k % 2 == 0)
            else:
                out = self._run(k, h)
            h = h + out if residual < 0.4 else out
        return self.head(h)


class InPlace(Mlp):
    """Overwrites the value that autograd keeps of exp()."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers(x).exp()
        return self.head(h.mul_(2))


class Blocks(nn.Module):
    """Blocks, some frozen, with recomputed activations: none, reentrant or non-reentrant."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode, self.first = mode, nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)) for _ in range(3)])
        self.blocks[1].requires_grad_(False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for block in self.blocks:
            if self.mode == "none":
                h = h + block(h)
            else:
                h = h + torch.utils.checkpoint.checkpoint(block, h, use_reentrant=self.mode == "reentrant")
        return self.head(h)


def batch(step: int, micro: int, rank: int) -> plain.Batch:
    draw = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randn(4, 8, generator=draw), torch.randint(0, CLASSES, (4,), generator=draw)


def loss(module: nn.Module, sample: plain.Batch) -> torch.Tensor:
    x, y = sample
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    return F.cross_entropy(module(x.to(dtype)).float(), y)
