"""Layers that tensor-parallel ranks share: columns split the outputs, rows split the inputs and sum the outputs over the ranks."""

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional

from . import job as jobs
from .utils.groups import groups_of


class Ranks(NamedTuple):
    """The tensor-parallel ranks that share a layer."""

    size: int

    @property
    def group(self) -> Any:
        return groups_of(self.size)[0]

    @property
    def mine(self) -> int:
        """Index of this rank."""
        return jobs.rank() % self.size

    @property
    def first(self) -> int:
        """Global rank of the first one."""
        return jobs.rank() - self.mine

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the sum of a value over the ranks. Collective."""
        total = value.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def each(self, value: torch.Tensor) -> list[torch.Tensor]:
        """Returns the values of the ranks. Collective."""
        values = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(values, value.detach().contiguous(), group=self.group)
        return values


class _Enter(torch.autograd.Function):
    """Passes the same value to the parts of a layer; their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Leave.apply(gradient, ctx.ranks), None


class _Leave(torch.autograd.Function):
    """Sums the outputs of the parts of a layer; each gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        return ranks.sum(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Enter.apply(gradient, ctx.ranks), None


class _Join(torch.autograd.Function):
    """Joins the outputs of the parts of a layer along the last dim; each gets the gradient of its part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        ctx.ranks = ranks
        return torch.cat(ranks.each(value), -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.chunk(ctx.ranks.size, -1)[ctx.ranks.mine], None


class Column:
    """A linear layer with a part of the outputs."""

    ranks: Ranks
    joins = False  # returns the outputs of all ranks

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        part = super().forward(_Enter.apply(value, self.ranks))  # type: ignore[misc]
        return _Join.apply(part, self.ranks) if self.joins else part  # type: ignore[no-any-return]


class Row:
    """A linear layer with a part of the inputs. The bias is whole, and added once."""

    ranks: Ranks
    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        weight = self.weight if isinstance(self, torch.nn.Linear) else self.weight.t()
        total: torch.Tensor = _Leave.apply(functional.linear(value, weight), self.ranks)
        return total if self.bias is None else total + self.bias.to(total.dtype)


@functools.cache
def _kind(split: Hashable, of: Hashable) -> type:
    bases: Any = split, of
    return type("".join(base.__name__ for base in bases), bases, {"__module__": __name__})


def split_layer(layer: Any, kind: str, joins: bool, ranks: Ranks) -> None:
    """Makes a linear layer compute with the part of its parameters that this rank has."""
    own: Any = type(layer)
    layer.__class__ = _kind(Column if kind == "column" else Row, own)
    for name in {"column": ("out_features", "nf"), "row": ("in_features", "nx")}[kind]:
        if hasattr(layer, name):
            setattr(layer, name, getattr(layer, name) // ranks.size)
    layer.ranks = ranks
    if joins:
        layer.joins = True


def is_split(layer: Any) -> bool:
    """Returns True after `split_layer`."""
    return isinstance(layer, Column | Row)
