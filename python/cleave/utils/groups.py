"""Groups of ranks. Without a pipeline, all ranks are one data-parallel group."""

from collections.abc import Callable
from typing import Any

import torch.distributed as _dist

from .. import compat as _compat
from .. import job as _job
from ..job import world_size as get_world_size

mpu: Any = None  # grid of the current pipeline


def _of_data(what: str, without: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: getattr(mpu, f"get_data_parallel_{what}")() if mpu else without()


get_data_parallel_world_size = _get_data_parallel_world_size = _of_data("world_size", get_world_size)
"""Returns the number of data-parallel ranks."""
get_data_parallel_rank = _get_data_parallel_rank = _of_data("rank", _job.rank)
"""Returns the index of this rank among the data-parallel ranks."""
get_data_parallel_group = _get_data_parallel_group = _of_data("group", lambda: _dist.group.WORLD)
"""Returns torch's group of the data-parallel ranks."""
get_model_parallel_world_size = get_tensor_model_parallel_world_size = get_sequence_parallel_world_size = lambda: 1
_get_model_parallel_world_size = _get_sequence_parallel_world_size = get_model_parallel_world_size
"""Returns 1: a PyTorch module has no tensor or sequence parallelism."""
get_model_parallel_rank = get_tensor_model_parallel_rank = get_sequence_parallel_rank = lambda: 0
_get_model_parallel_rank = _get_sequence_parallel_rank = get_model_parallel_rank
"""Returns 0."""


def __getattr__(name: str) -> Any:
    return _compat.name_of("utils.groups", name)
