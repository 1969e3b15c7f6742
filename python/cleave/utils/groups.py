"""Groups of ranks: data-parallel and tensor-parallel ones. Without a pipeline and tensor parallelism, all ranks are data-parallel.

Consecutive ranks form a tensor-parallel group, which reads the same data. With several engines, the functions are about the last one.
"""

import datetime as _datetime
from collections.abc import Callable
from typing import Any

import torch.distributed as _dist

from .. import compat as _compat
from .. import job as _job
from ..errors import UsageError as _UsageError

mpu: Any = None  # grid of the current pipeline
_tensor = 1  # tensor-parallel size of the last engine
_made: dict[int, tuple[Any, Any]] = {}  # torch's tensor-parallel and data-parallel group of this rank, by size


def use_tensor_parallel(size: int, timeout_s: float) -> None:
    """Makes the groups for a tensor-parallel size, with this deadline of their collectives. Collective at the first use of a size."""
    global _tensor
    if size > 1 and size not in _made and _dist.is_initialized():
        world, me = _job.world_size(), _job.rank()
        tensor = [list(range(first, first + size)) for first in range(0, world, size)]
        data = [list(range(first, world, size)) for first in range(size)]
        # All ranks make all groups, in the same order.
        wait = _datetime.timedelta(seconds=timeout_s)
        mine = [[_dist.new_group(ranks, timeout=wait) for ranks in kind] for kind in (tensor, data)]
        _made[size] = mine[0][me // size], mine[1][me % size]
    _tensor = size


def groups_of(size: int) -> tuple[Any, Any]:
    """Returns torch's tensor-parallel and data-parallel group of this rank for a tensor-parallel size of an engine.

    Raises:
        UsageError: the job has no process group of torch.
    """
    if size not in _made:
        raise _UsageError("tensor_parallel.autotp_size: needs torch's process group; leave dist_init_required out of initialize()")
    return _made[size]


def _of_data(what: str, without: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: getattr(mpu, f"get_data_parallel_{what}")() if mpu else without()


get_data_parallel_world_size = _get_data_parallel_world_size = _of_data("world_size", lambda: _job.world_size() // _tensor)
"""Returns the number of data-parallel ranks."""
get_data_parallel_rank = _get_data_parallel_rank = _of_data("rank", lambda: _job.rank() // _tensor)
"""Returns the index of this rank among the data-parallel ranks."""
get_data_parallel_group = _get_data_parallel_group = _of_data("group", lambda: groups_of(_tensor)[1] if _tensor > 1 else _dist.group.WORLD)
"""Returns torch's group of the data-parallel ranks."""
get_world_size = _job.world_size
"""Returns the number of ranks."""


def get_tensor_model_parallel_world_size() -> int:
    """Returns the tensor-parallel size, 1 without tensor parallelism."""
    return _tensor


def get_tensor_model_parallel_rank() -> int:
    """Returns the index of this rank in its tensor-parallel group."""
    return _job.rank() % _tensor


def get_tensor_model_parallel_src_rank() -> int:
    """Returns the global rank of the first rank of this tensor-parallel group."""
    return _job.rank() // _tensor * _tensor


def get_tensor_model_parallel_group() -> Any:
    """Returns torch's group of the tensor-parallel ranks.

    Raises:
        UsageError: the last engine has no tensor parallelism, or the job no process group of torch.
    """
    if _tensor == 1:
        raise _UsageError("groups: the last engine has no tensor parallelism; set tensor_parallel.autotp_size above 1")
    return groups_of(_tensor)[0]


get_model_parallel_world_size = _get_model_parallel_world_size = get_tensor_model_parallel_world_size
get_model_parallel_rank = _get_model_parallel_rank = get_tensor_model_parallel_rank
get_model_parallel_group = _get_model_parallel_group = get_tensor_model_parallel_group
get_sequence_parallel_world_size = _get_sequence_parallel_world_size = lambda: 1
"""Returns 1: a PyTorch module has no sequence parallelism."""
get_sequence_parallel_rank = _get_sequence_parallel_rank = lambda: 0
"""Returns 0."""


def __getattr__(name: str) -> Any:
    return _compat.name_of("utils.groups", name)
