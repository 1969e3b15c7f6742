"""Activation checkpointing under DeepSpeed's names: torch's, because the engine gathers weights again for either kind."""

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
    """Accepted: what is kept is not partitioned (nobody shares a module's layers) and not copied together."""
    global _configured
    if checkpoint_in_cpu and torch.cuda.is_available():
        raise NotBuilt("checkpoint_in_cpu: not supported; use torch.autograd.graph.save_on_cpu around the call of the model")
    _configured = True


def is_configured() -> bool:
    """Whether configure() was called."""
    return _configured


def reset() -> None:
    """Nothing: there are no buffers that outlive a step."""


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Calls the function and keeps its arguments only; the backward calls it again."""
    return _torch.checkpoint(function, *args, use_reentrant=True)


non_reentrant_checkpoint = checkpoint


def get_cuda_rng_tracker() -> Any:
    """Something with fork(), in which nothing changes: torch's checkpointing restores random states, and ranks do not share layers."""
    return types.SimpleNamespace(fork=lambda name="": contextlib.nullcontext())


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seeds this rank."""
    torch.manual_seed(seed)
