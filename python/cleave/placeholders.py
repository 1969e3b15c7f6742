"""Values of parameters while this rank has only a part of them."""

import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .errors import UsageError
from .units import ModuleUnits, Slot, ZeroParamStatus

_address, _version = torch.Tensor.data_ptr, operator.attrgetter("_version")


class _Placeholder(NamedTuple):
    """A parameter, its value without values, and the address of that value."""

    slot: Slot
    value: torch.Tensor
    address: int


class Placeholders:
    """Placeholders are NaN in the shape of their parameter, with the memory of one element.

    Other types than floating-point numbers have no NaN: a tensor without elements makes uses fail.
    """

    def __init__(self, units: ModuleUnits, gathers: Sequence[bool], dtype: torch.dtype, device: torch.device) -> None:
        """Allocates the placeholders. `hide` makes parameters show them.

        Args:
            gathers: by unit, whether ranks have parts of it; other units only show placeholders before the first `show`.
        """
        slots = units.slots()
        self._memory = torch.full((len(slots),), float("nan"), dtype=dtype, device=device)
        self._of = {slot: self._made(slot, nan) for slot, nan in zip(slots, self._memory, strict=True)}
        self._units = [[self._of[slot] for slot in unit.slots] for unit in units.units]
        self._at = {each.address: each.slot for each in self._of.values() if each.value.numel()}
        self._checked = [each for each, u in ((self._of[slot], slot.unit) for slot in slots) if gathers[u]]
        self._parameters = [each.slot.parameter for each in self._checked]
        self._addresses = [each.address for each in self._checked]
        self._counted = not any(parameter.is_inference() for parameter in self._parameters)  # inference tensors have no version
        self._versions = self._counts(self._parameters)
        self._first = {each.slot.unit: at for at, each in reversed(list(enumerate(self._checked)))}  # index of each unit there

    @staticmethod
    def _made(slot: Slot, nan: torch.Tensor) -> _Placeholder:
        value = slot.parameter.detach().new_empty(0, device=nan.device) if slot.has_bits else nan.expand(slot.shape)
        return _Placeholder(slot, value, value.data_ptr())

    def value_of(self, slot: Slot) -> torch.Tensor:
        """Returns the placeholder of a parameter."""
        return self._of[slot].value

    def at(self, address: int) -> Slot | None:
        """Returns the parameter of the placeholder at an address."""
        return self._at.get(address)

    def hide(self, u: int) -> None:
        """Removes the values of a unit's parameters."""
        for slot, value, _ in self._units[u]:
            slot.parameter.data = value
            slot.parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]
        if self._counted and (first := self._first.get(u)) is not None:
            last = first + len(self._units[u])
            self._versions[first:last] = map(_version, self._parameters[first:last])

    def _counts(self, parameters: list[torch.nn.Parameter]) -> list[int]:
        """Returns the number of changes in place of each parameter."""
        return list(map(_version, parameters)) if self._counted else [0] * len(parameters)

    def require_unchanged(self, users: Sequence[int], reads: bool) -> None:
        """Checks that no script changed hidden parameters: the next use would replace the change by the engine's values.

        Args:
            users: number of uses of each unit; only parameters without use are hidden.
            reads: also read the memory of the placeholders, which `parameter.data` may change without a trace. Waits on a GPU.
        """
        versions = self._counts(self._parameters)
        if list(map(_address, self._parameters)) != self._addresses or versions != self._versions:
            for each, before, now in zip(self._checked, self._versions, versions, strict=True):
                if users[each.slot.unit]:
                    continue
                if each.slot.parameter.data_ptr() != each.address:
                    self._require_no_values(each.slot)
                elif now != before:
                    self._refuse(each.slot, "was changed in place")
        if reads and (written := ~self._memory.isnan()).any():
            self._refuse(list(self._of)[int(written.nonzero()[0])], "was changed in place")

    def _require_no_values(self, slot: Slot) -> None:
        """Checks a parameter with replaced data. A conversion or a copy of a placeholder has no values to lose."""
        data = slot.parameter.detach()
        if data.numel() and not (data.is_floating_point() and data.isnan().all()):
            self._refuse(slot, "was replaced")

    def _refuse(self, slot: Slot, how: str) -> None:
        """Shows the placeholders again, so that the engine can continue, and raises the error."""
        self._memory.fill_(float("nan"))
        self.hide(slot.unit)
        raise UsageError(
            f"{slot.name}: its data {how}, but this rank has only a part of the parameter, so the change would be lost; change it inside "
            "zero.GatheredParameters with modifier_rank, or with engine.load_module_state_dict or engine.set_parameter"
        )
