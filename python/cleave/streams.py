"""CUDA streams of torch."""

import functools
from collections.abc import Callable

import torch


def current(device: torch.device) -> Callable[[], int] | None:
    """Returns a function that returns the CUDA stream of the calling thread on a device; None for a CPU.

    Autograd calls hooks with the stream of the forward, on its own threads.
    """
    if device.type != "cuda":
        return None
    torch.cuda.init()
    return functools.partial(torch._C._cuda_getCurrentRawStream, device.index or 0)
