"""The device that ranks compute on, as scripts ask for it."""

import os
from typing import Any

import torch


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

    def device_count(self) -> int:
        return torch.cuda.device_count() if self._on_gpu else int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1")))

    def communication_backend_name(self) -> str:
        return "nccl" if self._on_gpu else "gloo"

    def is_available(self) -> bool:
        return True

    def is_bf16_supported(self) -> bool:
        return not self._on_gpu or torch.cuda.is_bf16_supported()

    def is_fp16_supported(self) -> bool:
        return True

    def empty_cache(self) -> None:
        if self._on_gpu:
            torch.cuda.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return int(torch.cuda.memory_allocated(device_index)) if self._on_gpu else 0

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return int(torch.cuda.max_memory_allocated(device_index)) if self._on_gpu else 0

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.cuda.get_rng_state(device_index or 0) if self._on_gpu else torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device_index: int | None = None) -> None:
        if self._on_gpu:
            torch.cuda.set_rng_state(state, device_index or 0)
        else:
            torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._torch, name):
            return getattr(self._torch, name)
        raise AttributeError(f"the accelerator of {self.device_name()} has no {name}, nor has {self._torch.__name__}")


_accelerator: Accelerator | None = None


def get_accelerator() -> Accelerator:
    """The one of this process."""
    global _accelerator
    _accelerator = _accelerator or Accelerator()
    return _accelerator
