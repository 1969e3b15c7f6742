"""Errors of a GPU's memory that say who holds it: the engine, PyTorch or others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from . import native
from .errors import OutOfMemory

_ADVICE = (
    "lower train_micro_batch_size_per_gpu, checkpoint activations, or move more of the engine to the host "
    "(zero_optimization.stage, offload_optimizer, offload_param)"
)
_FRAGMENTS = "; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets PyTorch use its free blocks for other sizes"


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def holders(device: torch.device, live: dict[str, int]) -> str:
    """Returns a table of who holds the memory of a device.

    Args:
        device: whose allocator of PyTorch is asked; on a CPU, the table has the engine only.
        live: bytes of the engine on this device, by category.
    """
    engine = sum(live.values())
    parts = sorted(live.items(), key=lambda part: -part[1])
    rows = [("engine", engine, ", ".join(f"{name} {_gib(count)}" for name, count in parts if count))]
    about = f"memory of {device}"
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        rows.append(("PyTorch", held, f"{_gib(used)} in tensors, {_gib(held - used)} in free blocks"))
        rows.append(("others", max(0, total - free - held - engine), "CUDA, its libraries, and other processes, which nvidia-smi shows"))
        about += f": {_gib(total)}, {_gib(free)} free"
    return "\n".join([about, *(f"  {name:8} {_gib(count):>12}  {what}".rstrip() for name, count, what in rows)])


@contextlib.contextmanager
def explained(engine: native.NativeEngine, device: torch.device) -> Iterator[None]:
    """Adds the holders of the memory to an error of PyTorch's allocator, which keeps its type."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):  # by an inner context
            raise
        live = engine.facts()["live"].get("device", {})
        wasted = device.type == "cuda" and torch.cuda.memory_reserved(device) > 1.2 * torch.cuda.memory_allocated(device)
        advice = _ADVICE + (_FRAGMENTS if wasted else "")
        raise torch.OutOfMemoryError(f"{error}\n{holders(device, live)}\n{advice}") from error


@contextlib.contextmanager
def refused(device: torch.device) -> Iterator[None]:
    """Frees the unused blocks of PyTorch for the memory of an engine, and adds the holders to the error of one that does not fit."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        yield
    except OutOfMemory as error:
        if device.type != "cuda":
            raise
        raise OutOfMemory(f"{error}\n{holders(device, {})}") from error
