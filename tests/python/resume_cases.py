"""Cases of resume_test.py for ranks: trainings with dropout, shuffled data and random augmentation, which end and resume."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import cleave as deepspeed
import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

SAMPLES = 20
BATCH = 2  # samples per rank and batch, so 5 batches per rank and epoch with DistributedSampler, else 10


def augmented(index: int) -> torch.Tensor:
    """Returns a sample of its index, with random numbers of all three libraries."""
    return torch.tensor([index, random.random(), numpy.random.rand(), torch.rand(()).item()])


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return augmented(index)


class Stream(IterableDataset[torch.Tensor]):
    """Samples in order; the workers share them out."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        first, each = (worker.id, worker.num_workers) if worker else (0, 1)
        while self.next < SAMPLES:
            self.next += 1
            if (self.next - 1) % each == first:
                yield augmented(self.next - 1)
        self.next = 0


class StreamWithState(Stream):
    reads = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for sample in super().__iter__():
            StreamWithState.reads += 1
            yield sample

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class OwnLoader:
    """A loader with the interface of torchdata's StatefulDataLoader."""

    def __init__(self) -> None:
        self.read, self.order = 0, list(range(SAMPLES))

    def __len__(self) -> int:
        return SAMPLES // BATCH

    def __iter__(self) -> Iterator[torch.Tensor]:
        torch.rand(())  # the iterator of a DataLoader also draws a number
        if self.read == 0:
            random.shuffle(self.order)
        return self._batches()

    def _batches(self) -> Iterator[torch.Tensor]:
        while self.read < len(self):
            self.read += 1
            yield torch.stack([augmented(i) for i in self.order[(self.read - 1) * BATCH : self.read * BATCH]])
        self.read = 0

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read, self.order = state["read"], list(state["order"])


def loader_of(kind: str, workers: int, rank: int, ranks: int) -> Any:
    options: dict[str, Any] = {"num_workers": workers}
    if kind.endswith("persistent"):
        kind, options["persistent_workers"] = kind.partition(" ")[0], True
    draw = torch.Generator().manual_seed(5)
    if kind == "own":
        return OwnLoader()
    if kind == "shuffled":
        return DataLoader(Samples(), BATCH, shuffle=True, **options)
    if kind == "generator":
        return DataLoader(Samples(), BATCH, sampler=RandomSampler(Samples(), True, SAMPLES, draw), generator=draw, **options)
    if kind == "batches":
        return DataLoader(Samples(), batch_sampler=BatchSampler(RandomSampler(Samples(), generator=draw), BATCH, True), **options)
    if kind == "unbatched":
        return DataLoader(Samples(), None, shuffle=True, **options)
    if kind == "distributed":
        return DataLoader(Samples(), BATCH, sampler=DistributedSampler(Samples(), ranks, rank), **options)
    return DataLoader(StreamWithState() if kind == "state" else Stream(), BATCH, **options)


def engine_of(stage: int, **more: Any) -> Any:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    adam = {"type": "AdamW", "params": {"lr": 1e-2}}
    config = {"train_micro_batch_size_per_gpu": BATCH, "optimizer": adam, "zero_optimization": {"stage": stage}}
    return deepspeed.initialize(model=module, config=config, **more)


def train(folder: str, kind: str, workers: int, stage: int, until: int, save: int, resume: bool) -> list[tuple[float, list[float]]]:
    """Returns the loss and the indices of each step on this rank; saves after step `save`."""
    engine, _, loader, _ = engine_of(stage, training_data=Samples() if kind == "training_data" else None)
    random.seed(7 + engine.global_rank)
    numpy.random.seed(7 + engine.global_rank)
    torch.manual_seed(7 + engine.global_rank)
    client: Any = {"epoch": 0}
    if resume:
        path, client = engine.load_checkpoint(folder)
        assert path
    if kind != "training_data":  # registered before or after the load
        loader = engine.register_loader(loader_of(kind, workers, engine.global_rank, engine.world_size), "train")
    out = []
    for epoch in range(client["epoch"], 9):
        if kind == "distributed":
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            engine.backward(engine(batch).square().mean())
            engine.step()
            out.append((engine.last_result.loss, batch.reshape(-1, 4)[:, 0].tolist()))
            if engine.global_steps == save and not resume:
                engine.save_checkpoint(folder, client_state={"epoch": epoch})
            if engine.global_steps == until:
                engine.destroy()
                return out
    raise AssertionError("unreachable")


def several(folder: str, cases: list[list[Any]], until: int, resume: bool) -> list[Any]:
    return [train(f"{folder}/{i}", *case[:3], until or case[3] + 1, case[3], resume) for i, case in enumerate(cases)]


def reads() -> int:
    return StreamWithState.reads


def on_other_ranks(folder: str, kind: str, save: bool) -> dict[str, Any]:
    """Saves after two batches per rank, or loads and reads the rest of the epoch."""
    engine = engine_of(1)[0]
    loader = engine.register_loader(loader_of(kind, 0, engine.global_rank, engine.world_size))
    random.seed(3)
    numpy.random.seed(4)
    torch.manual_seed(5 + engine.global_rank * save)
    if not save:
        engine.load_checkpoint(folder)
        drawn = [random.random(), numpy.random.rand()]
        return {"rest": [int(i) for batch in loader for i in batch[:, 0]], "drawn": drawn}
    seen = []
    for count, batch in enumerate(loader):
        seen += [int(i) for i in batch[:, 0]]
        engine.backward(engine(batch).mean())
        engine.step()
        if count == 1:
            break
    engine.save_checkpoint(folder)
    return {"seen": seen, "drawn": [random.random(), numpy.random.rand()]}


def wrong() -> str:
    engine = engine_of(0)[0]
    try:
        engine.register_loader([1, 2])
    except deepspeed.UsageError as error:
        return str(error)
    return ""
