"""The device of the ranks, with the interface of `deepspeed.get_accelerator()`."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

# Names that torch.cpu lacks; then those that torch.cuda lacks.
_ON_CPU: dict[str, Callable[..., Any]] = {
    "device_name": lambda device_index=None: "cpu",
    "current_device_name": lambda: "cpu",
    "communication_backend_name": lambda: "gloo",
    "is_fp16_supported": lambda: True,
    "is_bf16_supported": lambda: True,
    "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1"))),
    "manual_seed": torch.manual_seed,
    "random": lambda: torch.random,
    "empty_cache": lambda: None,
    **dict.fromkeys(("memory_allocated", "max_memory_allocated"), lambda device_index=None: 0),
    "get_rng_state": lambda device_index=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device_index=None: torch.set_rng_state(state),
    "pin_memory": lambda tensor, align_bytes=1: tensor,
}
_ON_GPU: dict[str, Callable[..., Any]] = {
    "device_name": lambda device_index=None: "cuda" if device_index is None else f"cuda:{device_index}",
    "current_device_name": lambda: f"cuda:{torch.cuda.current_device()}",
    "communication_backend_name": lambda: "nccl",
    "is_fp16_supported": lambda: True,
    "pin_memory": lambda tensor, align_bytes=1: tensor.pin_memory(),
}


class Accelerator:
    """The torch module of the device (`torch.cuda` or `torch.cpu`) with additional names."""

    def __init__(self) -> None:
        self._own, self._torch = (_ON_GPU, torch.cuda) if torch.cuda.is_available() else (_ON_CPU, torch.cpu)

    def __getattr__(self, name: str) -> Any:
        if (found := self._own.get(name) or getattr(self._torch, name, None)) is not None:
            return found
        raise AttributeError(f"accelerator {self.device_name()}: has no {name}, and neither has {self._torch.__name__}")


@functools.cache
def get_accelerator() -> Accelerator:
    """Returns the accelerator of this process."""
    return Accelerator()
