"""Parameters as views of the engine's memory: units that stay on this rank, and units that are gathered while somebody uses them."""

from collections.abc import Iterable
from typing import Any

import torch

from . import native
from .errors import UsageError
from .functions import is_of_level, outside_of_func
from .units import ModuleUnits, Slot, ZeroParamStatus, describe, describe_shape

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
OUTSIDE = 0  # kind of passes outside of calls


class ParameterViews:
    """Shows the values of parameters and takes them away."""

    def __init__(self, module: torch.nn.Module, engine: native.NativeEngine, units: ModuleUnits, dtype: str, device: torch.device) -> None:
        """Makes the parameters show the engine's memory, which already has their values. Collective."""
        self.module, self.engine, self.units, self.device = module, engine, units, device
        self.dtype = native.DTYPES[dtype]
        self.torch_dtype = TORCH_TYPES[dtype]
        count = len(units.units)
        self.gathers = [engine.gathers(u) for u in range(count)]
        self.any_gathers = any(self.gathers)
        self._users, self._held = [0] * count, [False] * count
        self._nothing = torch.full((len(units.slots()),), float("nan"), dtype=self.torch_dtype, device=device)
        self._hidden = {slot: self._without_values(slot, nan) for slot, nan in zip(units.slots(), self._nothing, strict=True)}
        self._hidden_at = {view.data_ptr(): slot for slot, view in self._hidden.items() if view.numel()}
        self._views: dict[tuple[int, int], list[torch.Tensor]] = {}
        self._copied: set[int] = set()  # units with copies as parameters
        self._pool: set[int] = set()  # addresses of gathered memory where parameters have been
        self._at: dict[int, Slot] = {}  # gathered parameters by address
        self._shown: list[list[int]] = [[] for _ in range(count)]  # addresses of each unit in `_at`
        self._creates_graph = False  # the current backward can be differentiated again
        self._attach()

    def _attach(self) -> None:
        self.engine.begin_pass(OUTSIDE, False)
        for slot in self.units.slots():
            describe(slot.parameter)
            if slot.has_bits:  # it may have no elements already
                describe_shape(slot.parameter, slot.shape)
            self._take_away(slot)
        for u in range(len(self.units.units)):
            if not self.gathers[u]:
                self._show(u)
                self.engine.release(u)
        self.engine.end_pass()
        views = [(slot, view) for (u, _), views in self._views.items() for slot, view in zip(self.units.units[u].slots, views, strict=True)]
        self._staying = [(slot, view, slot.parameter.data_ptr, view.data_ptr()) for slot, view in views]

    def _take_away(self, slot: Slot) -> None:
        slot.parameter.data = self._hidden[slot]
        slot.parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]

    def _show(self, u: int, copied: bool = False) -> None:
        """Acquires a unit and makes its parameters views of its memory, or copies."""
        addresses = self.engine.acquire(u)
        key = (u, addresses[0])
        views = self._views.get(key)
        unit = self.units.units[u]
        if views is None:
            with torch.inference_mode(False):
                views = self._views[key] = [self._view(slot, address) for address, slot in zip(addresses, unit.slots, strict=True)]
            if self.gathers[u]:
                self._pool.update(addresses)
        # Libraries keep views of packed integers for their backward without telling autograd.
        if copied or (unit.has_bits and self.gathers[u]):
            with torch.inference_mode(False):
                views = [view.clone() for view in views]
            self._copied.add(u)
            self.engine.release(u)
        gathers, shown = self.gathers[u], self._shown[u]
        for slot, view in zip(unit.slots, views, strict=True):
            slot.parameter.data = view
            slot.parameter.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]
            if gathers:
                self._at[address := view.data_ptr()] = slot
                shown.append(address)

    @staticmethod
    def _without_values(slot: Slot, nan: torch.Tensor) -> torch.Tensor:
        """Returns the value of a parameter that this rank has a part of. Other types than floating-point numbers have no NaN to show
        that: a tensor without elements makes uses fail."""
        return slot.parameter.detach().new_empty(0, device=nan.device) if slot.has_bits else nan.expand(slot.shape)

    def _view(self, slot: Slot, address: int) -> torch.Tensor:
        """Returns a parameter at an address of the engine's memory."""
        if not slot.has_bits:
            return torch.from_dlpack(self.engine.dlpack(address, self.dtype, tuple(slot.shape)))
        memory = torch.from_dlpack(self.engine.dlpack(address, native.DTYPES["uint8"], (slot.nbytes,)))
        return memory.view(slot.parameter.dtype).view(slot.shape)

    def _hide(self, u: int) -> None:
        """Releases a unit and removes the values of its parameters."""
        for address in self._shown[u]:  # a script may have replaced the data of a parameter
            del self._at[address]
        self._shown[u].clear()
        for slot in self.units.units[u].slots:
            self._take_away(slot)
        if u not in self._copied:
            self.engine.release(u)
        self._copied.discard(u)

    def _replaced(self) -> list[tuple[Slot, torch.Tensor]]:
        """Returns parameters that stay on this rank and whose data a script replaced, with the views that belong there."""
        return [(slot, view) for slot, view, address_of, address in self._staying if address_of() != address]

    def show_again(self) -> None:
        """Makes parameters whose data a script replaced views of the engine's memory again."""
        for slot, view in self._replaced():
            slot.parameter.data = view

    def require_views(self) -> None:
        """Checks that no script replaced the data of a parameter."""
        for slot, _ in self._replaced():
            raise UsageError(
                f"{slot.name}: its data was replaced, so it does not show the engine's values; change it inside "
                "zero.GatheredParameters with modifier_rank, or with engine.set_parameter"
            )

    def require_values(self, parameters: Iterable[Any]) -> None:
        """Checks that parameters are whole, so that copies of them have values."""
        for parameter in parameters:
            slot = self.units.of_parameter.get(id(parameter))
            if slot is not None and self.gathers[slot.unit] and not self._users[slot.unit]:
                raise UsageError(
                    f"{slot.name}: this rank has only a part of it, so a copy would have no values; copy or save the module inside "
                    "zero.GatheredParameters(module.parameters())"
                )

    def _take(self, u: int, copied: bool = False) -> None:
        if self.gathers[u] and not self._users[u]:
            with outside_of_func():
                self._show(u, copied)
        self._users[u] += 1

    def _drop(self, u: int) -> None:
        self._users[u] -= 1
        if self.gathers[u] and self._users[u] == 0:
            with outside_of_func():
                self._hide(u)

    def _hold(self, u: int) -> None:
        """Takes a unit that is computed with again in the backward, until its gradient arrived."""
        if not self._held[u]:
            self._take(u, self._creates_graph)
            self._held[u] = True

    def _let_go(self, u: int) -> None:
        if self._held[u]:
            self._held[u] = False
            self._drop(u)

    def _slot_at(self, tensor: torch.Tensor) -> Slot | None:
        """Returns the gathered parameter whose memory a tensor shows."""
        if not self._at or tensor.layout != torch.strided or is_of_level(tensor):
            return None
        try:
            return self._at.get(tensor.untyped_storage().data_ptr())
        except RuntimeError:  # a tensor without memory, as of a tracing mode
            return None
