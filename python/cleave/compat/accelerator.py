"""The device of the ranks, with the interface of `deepspeed.get_accelerator()`."""

import contextlib
import functools
import os
import resource
from collections.abc import Callable
from typing import Any

import torch


def _resident(device_index: Any = None) -> int:
    """Returns the bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _peak(device_index: Any = None) -> int:
    return max(_resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _says(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _gpu(device_index: Any = None) -> Any:
    return torch.cuda.get_device_properties(torch.cuda.current_device() if device_index is None else device_index)


_ON_BOTH: dict[str, Any] = {
    "is_fp16_supported": _says(True),
    "is_fp64_supported": _says(True),
    "supported_dtypes": _says([torch.float, torch.half, torch.bfloat16]),
    "prefer_triton_grouped_mm": _says(False),
    "pin_memory_alignment": _says(0),
    "export_envs": _says([]),
    "get_compile_backend": _says("inductor"),
    "is_pinned": lambda tensor: tensor.is_pinned(),
    "unpin_memory": lambda tensor: None,
}
# Names that torch.cpu lacks; then those that torch.cuda lacks.
_ON_CPU: dict[str, Any] = {
    **_ON_BOTH,
    "_name": "cpu",
    "device_name": _says("cpu"),
    "current_device_name": _says("cpu"),
    "communication_backend_name": _says("gloo"),
    "is_bf16_supported": _says(True),
    "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1"))),
    "device": lambda device_index=None: contextlib.nullcontext(),
    **dict.fromkeys(("manual_seed", "manual_seed_all"), torch.manual_seed),
    "initial_seed": torch.initial_seed,
    "default_generator": lambda device_index=None: torch.default_generator,
    "random": lambda: torch.random,
    **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached"), _resident),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), _peak),
    "memory_stats": lambda device_index=None: {"allocated_bytes.all.current": _resident(), "allocated_bytes.all.peak": _peak()},
    "total_memory": lambda device_index=None: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    "available_memory": lambda device_index=None: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"),
    **dict.fromkeys(("empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), _says(None)),
    **dict.fromkeys(("range_push", "range_pop", "default_stream", "create_graph", "replay_graph"), _says(None)),
    "capture_to_graph": lambda graph, pool=None, stream=None: contextlib.nullcontext(),
    **dict.fromkeys(("is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure"), _says(True)),
    **dict.fromkeys(("is_triton_supported", "is_current_stream_capturing"), _says(False)),
    "lazy_call": lambda callback: callback(),
    "get_rng_state": lambda device_index=None: torch.get_rng_state(),
    "set_rng_state": lambda state, device_index=None: torch.set_rng_state(state),
    "pin_memory": lambda tensor, align_bytes=1: tensor,
    "on_accelerator": lambda tensor: tensor.device.type == "cpu",
    "visible_devices_envs": _says(["CUDA_VISIBLE_DEVICES"]),
    **{f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in ("BFloat16", "Byte", "Double", "Float", "Half", "Int", "Long")},
}
_ON_GPU: dict[str, Any] = {
    **_ON_BOTH,
    "_name": "cuda",
    "device_name": lambda device_index=None: "cuda" if device_index is None else f"cuda:{device_index}",
    "current_device_name": lambda: f"cuda:{torch.cuda.current_device()}",
    "communication_backend_name": _says("nccl"),
    "default_generator": lambda device_index: torch.cuda.default_generators[device_index],
    "random": lambda: torch.random,
    "total_memory": lambda device_index=None: _gpu(device_index).total_memory,
    "available_memory": lambda device_index=None: torch.cuda.mem_get_info(device_index)[0],
    **dict.fromkeys(("is_synchronized_device", "use_host_timers", "resolves_data_dependency", "handles_memory_backpressure"), _says(False)),
    "is_triton_supported": lambda: _gpu().major >= 8,
    "range_push": lambda msg, domain=None, category=None: torch.cuda.nvtx.range_push(msg),
    "range_pop": lambda domain=None: torch.cuda.nvtx.range_pop(),
    "lazy_call": lambda callback: torch.cuda._lazy_call(callback),
    "create_graph": lambda: torch.cuda.CUDAGraph(),
    "capture_to_graph": lambda graph, pool=None, stream=None: torch.cuda.graph(graph, pool, stream),
    "replay_graph": lambda graph: graph.replay(),
    "pin_memory": lambda tensor, align_bytes=1: tensor.pin_memory(),
    "on_accelerator": lambda tensor: tensor.is_cuda,
    "visible_devices_envs": _says(["CUDA_VISIBLE_DEVICES"]),
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
