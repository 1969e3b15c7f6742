"""Parameters, gradients and optimizer state: the whole tensor, or a rank's part at stage 3.

`safe_get_...` functions have the argument `param`, `safe_set_...` functions `param` and `value`; those of optimizer states also have
`optim_state_key`. Getters return None for frozen parameters. The parts of all ranks have equal sizes; the last is padded with zeros.

The functions are collective, except `clone_tensors_for_torch_save`. Values are fp32 in host memory. With tensor parallelism, they are
this rank's part of a split parameter; `engine.parameters_of` and `engine.set_parameter` have the whole one.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import NotBuilt, UsageError
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
    """Joins the parts of all ranks."""
    shape, ranks = torch.Size(parameter.ds_shape), range(0, engine.world_size, engine.world_size // engine.dp_world_size)
    if part.numel() != (each := -(-shape.numel() // len(ranks))):
        raise UsageError(
            f"{engine.name_of(parameter)} {list(shape)}: wrong size of a rank's part (got {part.numel()} elements, expected {each})"
        )
    return joined(part.detach().to("cpu", torch.float32).reshape(-1), shape, ranks)


def _reads(kind: str, part: bool) -> Callable[..., torch.Tensor | None]:
    """Returns a function that reads a state."""

    def read(param: torch.nn.Parameter, optim_state_key: str = kind) -> torch.Tensor | None:
        engine = _engine_of(param, part)
        name = engine.name_of(param)
        if not param.requires_grad:
            return None
        whole = engine.gradient_of(name) if kind == "gradient" else engine.parameters_of(name, optim_state_key)
        if whole is not None and (cut := engine.cut_of(param)):
            whole = cut.part_of(whole)
        return part_of(whole, engine._data_rank, engine.dp_world_size) if part and whole is not None else whole

    return read


def _writes(kind: str, part: bool) -> Callable[..., None]:
    """Returns a function that overwrites a state by the same whole value on all ranks, or by the part of each."""

    def write(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str = kind) -> None:
        engine = _engine_of(param, part)
        cut = engine.cut_of(param)
        if part and cut and cut.extents:
            raise NotBuilt(
                f"{engine.name_of(param)}: split for tensor parallelism, so safe_set_local_... cannot change it; use safe_set_full_..."
            )
        whole = _whole(engine, param, value) if part else cut.placed(value) if cut else value
        engine.set_parameter(engine.name_of(param), whole, optim_state_key)

    return write


safe_get_full_fp32_param = _reads("master", False)
"""Returns the value of a parameter."""
safe_get_local_fp32_param = _reads("master", True)
"""Returns this rank's part of the value at stage 3."""
safe_set_full_fp32_param = _writes("master", False)
"""Overwrites the value of a parameter."""
safe_set_local_fp32_param = _writes("master", True)
"""Overwrites this rank's part of the value at stage 3."""
safe_get_full_optimizer_state = _reads("", False)
"""Returns an optimizer state by its name in checkpoints, such as exp_avg."""
safe_get_local_optimizer_state = _reads("", True)
"""Returns this rank's part of an optimizer state at stage 3."""
safe_set_full_optimizer_state = _writes("", False)
"""Overwrites an optimizer state by its name in checkpoints."""
safe_set_local_optimizer_state = _writes("", True)
"""Overwrites this rank's part of an optimizer state at stage 3."""
safe_get_full_grad = _reads("gradient", False)
"""Returns the gradient of the step's loss, averaged and without the loss scale, between the last backward and `engine.step()`; otherwise
None."""
safe_get_local_grad = _reads("gradient", True)
"""Returns this rank's part of the gradient at stage 3."""
safe_set_full_grad = _writes("gradient", False)
"""Overwrites the gradient between the last backward and `engine.step()`. Norm, clipping and update use it."""
safe_set_local_grad = _writes("gradient", True)
"""Overwrites this rank's part of the gradient at stage 3."""


def safe_update_full_grad_vectorized(param_list: Iterable[torch.nn.Parameter], update_func: Callable[..., torch.Tensor]) -> None:
    """Overwrites each gradient with update_func(gradient, parameter); frozen parameters are skipped."""
    for param in param_list:
        if (gradient := safe_get_full_grad(param)) is not None:
            safe_set_full_grad(param, update_func(gradient, param))


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """Returns the same structure with tensors that own only their elements, so that `torch.save` writes no more. Equal views stay one
    tensor."""
    clones: dict[tuple[Any, ...], torch.Tensor] = {}

    def clone(value: torch.Tensor) -> torch.Tensor:
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in clones:
            clones[key] = value.detach().to(device, copy=True)
        return clones[key]

    return mapped(item, lambda value: isinstance(value, torch.Tensor), clone)
