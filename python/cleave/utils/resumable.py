"""Loaders with a position that checkpoints contain."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from ..errors import UsageError
from ..random_states import random_states, set_random_states
from ..values import from_text, to_text


class _Batches:
    """Iterator over the batches of a sampler. Skips the first ones without reading their samples."""

    def __init__(self, batches: Iterator[Any], first: int) -> None:
        self._batches, self._first = batches, first

    def skip(self) -> None:
        first, self._first = self._first, 0
        for _ in itertools.islice(self._batches, first):
            pass

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.skip()
        return next(self._batches)


class _Order:
    """The batch sampler of a loader, or its sampler without batches, from a given position on."""

    first = 0

    def __init__(self, sampler: Any) -> None:
        self.sampler_of_loader = sampler
        self.begun = _Batches(iter(()), 0)

    def __iter__(self) -> Iterator[Any]:
        self.begun = _Batches(iter(self.sampler_of_loader), self.first)
        return self.begun

    def __len__(self) -> int:
        return len(self.sampler_of_loader)

    def __getattr__(self, name: str) -> Any:
        if name == "sampler_of_loader":
            raise AttributeError(name)
        return getattr(self.sampler_of_loader, name)


class _Collate:
    """The function `collate_fn` of a loader; in a worker, it also returns the worker's random states after the batch."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        return batch if get_worker_info() is None else (batch, to_text(random_states()))


class _Begin:
    """The function `worker_init_fn` of a loader; it also restores random states."""

    def __init__(self, begin: Any) -> None:
        self._begin = begin
        self.states: dict[int, str] = {}  # by worker

    def __call__(self, worker: int) -> None:
        if self._begin is not None:
            self._begin(worker)
        if worker in self.states:
            set_random_states(from_text(self.states[worker]))


