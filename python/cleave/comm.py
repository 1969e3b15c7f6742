"""`torch.distributed` with DeepSpeed's additions: the start of the job, and the rank within the host."""

from typing import Any

import torch.distributed as _dist
from torch.distributed import is_initialized  # noqa: F401

from . import compat
from . import job as _job
from .api import init_distributed  # noqa: F401


def get_local_rank() -> int:
    """Returns the rank of this process among the ranks of its host."""
    return int(_job.current().facts()["local_rank"])


def has_all_gather_into_tensor() -> bool:
    """Returns True."""
    return True


allgather_fn = _dist.all_gather_into_tensor
"""Same as `torch.distributed.all_gather_into_tensor`."""


def __getattr__(name: str) -> Any:
    if hasattr(_dist, name):
        return getattr(_dist, name)
    return compat.name_of("comm", name)
