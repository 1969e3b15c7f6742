"""Small helpers that scripts import."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .logging import log_dist


class RepeatingLoader:
    """An iterator over a loader that begins again where it ends."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self._iterator = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self.loader)
            return next(self._iterator)


def move_to_device(item: Any, device: Any, criterion: Callable[[Any], bool] | None = None) -> Any:
    """The same structure with its tensors, those that fit the criterion, on a device."""
    if (criterion(item) if criterion else isinstance(item, torch.Tensor)) and hasattr(item, "to"):
        return item.to(device)
    if isinstance(item, list | tuple):
        return type(item)(move_to_device(v, device, criterion) for v in item)
    if isinstance(item, dict):
        return {k: move_to_device(v, device, criterion) for k, v in item.items()}
    return item


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs the largest resident set of this process so far."""
    if force:
        log_dist(f"{message}: at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB resident")
