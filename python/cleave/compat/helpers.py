"""Small functions and constants with DeepSpeed's names."""

import contextlib
import enum
import functools
import random
from collections.abc import Iterable
from typing import Any

import torch

from ..errors import NotBuilt

TORCH_DISTRIBUTED_DEFAULT_PORT = 29500
LOCAL_RANK, CROSS_RANK, CROSS_SIZE = "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE"
ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER, LAMB_OPTIMIZER, LION_OPTIMIZER = "adagrad", "adam", "adamw", "lamb", "lion"
MUADAM_OPTIMIZER, MUADAMW_OPTIMIZER, MUSGD_OPTIMIZER, MUON_OPTIMIZER = "muadam", "muadamw", "musgd", "muon"
ONEBIT_ADAM_OPTIMIZER, ZERO_ONE_ADAM_OPTIMIZER, ONEBIT_LAMB_OPTIMIZER = "onebitadam", "zerooneadam", "onebitlamb"
DEEPSPEED_OPTIMIZERS = [value for name, value in list(vars().items()) if name.endswith("_OPTIMIZER")]


class OffloadDeviceEnum(str, enum.Enum):
    """Place of offloaded state."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, enum.Enum):
    """Kinds of state that `engine.offload_states` takes."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


def set_random_seed(seed: int) -> None:
    """Seeds the generators of Python, numpy and torch."""
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed % 2**63)


def recursive_getattr(model: Any, module_name: str) -> Any:
    """Returns the submodule or parameter of a dotted name."""
    return functools.reduce(getattr, module_name.split("."), model)


def recursive_setattr(model: Any, module_name: str, module: Any) -> None:
    """Replaces the submodule or parameter of a dotted name."""
    above, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, above) if above else model, name, module)


def split_params_into_different_moe_groups_for_optimizer(param_groups: Any, max_group_size: float | None = None) -> list[Any]:
    """Returns the parameter groups as a list. Experts are ordinary parameters here and stay in their group."""
    return [param_groups] if isinstance(param_groups, dict) else list(param_groups)


def has_moe_layers(m: torch.nn.Module) -> tuple[bool, int]:
    """Returns (False, 0): parallel experts are not supported."""
    return False, 0


def is_moe_param(param: torch.Tensor) -> bool:
    """Returns False: parallel experts are not supported."""
    return False


def is_model_parallel_parameter(p: torch.Tensor) -> bool:
    """Returns True if a parameter is marked as a part of a tensor-parallel one."""
    return bool(getattr(p, "model_parallel", False) or getattr(p, "tensor_model_parallel", False))


@contextlib.contextmanager
def GatherReplacedLayerParams(params: Iterable[Any], module: Any, enabled: bool = True) -> Any:  # noqa: N802
    """Context without effect if no parameter is split for tensor parallelism.

    Raises:
        NotBuilt: a parameter is split.
    """
    if enabled and any(getattr(p, "ds_engine", None) is not None and (cut := p.ds_engine.cut_of(p)) and cut.extents for p in params):
        raise NotBuilt("GatherReplacedLayerParams: not supported; read whole weights by engine.parameters_of or engine.save_16bit_model")
    yield


class ThroughputTimer:
    """Counts of an engine for scripts that print them."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.epoch_count = engine, 0

    @property
    def global_step_count(self) -> int:
        """Number of steps so far."""
        return int(self._engine.global_steps)

    @property
    def batch_size(self) -> int:
        """Samples per step over all ranks."""
        return int(self._engine.train_batch_size())

    def update_epoch_count(self) -> None:
        """Counts an epoch."""
        self.epoch_count += 1

    def start(self) -> None:
        """Has no effect."""

    def stop(self, global_step: bool = False, report_speed: bool = True) -> None:
        """Has no effect."""
