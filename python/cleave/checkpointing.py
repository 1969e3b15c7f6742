"""Activation checkpointing with DeepSpeed's names, by `torch.utils.checkpoint`. The engine gathers weights again for its reentrant and
non-reentrant variants."""

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import checkpoint as _torch

from .errors import NotBuilt

_configured = False


def configure(
    mpu_: Any = None,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Accepts DeepSpeed's options. Activations are neither partitioned nor copied into one buffer.

    Raises:
        NotBuilt: `checkpoint_in_cpu` on a GPU.
    """
    global _configured
    if checkpoint_in_cpu and torch.cuda.is_available():
        raise NotBuilt("checkpoint_in_cpu: not supported; use torch.autograd.graph.save_on_cpu around the call of the model")
    _configured = True


def is_configured() -> bool:
    """Returns True after a call of `configure`."""
    return _configured


def reset() -> None:
    """Has no effect: no buffers outlive a step."""


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Calls the function and saves only its arguments; the backward calls it again."""
    return _torch.checkpoint(function, *args, use_reentrant=True)


def non_reentrant_checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """The same as `checkpoint`, and also computes gradients of weights if no argument requires a gradient."""
    return _torch.checkpoint(function, *args, use_reentrant=False)


def get_cuda_rng_tracker() -> Any:
    """Returns an object with a `fork()` that has no effect: torch's checkpointing restores random states, and ranks do not share layers."""
    return types.SimpleNamespace(fork=lambda name="": contextlib.nullcontext())


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seeds torch on this rank."""
    torch.manual_seed(seed)
