"""CUDA streams of torch."""

from collections.abc import Callable

import torch

from .errors import StepOrderError


def current(device: torch.device) -> Callable[[], int] | None:
    """Returns a function that returns the CUDA stream of the calling thread on a device; None for a CPU.

    Autograd calls hooks with the stream of the forward, on its own threads. The function raises StepOrderError while the stream captures.
    """
    if device.type != "cuda":
        return None
    torch.cuda.init()
    index = device.index or 0

    def stream() -> int:
        if torch._C._cuda_isCurrentStreamCapturing():
            raise StepOrderError(
                "engine: called while the current CUDA stream captures a graph, which cannot record the work of the engine; call it "
                "outside of torch.cuda.graph, and capture only modules and functions without its parameters"
            )
        return torch._C._cuda_getCurrentRawStream(index)

    return stream
