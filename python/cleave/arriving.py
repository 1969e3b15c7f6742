"""Gradients that autograd accumulates in parameters, on their way to the engine."""

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from . import native
from .errors import StepOrderError
from .gradients import OWN
from .saved_weights import SavedWeights
from .units import Slot
from .views import TORCH_TYPES

_CODES = {dtype: native.DTYPES[name] for name, dtype in TORCH_TYPES.items()}  # gradients have the type of their parameter


def _of_slot(residency: "ArrivingGradients", slot: Slot) -> Callable[[torch.Tensor], None]:
    """Returns the hook of a parameter. Torch hides hooks from the garbage collector, so it keeps neither alive."""
    residency_now, slot_now = weakref.ref(residency), weakref.ref(slot)

    def arrive(parameter: torch.Tensor) -> None:
        if (to := residency_now()) is not None and (its_slot := slot_now()) is not None:
            to._on_gradient(its_slot, parameter)

    return arrive


def _forget_gradient(parameter: torch.Tensor) -> None:
    """Removes the gradient of a parameter that no engine trains."""
    parameter.grad = None


class ArrivingGradients(SavedWeights):
    """Gives the engine the gradients of a unit when the last one has arrived."""

    training: ClassVar[weakref.WeakSet["ArrivingGradients"]] = weakref.WeakSet()  # those in a backward that gives gradients to their engine

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._arrived: list[dict[int, torch.Tensor]] = [{} for _ in self.units.units]  # by index, until all gradients of the unit arrived
        self._counts = [len(unit.slots) for unit in self.units.units]
        self._trains = True  # the backward gives gradients to the engine
        self._factor = 1.0  # multiplies the gradients of the current backward
        self.arrived: set[str] = set()  # parameters with a gradient in the current step
        self._handles: list[Any] = []

    def _watch_gradients(self) -> None:
        for slot in self.units.slots():
            if slot.trains:
                trains = slot.parameter.requires_grad
                slot.parameter.requires_grad_(True)  # torch registers no hook on a parameter that is frozen at the moment
                self._handles.append(slot.parameter.register_post_accumulate_grad_hook(_of_slot(self, slot)))
                slot.parameter.requires_grad_(trains)
            elif self.gathers[slot.unit] and slot.parameter.requires_grad:
                self._handles.append(slot.parameter.register_post_accumulate_grad_hook(_forget_gradient))

    def forget_gradients(self) -> None:
        """Removes the gradients that are not the engine's."""
        for slot in self.units.slots():
            OWN.__set__(slot.parameter, None)

    def _on_gradient(self, slot: Slot, parameter: torch.Tensor) -> None:
        if not (self.in_backward and self._trains) and self.training and self not in self.training:
            return  # the backward of another engine: the script may drop the gradient, as by module.zero_grad()
        gradient = OWN.__get__(parameter)
        OWN.__set__(parameter, None)
        if gradient is None:
            return
        if not self.in_backward:
            past = f"{slot.name}: got a gradient before a backward reached an output of the engine"
            raise StepOrderError(f"{past}; call the engine, not its module, or engine.backward(loss)")
        if not self._trains:
            raise StepOrderError(f"{slot.name}: got a gradient from backward(inputs=...); leave inputs out, or call torch.autograd.grad")
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if self._factor != 1:
            gradient = gradient * self._factor
        self.arrived.add(slot.name)
        u, index, arrived = slot.unit, slot.index, self._arrived[slot.unit]
        arrived[index] = arrived[index] + gradient if index in arrived else gradient.contiguous()
        if len(arrived) == self._counts[u]:
            self._give(u)
            self._let_go(u)

    def _give(self, u: int) -> None:
        """Adds the gradients that arrived to the engine; other parameters of the unit have gradient zero."""
        arrived = self._arrived[u]
        self.engine.give(u, [(index, gradient.data_ptr(), _CODES[gradient.dtype]) for index, gradient in arrived.items()])
        arrived.clear()
