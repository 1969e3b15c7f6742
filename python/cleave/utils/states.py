"""States of parameters, wherever they are: whole, or the rank's part of them. Each function but the last is collective."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import UsageError
from ..sharded import joined, part_of
from .loading import mapped


def _engine_of(parameter: torch.nn.Parameter, part: bool) -> Any:
    engine = getattr(parameter, "ds_engine", None)
    if engine is None:
        raise UsageError("parameter: does not belong to an engine; give one of engine.module")
    if part and (stage := engine.zero_optimization_stage()) != 3:
        raise UsageError(
            f"parameter: ranks have no parts of it at ZeRO stage {stage} (expected stage 3); use the function for whole values"
        )
    return engine


def _whole(engine: Any, parameter: Any, part: torch.Tensor) -> torch.Tensor:
    """What the parts of all ranks are together."""
    shape, ranks = torch.Size(parameter.ds_shape), range(0, engine.world_size, engine.world_size // engine.dp_world_size)
    if part.numel() != (each := -(-shape.numel() // len(ranks))):
        raise UsageError(
            f"{engine.name_of(parameter)} {list(shape)}: wrong size of a rank's part (got {part.numel()} elements, expected {each})"
        )
    return joined(part.detach().to("cpu", torch.float32).reshape(-1), shape, ranks)


def _reads(kind: str, part: bool) -> Callable[..., torch.Tensor | None]:
    """In fp32, on the host; None of what is not trained. A part is of equal ones, the last of them filled up with zeros."""

    def read(param: torch.nn.Parameter, optim_state_key: str = kind) -> torch.Tensor | None:
        engine = _engine_of(param, part)
        name = engine.name_of(param)
        if not param.requires_grad:
            return None
        whole = engine.gradient_of(name) if kind == "gradient" else engine.parameters_of(name, optim_state_key)
        return part_of(whole, engine._data_rank, engine.dp_world_size) if part and whole is not None else whole

    return read


def _writes(kind: str, part: bool) -> Callable[..., None]:
    """By the same value on every rank; or by the part of each."""

    def write(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str = kind) -> None:
        engine = _engine_of(param, part)
        engine.set_parameter(engine.name_of(param), _whole(engine, param, value) if part else value, optim_state_key)

    return write


safe_get_full_fp32_param, safe_get_local_fp32_param = _reads("master", False), _reads("master", True)
safe_set_full_fp32_param, safe_set_local_fp32_param = _writes("master", False), _writes("master", True)
# Of the optimizer, by its name in a checkpoint, such as exp_avg.
safe_get_full_optimizer_state, safe_get_local_optimizer_state = _reads("", False), _reads("", True)
safe_set_full_optimizer_state, safe_set_local_optimizer_state = _writes("", False), _writes("", True)
# Of the step's loss, averaged, without the loss scale: between the last backward and engine.step(), else None. The norm, clipping
# and the update are of what it is set to.
safe_get_full_grad, safe_get_local_grad = _reads("gradient", False), _reads("gradient", True)
safe_set_full_grad, safe_set_local_grad = _writes("gradient", False), _writes("gradient", True)


def safe_update_full_grad_vectorized(param_list: Iterable[torch.nn.Parameter], update_func: Callable[..., torch.Tensor]) -> None:
    """Overwrites each gradient by update_func(gradient, parameter); what is not trained has none."""
    for param in param_list:
        if (gradient := safe_get_full_grad(param)) is not None:
            safe_set_full_grad(param, update_func(gradient, param))


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """The same structure with tensors that own just what they show, so that torch.save writes no more; equal ones stay one."""
    clones: dict[tuple[Any, ...], torch.Tensor] = {}

    def clone(value: torch.Tensor) -> torch.Tensor:
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in clones:
            clones[key] = value.detach().to(device, copy=True)
        return clones[key]

    return mapped(item, lambda value: isinstance(value, torch.Tensor), clone)
