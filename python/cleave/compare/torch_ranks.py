"""The job of a reference run: the ranks of the launcher, with the collectives of torch."""

import ctypes
import os
import pathlib
from typing import Any

import torch
import torch.distributed as dist

from .. import job as jobs
from .. import zero


class TorchJob:
    """The ranks of the launcher's environment; collectives are those of torch."""

    def __init__(self) -> None:
        rank, world, local = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))
        device = f"cuda:{local % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
        self._facts = {"rank": rank, "world": world, "local_rank": local, "local_size": world, "device": device}

    def facts(self) -> dict[str, Any]:
        return self._facts

    def broadcast(self, address: int, size: int, root: int) -> None:
        jobs.init_torch()
        dist.broadcast(torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8), root)

    def sum(self, values: Any) -> list[float]:
        jobs.init_torch()
        summed = torch.tensor(list(values), dtype=torch.float64)
        dist.all_reduce(summed)
        return list(map(float, summed))

    def barrier(self) -> None:
        self.sum([0.0])

    def stop_requested(self) -> bool:
        return False

    def catch_signals(self) -> None:
        """Has no effect."""

    def close(self, reason: str | None, exit_code: int = 0) -> None:
        """Has no effect."""


def install(folder: pathlib.Path) -> None:
    """Makes this process a rank without the native library. Ranks meet at a file in the folder."""
    job: Any = TorchJob()
    jobs._job, jobs._owner = job, os.getpid()

    def store(facts: dict[str, Any], wait: Any) -> Any:
        return dist.FileStore(str(folder / "store"), facts["world"])

    def whole(self: Any, *args: Any, **kwargs: Any) -> None:
        self.enabled = False

    jobs._store = store
    zero.Init.__init__ = whole  # type: ignore[method-assign]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
