"""First values of parameters and buffers on torch's meta device."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .errors import UsageError


def without_values(module: torch.nn.Module) -> list[str]:
    """Returns the names of parameters and buffers on the meta device."""
    every = (*module.named_parameters(), *module.named_buffers())
    return [name for name, tensor in every if tensor.is_meta and getattr(tensor, "ds_shard", None) is None]


class Materialized:
    """Gives the modules of a model their first values in host memory, one by one, as the engine asks for them.

    A module with tensors on the meta device draws its values by `reset_parameters`, or by `_init_weights` of a transformers model that
    contains it. Parameters keep their identity, so optimizers stay valid.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._owner_of: dict[int, tuple[str, torch.nn.Module]] = {}
        self._draws: dict[torch.nn.Module, Callable[[], Any] | None] = {}
        self._done: set[torch.nn.Module] = set()
        if not without_values(model):
            return
        owners = [owner for owner in model.modules() if hasattr(owner, "_init_weights")]
        for owner in owners:  # the innermost comes last
            for below in owner.modules():
                self._draws[below] = functools.partial(owner._init_weights, below)  # type: ignore[arg-type, operator, misc]
        for path, module in model.named_modules():
            if hasattr(module, "reset_parameters"):
                self._draws.setdefault(module, module.reset_parameters)
            for parameter in module.parameters(recurse=False):
                self._owner_of.setdefault(id(parameter), (path, module))

    def buffers(self, model: torch.nn.Module) -> None:
        """Gives values to the modules with buffers on the meta device."""
        for path, module in model.named_modules():
            if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
                self._draw(path, module)

    def parameter(self, parameter: torch.nn.Parameter) -> None:
        """Gives values to the module of a parameter if it has none."""
        if parameter.is_meta and id(parameter) in self._owner_of:
            self._draw(*self._owner_of[id(parameter)])

    def _draw(self, path: str, module: torch.nn.Module) -> None:
        if module in self._done:
            return
        self._done.add(module)
        fresh = _on_host(module)
        draw = self._draws.get(module)
        if draw is not None:
            with torch.no_grad():
                draw()
        for name, tensor in fresh:
            if draw is None or _is_missing(tensor):
                how = "no reset_parameters" if draw is None else "an initialization that leaves it out"
                raise UsageError(
                    f"{path}.{name}: on the meta device, and {type(module).__name__} has {how}; define reset_parameters there, or create "
                    "the model on a CPU or inside zero.Init"
                )


def _on_host(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Replaces the direct tensors of a module on the meta device by marked tensors in host memory, and returns them."""
    fresh: list[tuple[str, torch.Tensor]] = []
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.is_meta:
            made = torch.nn.Parameter(_empty(parameter), parameter.requires_grad)
            made.__dict__.update(parameter.__dict__)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.utils.swap_tensors(parameter, made)
            fresh.append((name, parameter))
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_meta:
            module._buffers[name] = filled = _empty(buffer)
            fresh.append((name, filled))
    return fresh


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, _mark(like.dtype), device="cpu")


def _mark(dtype: torch.dtype) -> Any:
    """Returns the value of elements that no initialization has written."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _is_missing(tensor: torch.Tensor) -> bool:
    if tensor.dtype in (torch.bool, torch.uint8):
        return False
    mark = _mark(tensor.dtype)
    return bool((tensor != tensor if mark != mark else tensor == mark).any())
