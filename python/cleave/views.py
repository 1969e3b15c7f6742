"""Parameters as views of the engine's memory: units that stay on this rank, and units that are gathered while somebody uses them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from . import native
from .errors import UsageError
from .functions import level, outside_of_func
from .placeholders import Placeholders
from .units import ModuleUnits, Slot, ZeroParamStatus, describe, describe_shape

TORCH_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_CONVERSIONS = {torch.float64: "double()", torch.float32: "float()", torch.float16: "half()", torch.bfloat16: "bfloat16()"}
OUTSIDE = 0  # kind of passes outside of calls


class _Shown(NamedTuple):
    """A parameter, its value in the engine's memory or a copy, and the address of the value."""

    parameter: Any
    value: torch.Tensor
    address: int
    slot: Slot


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
        self._placeholders = Placeholders(units, self.gathers, self.torch_dtype, device)
        self._views: dict[tuple[int, int], list[_Shown]] = {}
        self._turned: dict[tuple[Any, ...], torch.Tensor] = {}  # views of whole parameters with other strides, by address
        self._copied: set[int] = set()  # units with copies as parameters
        self._pool: set[int] = set()  # addresses of gathered memory where parameters have been
        self._low, self._high = 1 << 64, 0  # and range of the bytes there
        self._at: dict[int, Slot] = {}  # gathered parameters by address
        self._shown: list[list[_Shown]] = [[] for _ in range(count)]  # parameters of each unit in `_at`
        self._creates_graph = False  # the current backward can be differentiated again
        self._typed = [slots[0].parameter for unit in units.units if (slots := [s for s in unit.slots if not s.has_bits])]
        self._attach()

    def _attach(self) -> None:
        self.engine.begin_pass(OUTSIDE, False)
        for slot in self.units.slots():
            describe(slot.parameter)
            if slot.has_bits:  # it may have no elements already
                describe_shape(slot.parameter, slot.shape)
        for u in range(len(self.units.units)):
            self._placeholders.hide(u)
            if not self.gathers[u]:
                self._show(u)
                self.engine.release(u)
                self._at.clear()
                self._shown[u] = []
        self.engine.end_pass()
        self._staying = [each for shown in self._views.values() for each in shown]
        trained = [shown.slot for shown in self._staying if shown.slot.trains and self.torch_dtype is not torch.float32]
        self._following = {slot: slot.parameter._version for slot in trained}

    def _show(self, u: int, copied: bool = False) -> None:
        """Acquires a unit and makes its parameters views of its memory, or copies."""
        addresses = self.engine.acquire(u)
        shown = self._views.get((u, addresses[0])) or self._views_at(u, addresses)
        # Libraries keep views of packed integers for their backward without telling autograd.
        if copied or (self.units.units[u].has_bits and self.gathers[u]):
            with torch.inference_mode(False):
                copies = [(parameter, value.clone(), slot) for parameter, value, _, slot in shown]
            shown = [_Shown(parameter, value, value.data_ptr(), slot) for parameter, value, slot in copies]
            self._copied.add(u)
            self.engine.release(u)
        at = self._at
        for parameter, value, address, slot in shown:
            parameter.data = value
            parameter.ds_status = ZeroParamStatus.AVAILABLE
            at[address] = slot
        self._shown[u] = shown

    def _views_at(self, u: int, addresses: Sequence[int]) -> list[_Shown]:
        """Returns the parameters of a unit at new addresses."""
        slots = self.units.units[u].slots
        with torch.inference_mode(False):
            values = [self._view(slot, address) for address, slot in zip(addresses, slots, strict=True)]
        shown = [_Shown(slot.parameter, value, value.data_ptr(), slot) for slot, value in zip(slots, values, strict=True)]
        self._views[u, addresses[0]] = shown
        if self.gathers[u]:
            self._pool.update(addresses)
            self._low = min(self._low, *addresses)
            self._high = max(self._high, *(address + slot.nbytes for address, slot in zip(addresses, slots, strict=True)))
        return shown

    def _view(self, slot: Slot, address: int) -> torch.Tensor:
        """Returns a parameter at an address of the engine's memory."""
        if not slot.has_bits:
            return torch.from_dlpack(self.engine.dlpack(address, self.dtype, tuple(slot.shape)))
        memory = torch.from_dlpack(self.engine.dlpack(address, native.DTYPES["uint8"], (slot.nbytes,)))
        return memory.view(slot.parameter.dtype).view(slot.shape)

    def _hide(self, u: int) -> None:
        """Releases a unit and removes the values of its parameters."""
        for _, _, address, _ in self._shown[u]:  # a script may have replaced the data of a parameter
            del self._at[address]
        self._shown[u] = []
        self._placeholders.hide(u)
        if u in self._copied:
            self._copied.discard(u)
        else:
            self.engine.release(u)

    def _replaced(self) -> list[_Shown]:
        """Returns parameters that stay on this rank and whose data a script replaced, with the views that belong there."""
        return [shown for shown in self._staying if shown.parameter.data_ptr() != shown.address]

    def show_again(self) -> None:
        """Makes parameters whose data a script replaced views of the engine's memory again."""
        for shown in self._replaced():
            shown.parameter.data = shown.value

    def require_placeholders(self, reads: bool = False) -> None:
        """Checks that no script changed parameters that this rank has only a part of. reads: find every change; waits on a GPU."""
        if self.any_gathers:
            self._placeholders.require_unchanged(self._users, reads or self.device.type == "cpu")

    def require_views(self) -> None:
        """Checks that no script replaced the data of a parameter."""
        for shown in self._replaced():
            raise UsageError(
                f"{shown.slot.name}: its data was replaced, so it does not show the engine's values; change it inside "
                "zero.GatheredParameters with modifier_rank, or with engine.set_parameter"
            )

    def require_followed(self) -> None:
        """Checks that no script changed 16-bit parameters in place: the next update computes them from their fp32 masters."""
        for slot, version in self._following.items():
            if (now := slot.parameter._version) != version:
                self._require_master(slot)
                self._following[slot] = now

    def _require_master(self, slot: Slot) -> None:
        value = slot.parameter.detach().cpu()
        master = torch.empty(slot.whole, dtype=torch.float32)
        self.engine.own_master(slot.name, master.data_ptr())
        master = slot.cut.part_of(master) if slot.cut else master
        expected = master.to(value.dtype)
        if (differs := (expected != value) & ~master.isnan()).any():
            at = tuple(differs.nonzero()[0].tolist())
            raise UsageError(
                f"{slot.name}: changed in place, but the update computes {self.torch_dtype} parameters from fp32 masters, which still have "
                f"the old values (got {value[at].item():.6g} at {list(at)}, expected {expected[at].item():.6g}); change it inside "
                "zero.GatheredParameters with modifier_rank, or with engine.load_module_state_dict or engine.set_parameter"
            )

    def require_types(self) -> None:
        """Checks that no conversion of the module replaced the data of its units, or the parameters themselves (the meta device)."""
        if (first := next(self.module.parameters(), None)) is not None and first.is_meta:
            raise UsageError(
                "module: converted to the meta device after initialize, so it has no values; leave out the conversion, such as "
                'module.to("meta")'
            )
        for parameter in self._typed:
            if parameter.dtype is not self.torch_dtype or parameter.device.type != self.device.type:
                name, moved = self.units.of_parameter[id(parameter)].name, parameter.device.type != self.device.type
                call = f'to("{parameter.device.type}")' if moved else _CONVERSIONS.get(parameter.dtype, "to(...)")
                got = f"got {parameter.dtype} on {parameter.device}, expected {self.torch_dtype} on {self.device}"
                raise UsageError(
                    f"{name}: converted after initialize, as by module.{call} ({got}); leave the conversion out, and select the type of "
                    "the training with bf16 or fp16 in the ds_config"
                )

    def require_values(self, parameters: Iterable[Any]) -> None:
        """Checks that parameters are whole, so that copies of them have values."""
        for name in map(self.hidden_name, parameters):
            if name:
                raise UsageError(
                    f"{name}: this rank has only a part of it, so a copy would have no values; copy or save the module inside "
                    "zero.GatheredParameters(module.parameters())"
                )

    def hidden_name(self, parameter: Any) -> str | None:
        """Returns the name of a parameter that has no values now, else None."""
        slot = self.units.of_parameter.get(id(parameter))
        return slot.name if slot is not None and self.gathers[slot.unit] and not self._users[slot.unit] else None

    def _take(self, u: int, copied: bool = False) -> None:
        if self.gathers[u] and not self._users[u]:
            if level() is None:
                self._show(u, copied)
            else:
                with outside_of_func():
                    self._show(u, copied)
        self._users[u] += 1

    def _drop(self, u: int) -> None:
        self._users[u] -= 1
        if self.gathers[u] and self._users[u] == 0:
            if level() is None:
                self._hide(u)
            else:
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
        if not self._at:
            return None
        try:
            address = tensor.data_ptr()
            slot = self._at.get(address)
            if slot is None and (self._low <= address < self._high or self._copied):  # in the middle of a parameter
                slot = self._at.get(tensor.untyped_storage().data_ptr())
            return slot
        except RuntimeError:  # a tensor without memory: sparse, of a level of torch.func, or of a tracing mode
            return None
