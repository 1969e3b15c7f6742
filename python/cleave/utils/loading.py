"""Data loaders and helpers for batches."""

import itertools
import resource
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from .logging import log_dist


class _From(BatchSampler):
    """Batches of a sampler, starting at one of them."""

    first = 0

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(super().__iter__(), self.first, None)


class DeepSpeedDataLoader:
    """A loader of this rank's share of a Dataset. Its position is saved, so that training resumes at the next batch.

    The position counts samples of all ranks, so it is valid for another number of ranks.
    """

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
        self._each = batch_size * ranks
        self.batch_size = batch_size
        self._sampler: _From | None = None
        self.epoch = self.batch = 0  # completed epochs, and batches read in the current one
        self._first = 0  # first batch of the next iteration
        if isinstance(data, IterableDataset):
            self.data_sampler: Any = None
            self.loader: DataLoader[Any] = DataLoader(data, batch_size=batch_size, drop_last=drop_last, **options)
            return
        if sampler is None:
            sampler = DistributedSampler(data, num_replicas=ranks, rank=rank) if route == "train" else SequentialSampler(data)
        self.data_sampler = self.sampler = sampler
        self._sampler = _From(self.data_sampler, batch_size, drop_last)
        self.loader = DataLoader(data, batch_sampler=self._sampler, **options)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.batch, self._first = self._first, 0
        if self._sampler is None:
            batches: Iterable[Any] = itertools.islice(iter(self.loader), self.batch, None)
        else:
            self._sampler.first = self.batch
            batches = self.loader
        for batch in batches:
            self.batch += 1
            yield batch
        self.epoch, self.batch = self.epoch + 1, 0

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def state_dict(self, not_trained: int = 0) -> dict[str, int]:
        """Returns the position, reduced by the number of batches that were read but not trained."""
        epoch, batch = self.epoch, self.batch - not_trained
        if batch < 0 < epoch and self._sampler is not None:
            epoch, batch = epoch - 1, batch + len(self)
        state = {"epoch": epoch, "samples": max(0, batch) * self._each}
        return state | ({"order": self.data_sampler.epoch} if hasattr(self.data_sampler, "epoch") else {})

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Sets the position at which the next iterator starts."""
        self.epoch, self.batch = state["epoch"], state["samples"] // self._each
        self._first = self.batch
        if "order" in state and hasattr(self.data_sampler, "set_epoch"):
            self.data_sampler.set_epoch(state["order"])


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
