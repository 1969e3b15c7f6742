"""Custom autograd functions and torch.func with gathered parameters, as at ZeRO stage 3.

Autograd saves positions of gathered parameters (residency.py). Python functions see more than autograd: `ctx.saved_tensors` returns the
parameter itself with its ZeRO attributes, as without an engine, and parameters that a function keeps as attributes of `ctx` are gathered
before its backward. For both, this module replaces members of torch's backward-node class while an engine gathers parameters.

Derivatives of torch.func disable hooks for saved tensors, because hooks see the tensors of its levels. Those of an engine pass on such
tensors unchanged, so they stay enabled.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from .residency import Residency

_residencies: "weakref.WeakSet[Residency]" = weakref.WeakSet()
_NODES: Any = BackwardCFunction
_saved: Any = torch._C._FunctionBase.saved_tensors
_apply: Any = _NODES.apply
_disable: Any = torch.autograd.graph.disable_saved_tensors_hooks
_func: Any = torch._C._functorch
_top: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_tracing: None)  # newer than torch 2.4


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


is_of_level: Callable[[torch.Tensor], bool] = _func.is_functorch_wrapped_tensor
"""Returns True for a tensor of a level of torch.func. It has no memory."""
level: Callable[[], int | None] = _func.maybe_current_level
"""Returns the level of torch.func inside a function that it differentiates or maps, else None."""


def in_derivative() -> bool:
    """Returns True inside a function that torch.func differentiates by a backward."""
    return level() is not None and any(each.key() == _func.TransformType.Grad for each in _func.get_interpreter_stack() or ())


def outside_of_func() -> contextlib.AbstractContextManager[Any]:
    """Context without the levels of torch.func. Operations inside them return tensors without memory."""
    return temporarily_clear_interpreter_stack() if level() is not None else contextlib.nullcontext()


@contextlib.contextmanager
def _disables_others(message: str) -> Iterator[None]:
    top = _top(True)
    ours = top is not None and any(top[0] == residency._pack for residency in _residencies)
    with contextlib.nullcontext() if ours and message.startswith("torch.func") else _disable(message):
        yield


@contextlib.contextmanager
def saving(residency: "Residency") -> Iterator[None]:
    """Context with the hooks of an engine for saved tensors, also where torch.func disabled hooks."""
    disabled = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() if level() is not None else None
    if disabled is not None:
        torch._C._autograd._saved_tensors_hooks_enable()
    try:
        with torch.autograd.graph.saved_tensors_hooks(residency._pack, residency._unpack):
            yield
    finally:
        if disabled is not None:
            torch._C._autograd._saved_tensors_hooks_disable(disabled)


def watch(residency: "Residency") -> None:
    """Adds an engine that gathers parameters."""
    _residencies.add(residency)
    _NODES.saved_tensors, _NODES.apply = property(_saved_tensors), _gathers_and_applies
    torch.autograd.graph.disable_saved_tensors_hooks = _disables_others  # type: ignore[assignment]


def leave(residency: "Residency") -> None:
    """Removes an engine; the last one restores torch's class."""
    _residencies.discard(residency)
    if not _residencies and "saved_tensors" in vars(_NODES):
        del _NODES.saved_tensors
        _NODES.apply = _apply
        torch.autograd.graph.disable_saved_tensors_hooks = _disable
