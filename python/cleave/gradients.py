"""`parameter.grad` of an engine's parameters: the engine's gradient between the last backward of a step and `engine.step`.

The gradient is averaged over micro-batches and ranks, without the loss scale, before clipping and in the accumulation type. It is memory of
the engine, so `torch.nn.utils.clip_grad_norm_` and other changes take effect in the update. Only stages 0 and 1 have whole gradients.
"""

import enum
import traceback
from typing import Any

import torch

from . import native
from .errors import StepOrderError
from .units import ModuleUnits

OWN: Any = torch.Tensor.grad
"""Descriptor of the gradient that autograd accumulates."""
_READS = "call deepspeed.utils.safe_get_full_grad(parameter)"
_SCALERS = {"torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"}


class Trained(torch.nn.Parameter):
    """A trained parameter of an engine."""

    @property
    def grad(self) -> torch.Tensor | None:
        shown = self.__dict__.get("_shown")
        gradient: torch.Tensor | None = OWN.__get__(self) if shown is None else shown.read(self)
        return gradient

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        shown = self.__dict__.get("_shown")
        if shown is None or not shown.write(self, value):
            OWN.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Parameter containing:\n{self.detach().requires_grad_(self.requires_grad)!r}"


class _At(enum.Enum):
    none, partial, complete, shown = range(4)


class ShownGradients:
    """Gradients of one engine. If a script reads none in its first step, later reads are errors, so that updates can overlap backwards."""

    def __init__(self, job: native.Job, engine: native.NativeEngine, units: ModuleUnits, key: bool | None, hidden: str) -> None:
        """Attaches to the trained parameters.

        Args:
            key: `cleave.visible_gradients`; None: decided in the first step.
            hidden: reason why gradients cannot be shown, or an empty string.
        """
        self._job, self._engine, self._units, self._hidden = job, engine, units, hidden
        self._decides = key is None
        self._at, self._views = _At.none, dict[int, torch.Tensor | None]()
        self._watch(key is not False and not hidden)
        for slot in units.slots():
            if slot.trains and type(slot.parameter) is torch.nn.Parameter:
                slot.parameter.__class__ = Trained
            slot.parameter.__dict__["_shown"] = self

    def _watch(self, watches: bool) -> None:
        self._watches = watches
        if not self._hidden:
            self._engine.wait_with_updates(int(watches))

    def gave(self, last: bool) -> None:
        """Records a backward. last: the gradients of the step are complete."""
        self._at = _At.complete if last else _At.partial

    def discarded(self) -> None:
        """Records that the step has no gradients."""
        self._at = _At.none

    def read(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Returns the gradient as `parameter.grad`. The first read of a step waits until all ranks read or step."""
        own: torch.Tensor | None = OWN.__get__(parameter)
        if self._at is _At.none or own is not None or not parameter.requires_grad:
            return own
        if self._at is _At.complete and self._watches:
            self._agree(True)
        if self._at is not _At.shown:
            raise StepOrderError(f"{self._units.of_parameter[id(parameter)].name}.grad: {self._why()}")
        return self._views[id(parameter)]

    def _why(self) -> str:
        if any(frame.f_globals.get("__name__") in _SCALERS for frame, _ in traceback.walk_stack(None)):
            return (
                "GradScaler reads it, but the engine scales the loss; leave GradScaler out, and set fp16 or torch_autocast in the ds_config"
            )
        if self._hidden:
            return f"{self._hidden}; {_READS}"
        if self._at is _At.partial:
            return f"the gradient is complete only after the last backward of a step; read it there, or inside no_sync {_READS}"
        if self._decides:
            return f"not available, because no rank read a gradient in the first step; set cleave.visible_gradients to on, or {_READS}"
        return f"cleave.visible_gradients is off; set it to on, or {_READS}"

    def write(self, parameter: torch.nn.Parameter, value: torch.Tensor | None) -> bool:
        """Overwrites the gradient of the step. Returns False if there is none."""
        if self._at is _At.none or not parameter.requires_grad:
            return False
        to = self.read(parameter)
        if value is None or to is None:
            name = self._units.of_parameter[id(parameter)].name
            raise StepOrderError(f"{name}.grad: the engine cannot discard a gradient; call engine.step(), or {name}.grad.zero_()")
        to.copy_(value)
        return True

    def _agree(self, reads: bool) -> None:
        """Shows the gradients if any rank reads them. Collective."""
        if self._job.sum([float(reads)])[0] == 0:
            return
        self._engine.show_gradients()
        self._at = _At.shown
        for u, unit in enumerate(self._units.units if not self._views else ()):
            addresses, dtype = self._engine.shown_gradients(u)
            for slot, address in zip(unit.slots, addresses, strict=True):
                view = self._engine.dlpack(address, dtype, tuple(slot.shape)) if unit.trains else None
                self._views[id(slot.parameter)] = None if view is None else torch.from_dlpack(view)

    def is_complete(self) -> bool:
        """Returns True after the last backward of a step."""
        return self._at in (_At.complete, _At.shown)

    def end_step(self) -> None:
        """Call before the update of a step. Collective."""
        if self._watches and self._at is _At.complete:
            self._agree(False)

    def ended(self) -> None:
        """Call after the update of a step."""
        if self._decides and self._watches and self._at is not _At.shown:
            self._watch(False)
        elif self._at is _At.shown:
            self._decides = False
        self._at = _At.none

    def __reduce__(self) -> Any:
        return type(None), ()  # copies of a module have no engine

    def close(self) -> None:
        """Detaches from the parameters, except those that another engine took over."""
        for slot in self._units.slots():
            if slot.parameter.__dict__.get("_shown") is not self:
                continue
            del slot.parameter.__dict__["_shown"]
            if type(slot.parameter) is Trained:
                slot.parameter.__class__ = torch.nn.Parameter  # type: ignore[assignment]
        self._views.clear()
