"""Tensors in the output of a module."""

import dataclasses
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def tensors_in(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yields the tensors in an output: in containers that torch knows, dataclasses, and other objects with attributes."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif depth and not isinstance(leaf, type | torch.nn.Module | ModuleType):
            names = [f.name for f in dataclasses.fields(leaf)] if dataclasses.is_dataclass(leaf) else getattr(leaf, "__dict__", ())
            yield from tensors_in([getattr(leaf, name, None) for name in names], depth - 1) if names else ()
