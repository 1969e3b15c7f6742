"""Ranks that share something. Without a pipeline every rank has the module whole and data of its own: there is one group."""

from collections.abc import Callable
from typing import Any

import torch.distributed as _dist

from .. import job as _job
from ..job import world_size as get_world_size

mpu: Any = None  # of the pipeline that there is


def _of_data(what: str, without: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: getattr(mpu, f"get_data_parallel_{what}")() if mpu else without()


# Of the ranks with data of their own: how many they are, which of them this one is, and torch's group of them.
get_data_parallel_world_size = _of_data("world_size", get_world_size)
get_data_parallel_rank = _of_data("rank", _job.rank)
get_data_parallel_group = _of_data("group", lambda: _dist.group.WORLD)
# Of the ranks that share a module's layers: this one alone.
get_model_parallel_world_size = get_tensor_model_parallel_world_size = get_sequence_parallel_world_size = lambda: 1
get_model_parallel_rank = get_tensor_model_parallel_rank = get_sequence_parallel_rank = lambda: 0
