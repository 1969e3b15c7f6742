"""Data loaders and helpers for batches."""

import resource
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from .logging import log_dist
from .resumable import ResumableLoader


class DeepSpeedDataLoader(ResumableLoader):
    """A loader of this rank's share of a Dataset. Its position counts samples of all ranks, so it is valid for another number of ranks."""

    def __init__(
        self,
        data: Any,
        batch_size: int,
        rank: int,
        ranks: int,
        route: str = "train",
        sampler: Any = None,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        """Creates the loader.

        Args:
            data: a Dataset or IterableDataset.
            batch_size: samples per batch and rank.
            rank: data-parallel rank.
            ranks: data-parallel size.
            route: "train" shuffles and gives each rank its share; other values give all samples in order.
            sampler: replaces the sampler that `route` selects.
            drop_last: drop an incomplete last batch.
            options: further arguments of `torch.utils.data.DataLoader`.
        """
        if isinstance(data, IterableDataset):
            sampler = None
        elif sampler is None:
            sampler = DistributedSampler(data, num_replicas=ranks, rank=rank) if route == "train" else SequentialSampler(data)
        super().__init__(DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=drop_last, **options))
        self.data_sampler, self._each = sampler, batch_size * ranks


class RepeatingLoader:
    """An iterator that restarts its loader at the end."""

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


def mapped(item: Any, which: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Returns the same structure of lists, tuples and dictionaries, with `change` applied to the values that `which` selects."""
    if which(item):
        return change(item)
    if isinstance(item, list | tuple):
        return type(item)(mapped(value, which, change) for value in item)
    return {key: mapped(value, which, change) for key, value in item.items()} if isinstance(item, dict) else item


def move_to_device(item: Any, device: Any, criterion: Callable[[Any], bool] | None = None) -> Any:
    """Returns the same structure with its tensors on a device, or with the values that `criterion` selects."""
    moves = criterion or (lambda value: isinstance(value, torch.Tensor))
    return mapped(item, lambda value: hasattr(value, "to") and moves(value), lambda value: value.to(device))


def see_memory_usage(message: str, force: bool = False) -> None:
    """Logs the peak resident memory of this process if `force` is set."""
    if force:
        log_dist(f"{message}: at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB resident")
