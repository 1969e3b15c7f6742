"""Exceptions of the engine, one class per exit code of the command line."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar


class CleaveError(RuntimeError):
    """Base class of all errors; the message states the problem, the expected value and the action.

    `exit_code` is the exit code of the command line for this error.
    """

    exit_code = 1


class UsageError(CleaveError, ValueError, AssertionError):
    """Invalid configuration or argument; nothing was started. DeepSpeed raises ValueError or AssertionError in these cases."""


class OutOfMemory(CleaveError, MemoryError):
    """The plan does not fit in memory; the message contains the memory table."""


class CheckpointError(CleaveError):
    """The checkpoint is missing, damaged or of another model."""


class TrainingError(CleaveError):
    """Training cannot continue: gradients are not finite, or the loss scale is at its minimum."""


class RankLost(CleaveError):
    """Another rank ended, or did not arrive before the deadline."""


class NotBuilt(CleaveError, NotImplementedError):
    """A DeepSpeed name or option that is not supported; the message says what to use instead."""


class StepOrderError(CleaveError, AssertionError):
    """forward, backward and step were called in an invalid order."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _order_of(name: str) -> str:
    if name in ("backward", "step"):
        return (
            "all ranks must call engine.backward and engine.step equally often, with the same accumulation boundaries "
            "(gradient_accumulation_steps, engine.set_gradient_accumulation_boundary)"
        )
    return f"call engine.{name} on all ranks, in the same order as engine.backward and engine.step"


def names_the_call(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds the name of a collective method to its error if other ranks are, or may be, in another collective. They name theirs."""

    @functools.wraps(call)
    def named(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return call(*args, **kwargs)
        except CleaveError as error:
            if "ranks make different calls" in str(error):
                error.args = (f"engine.{call.__name__}: {error}; {_order_of(call.__name__)}",)
            elif isinstance(error, RankLost):
                error.args = (f"engine.{call.__name__}: {error}",)
            raise

    return named


def action_for(error: BaseException) -> str:
    """Returns an action to add to an error of torch about a parameter that a rank has only a part of, else an empty string."""
    if "more than one element of the written-to tensor" not in str(error):
        return ""
    return (
        " If it is a parameter at ZeRO stage 3, change it inside zero.GatheredParameters with modifier_rank, or with "
        "engine.load_module_state_dict or engine.set_parameter"
    )


_BY_CODE: dict[int, type[CleaveError]] = {2: UsageError, 3: OutOfMemory, 4: CheckpointError, 5: TrainingError, 6: RankLost}
for _code, _kind in _BY_CODE.items():
    _kind.exit_code = _code
NotBuilt.exit_code = UsageError.exit_code
STOPPED = 75  # exit code after a stop on request: run the same command again


def error_of(code: int, message: str) -> CleaveError:
    """Returns the exception for an exit code of the native library."""
    return _BY_CODE.get(code, CleaveError)(message)
