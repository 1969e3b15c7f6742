"""torch.distributed under the name that scripts use, with the start of the job."""

from typing import Any

import torch.distributed as _dist

from .api import init_distributed  # noqa: F401


def is_initialized() -> bool:
    """Whether torch has its process group."""
    return bool(_dist.is_available() and _dist.is_initialized())


def get_local_rank() -> int:
    """Of this rank among those of its host."""
    from . import job

    return int(job.current().facts()["local_rank"])


def __getattr__(name: str) -> Any:
    if hasattr(_dist, name):
        return getattr(_dist, name)
    raise AttributeError(f"cleave.comm has no {name}, nor has torch.distributed")
