"""The device that ranks compute on, as scripts ask for it."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

# What torch.cuda has and torch.cpu lacks.
_ON_CPU: dict[str, Callable[..., Any]] = {
    "is_bf16_supported": lambda: True,
    "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1"))),
    "manual_seed": torch.manual_seed,
    "random": lambda: torch.random,
    "empty_cache": lambda: None,
    **dict.fromkeys(("memory_allocated", "max_memory_allocated"), lambda device_index=None: 0),
    "get_rng_state": lambda device_index=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device_index=None: torch.set_rng_state(state),
}


class Accelerator:
    """What get_accelerator() returns: torch's module of the device, and its name."""

    def __init__(self) -> None:
        self._on_gpu = torch.cuda.is_available()
        self._torch: Any = torch.cuda if self._on_gpu else torch.cpu

    def device_name(self, device_index: int | None = None) -> str:
        name = "cuda" if self._on_gpu else "cpu"
        return name if device_index is None or not self._on_gpu else f"{name}:{device_index}"

    def current_device_name(self) -> str:
        return f"cuda:{torch.cuda.current_device()}" if self._on_gpu else "cpu"

    def communication_backend_name(self) -> str:
        return "nccl" if self._on_gpu else "gloo"

    def is_fp16_supported(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if not self._on_gpu and name in _ON_CPU:
            return _ON_CPU[name]
        if hasattr(self._torch, name):
            return getattr(self._torch, name)
        raise AttributeError(f"the accelerator of {self.device_name()} has no {name}, nor has {self._torch.__name__}")


@functools.cache
def get_accelerator() -> Accelerator:
    """The one of this process."""
    return Accelerator()