class ResumableLoader:
    """A loader with its position in checkpoints. After a resume, its first iteration yields the remaining batches of the epoch.

    A loader with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader, saves its position itself. The position of a
    DataLoader is the number of batches, and the random states and states of its samplers at the begin of the epoch. Batches of a Dataset
    are skipped without reading samples. An IterableDataset with `state_dict` and without workers continues from its state; others are read
    again from their begin.
    """

    _parts: Sequence[Any] = ()  # the DataLoader and its samplers
    _each: int | None = None  # samples per batch over all ranks, if the sampler shares the data out

    def __init__(self, loader: Any) -> None:
        """Wraps a loader, which stays as it is.

        Raises:
            UsageError: neither a DataLoader nor a loader with its own state.
        """
        self.epoch = self.batch = 0  # completed epochs, and batches read in the current one
        self._resumes: dict[str, Any] | None = None  # position of the next iteration
        self._began: dict[str, Any] = {}  # state at the begin of the epoch
        self._last: dict[int, str] = {}  # random states of each worker after its last batch
        self._round: dict[int, str] = {}  # the same after the last batch of the last worker
        self._workers_stay = False  # this epoch has the workers of the previous one
        self._own = _has_state(getattr(loader, "base_dataloader", loader)) and _has_state(loader)
        if not self._own and (hasattr(loader, "base_dataloader") or not isinstance(loader, DataLoader)):
            raise UsageError(
                f"register_loader: wrong loader (got {type(loader).__name__}, expected a torch DataLoader, or a loader with state_dict "
                "and load_state_dict)"
            )
        self.loader = loader if self._own else self._watched(loader)

    def _watched(self, loader: Any) -> Any:
        """Returns a copy of a DataLoader that can begin at a position."""
        watched, batches = copy.copy(loader), loader.batch_sampler
        self._order, self._begin = _Order(loader.sampler if batches is None else batches), _Begin(loader.worker_init_fn)
        object.__setattr__(watched, "sampler" if batches is None else "batch_sampler", self._order)  # a DataLoader forbids to set it
        watched._iterator = None
        if loader.num_workers:
            watched.collate_fn, watched.worker_init_fn = _Collate(loader.collate_fn), self._begin
        self._again = isinstance(loader.dataset, IterableDataset)
        self._continues = self._again and not loader.num_workers and _has_state(loader.dataset)
        parts = [loader, batches, getattr(batches, "sampler", None), loader.sampler]
        self._parts = list({id(part): part for part in parts if part is not None}.values())
        sampler = next((part for part in self._parts if isinstance(part, DistributedSampler)), None)
        size = getattr(batches, "batch_size", None) if batches is not None else 1
        if sampler is not None and size is not None:
            self._each = sampler.num_replicas * size
        return watched

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    # ---- iteration ----

    def __iter__(self) -> Iterator[Any]:
        resumes, self._resumes = self._resumes, None
        now = random_states()
        batches = iter(self.loader) if self._own else self._from(resumes)
        if resumes is not None and (self._own or self.batch):
            set_random_states(now)
            self._set_state({"generators": resumes.get("generators", ())})
        for batch in batches:
            yield batch if self._own else self._taken(batch)
        self.epoch, self.batch = self.epoch + 1, 0

    def _from(self, resumes: dict[str, Any] | None) -> Iterator[Any]:
        """Returns an iterator that begins at a position. Draws the same random numbers as the iterator that had the position."""
        loader, due = self.loader, resumes["batch"] if resumes else 0
        first = due - due % max(1, loader.num_workers)  # the first batch is that of worker 0
        self._workers_stay = resumes.get("workers_stay", False) if resumes else self._has_workers()
        if resumes:
            self._last = dict(resumes.get("workers", {}))
        elif not self._workers_stay:
            self._last = {}
        if due:
            self._set_state(self._began)
        else:
            self._began = self._state()
        if due and self._continues:
            loader.dataset.load_state_dict(resumes["dataset"] if resumes else {})
            first = due
        elif due and self._again:
            first, self._last = 0, {}
        self.batch, self._round = first, dict(self._last)
        self._order.first, self._begin.states = 0 if self._again else first, self._last if resumes else {}
        generator = loader.generator
        if resumes and self._workers_stay:
            loader.generator = torch.Generator()  # workers that stayed were seeded in an earlier epoch
        batches: Iterator[Any] = iter(loader)
        loader.generator, self._begin.states = generator, {}
        if due:
            if not loader.num_workers:  # otherwise, the iterator has read ahead
                self._order.begun.skip()
            for batch in itertools.islice(batches, due - first):
                self._taken(batch)
        return batches

    def _has_workers(self) -> bool:
        """Returns True if the next iteration has the workers of the previous one."""
        return self.loader.persistent_workers and self.loader._iterator is not None

    def _taken(self, batch: Any) -> Any:
        """Counts a batch, and returns it without the states of its worker."""
        if workers := self.loader.num_workers:
            batch, self._last[self.batch % workers] = batch
        self.batch += 1
        if workers and self.batch % workers == 0:
            self._round = dict(self._last)
        return batch

    # ---- position ----

    def _state(self) -> dict[str, Any]:
        """Returns the state that decides the batches of an epoch, at its begin."""
        return {
            "random": random_states(),
            "generators": [part.generator.get_state() for part in self._parts if _has_generator(part)],
            "orders": [part.epoch for part in self._parts if hasattr(part, "set_epoch")],
            "samplers": [part.state_dict() for part in self._parts if _has_state(part)],
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        set_random_states(state.get("random", {}))
        for part, value in zip(filter(_has_generator, self._parts), state.get("generators", ()), strict=False):
            part.generator.set_state(value)
        for part, value in zip((p for p in self._parts if hasattr(p, "set_epoch")), state.get("orders", ()), strict=False):
            part.set_epoch(value)
        for part, value in zip(filter(_has_state, self._parts), state.get("samplers", ()), strict=False):
            part.load_state_dict(value)

    def state_dict(self, not_trained: int = 0) -> dict[str, Any]:
        """Returns the position on this rank, reduced by the number of batches that were read but not trained."""
        if self._own:
            return {"own": self.loader.state_dict()}
        epoch, batch, began = self.epoch, self.batch - not_trained, self._began if self.batch else self._state()
        if batch < 0 < epoch and not self._again:
            epoch, batch = epoch - 1, batch + len(self)
        stay = self._workers_stay if self.batch else self._has_workers()
        state = {"epoch": epoch, "batch": max(0, batch), "began": began, "generators": self._state()["generators"]}
        if self._each is not None:
            state["samples"] = state["batch"] * self._each
        if self.loader.num_workers and (batch or stay):
            state |= {"workers": self._round if batch else self._last, "workers_stay": stay}
        return state | ({"dataset": self.loader.dataset.state_dict()} if self._continues else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the position at which the next iteration begins."""
        if self._own:
            if "own" in state:
                self.loader.load_state_dict(state["own"])
                self._resumes = state
            return
        self.epoch, self.batch = state["epoch"], state.get("batch", 0)
        if self._each is not None and "samples" in state:
            self.batch = state["samples"] // self._each
        self._began = state.get("began") or ({"orders": [state["order"]]} if "order" in state else {})
        self._set_state({**self._began, "random": {}, "generators": state.get("generators", ())})
        self.loader._iterator = None  # its workers are at another position
        self._resumes = {**state, "batch": self.batch} if self.batch or "workers" in state else None


def _has_generator(part: Any) -> bool:
    return isinstance(getattr(part, "generator", None), torch.Generator)


def _has_state(part: Any) -> bool:
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))
