"""Layers that tensor-parallel ranks share: columns split the outputs, rows split the inputs and sum the outputs over the ranks."""

import functools
from collections.abc import Hashable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from .utils import groups


def summed(value: torch.Tensor) -> torch.Tensor:
    """Returns the sum over the tensor-parallel ranks. Collective."""
    total = value.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=groups.get_tensor_model_parallel_group())
    return total


class _Enter(torch.autograd.Function):
    """Passes the same value to the parts of a layer; their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _Leave.apply(gradient)  # type: ignore[no-any-return]


class _Leave(torch.autograd.Function):
    """Sums the outputs of the parts of a layer; each gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return summed(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _Enter.apply(gradient)  # type: ignore[no-any-return]


class _Join(torch.autograd.Function):
    """Joins the outputs of the parts of a layer along the last dim; each gets the gradient of its part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        parts = [
            torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(groups.get_tensor_model_parallel_world_size())
        ]
        dist.all_gather(parts, value.detach().contiguous(), group=groups.get_tensor_model_parallel_group())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.chunk(groups.get_tensor_model_parallel_world_size(), -1)[groups.get_tensor_model_parallel_rank()]


class Column:
    """A linear layer with a part of the outputs."""

    joins = False  # returns the outputs of all ranks

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        part = super().forward(_Enter.apply(value))  # type: ignore[misc]
        return _Join.apply(part) if self.joins else part  # type: ignore[no-any-return]


class Row:
    """A linear layer with a part of the inputs. The bias is whole, and added once."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        weight = self.weight if isinstance(self, torch.nn.Linear) else self.weight.t()
        total: torch.Tensor = _Leave.apply(functional.linear(value, weight))
        return total if self.bias is None else total + self.bias.to(total.dtype)


@functools.cache
def _kind(split: Hashable, of: Hashable) -> type:
    bases: Any = split, of
    return type("".join(base.__name__ for base in bases), bases, {"__module__": __name__})


def split_layer(layer: Any, kind: str, joins: bool, ranks: int) -> None:
    """Makes a linear layer compute with the part of its parameters that this rank has."""
    own: Any = type(layer)
    layer.__class__ = _kind(Column if kind == "column" else Row, own)
    for name in {"column": ("out_features", "nf"), "row": ("in_features", "nx")}[kind]:
        if hasattr(layer, name):
            setattr(layer, name, getattr(layer, name) // ranks)
    if joins:
        layer.joins = True


def is_split(layer: Any) -> bool:
    """Returns True after `split_layer`."""
    return isinstance(layer, Column | Row)
