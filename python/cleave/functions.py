"""Custom autograd functions with gathered parameters, as at ZeRO stage 3.

Autograd saves positions of gathered parameters (residency.py). Python functions see more than autograd: `ctx.saved_tensors` returns the
parameter itself with its ZeRO attributes, as without an engine, and parameters that a function keeps as attributes of `ctx` are gathered
before its backward. Both replace members of torch's backward-node class while an engine gathers parameters.
"""

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from .residency import Residency

_residencies: "weakref.WeakSet[Residency]" = weakref.WeakSet()
_NODES: Any = BackwardCFunction
_saved: Any = torch._C._FunctionBase.saved_tensors
_apply: Any = _NODES.apply


def _parameter_of(tensor: Any) -> Any:
    found = (residency.parameter_at(tensor) for residency in _residencies) if isinstance(tensor, torch.Tensor) else ()
    return next((parameter for parameter in found if parameter is not None), tensor)


def _saved_tensors(context: Any) -> tuple[Any, ...]:
    return tuple(map(_parameter_of, _saved.__get__(context)))


def _gathers_and_applies(context: Any, *args: Any) -> Any:
    if kept := vars(context).values():
        for residency in list(_residencies):
            residency.gather_kept(kept)
    return _apply(context, *args)


def watch(residency: "Residency") -> None:
    """Adds an engine that gathers parameters."""
    _residencies.add(residency)
    _NODES.saved_tensors, _NODES.apply = property(_saved_tensors), _gathers_and_applies


def leave(residency: "Residency") -> None:
    """Removes an engine; the last one restores torch's class."""
    _residencies.discard(residency)
    if not _residencies and "saved_tensors" in vars(_NODES):
        del _NODES.saved_tensors
        _NODES.apply = _apply
