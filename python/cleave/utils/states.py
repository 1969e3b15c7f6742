"""Whole states of parameters, wherever they are. Each function but the last is collective."""

from typing import Any

import torch

from ..errors import UsageError
from .loading import mapped


def _asked(parameter: torch.nn.Parameter, call: str, *values: Any) -> Any:
    engine = getattr(parameter, "ds_engine", None)
    if engine is None:
        raise UsageError("this parameter belongs to no engine; give one of engine.module")
    return getattr(engine, call)(engine.name_of(parameter), *values)


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The value in fp32, on the host."""
    return _asked(param, "parameters_of")  # type: ignore[no-any-return]


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A state of the optimizer by its name in a checkpoint, such as exp_avg."""
    return _asked(param, "parameters_of", optim_state_key)  # type: ignore[no-any-return]


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Overwrites the value by the same on every rank."""
    _asked(param, "set_parameter", value)


def safe_set_full_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    """Overwrites a state of the optimizer by the same on every rank."""
    _asked(param, "set_parameter", value, optim_state_key)


def safe_get_full_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """The gradient of the step's loss, averaged, without the loss scale: between the last backward and engine.step(), else None."""
    return _asked(param, "gradient_of")  # type: ignore[no-any-return]


def safe_set_full_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Overwrites that gradient by the same on every rank: the norm, clipping and the update are of what it is then."""
    _asked(param, "set_parameter", value, "gradient")


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """The same structure with tensors that own just what they show, so that torch.save writes no more; equal ones stay one."""
    clones: dict[tuple[Any, ...], torch.Tensor] = {}

    def clone(value: torch.Tensor) -> torch.Tensor:
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in clones:
            clones[key] = value.detach().to(device, copy=True)
        return clones[key]

    return mapped(item, lambda value: isinstance(value, torch.Tensor), clone)
