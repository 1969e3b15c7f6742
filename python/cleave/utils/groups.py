"""Ranks that share something. Without a pipeline every rank has the module whole and data of its own: there is one group."""

from typing import Any

from .. import job
from ..job import world_size as get_world_size

mpu: Any = None  # of the pipeline that there is


def get_data_parallel_world_size() -> int:
    """Ranks with data of their own."""
    return int(mpu.get_data_parallel_world_size()) if mpu else get_world_size()


def get_data_parallel_rank() -> int:
    """Of this one among them."""
    return int(mpu.get_data_parallel_rank()) if mpu else job.rank()


def get_data_parallel_group() -> Any:
    """torch's group of them."""
    import torch.distributed as dist

    return mpu.get_data_parallel_group() if mpu else dist.group.WORLD


def get_model_parallel_world_size() -> int:
    """Ranks that share a module's layers: this one alone."""
    return 1


def get_model_parallel_rank() -> int:
    """Of this one among them."""
    return 0


get_tensor_model_parallel_world_size = get_sequence_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_sequence_parallel_rank = get_model_parallel_rank
