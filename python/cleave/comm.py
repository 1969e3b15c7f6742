"""`torch.distributed` with DeepSpeed's additions: the start of the job, and the rank within the host."""

from typing import Any

import torch.distributed as _dist
from torch.distributed import is_initialized  # noqa: F401

from . import compat
from . import job as _job
from .api import init_distributed  # noqa: F401
from .errors import NotBuilt


def get_local_rank() -> int:
    """Returns the rank of this process among the ranks of its host."""
    return int(_job.current().facts()["local_rank"])


def has_all_gather_into_tensor() -> bool:
    """Returns True."""
    return True


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> None:
    """Prints the table of `comms_logger` of each engine on rank 0, from its first step up to now.

    Args:
        show_straggler: not supported.
        return_dict: not supported.
    """
    if show_straggler or return_dict:
        raise NotBuilt("log_summary: show_straggler and return_dict are not supported; set wall_clock_breakdown for times of all ranks")
    tables = [monitor.collectives() for monitor in _job.reports] if _job.rank() == 0 else []
    for table in filter(None, tables):
        print(table, flush=True)


allgather_fn = _dist.all_gather_into_tensor
"""Same as `torch.distributed.all_gather_into_tensor`."""


def __getattr__(name: str) -> Any:
    if hasattr(_dist, name):
        return getattr(_dist, name)
    return compat.name_of("comm", name)
