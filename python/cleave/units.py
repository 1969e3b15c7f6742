"""Units of a module: the direct parameters of each submodule, each parameter once."""

import enum
import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import UsageError


@dataclass(eq=False)
class Slot:
    """A parameter of a unit."""

    name: str
    parameter: torch.nn.Parameter
    shape: torch.Size
    trains: bool
    decay: bool
    unit: int = -1
    index: int = -1


@dataclass
class UnitSlots:
    """A unit with its parameters in order."""

    name: str
    trains: bool
    group: int
    slots: list[Slot] = field(default_factory=list)


class ModuleUnits:
    """The units of a module in the order of its submodules, and the units that each submodule uses."""

    def __init__(self, module: torch.nn.Module, trains: dict[int, int], decays: set[int]) -> None:
        """Builds the units.

        Args:
            module: the module.
            trains: number of the rates for each trained parameter, by id.
            decays: ids of parameters with weight decay.
        """
        self.units: list[UnitSlots] = []
        self.of_parameter: dict[int, Slot] = {}
        for path, submodule in module.named_modules():
            self._add(path, submodule, trains, decays)
        if not self.units:
            raise UsageError(f"{type(module).__name__}: has no parameters on this rank")

    def _add(self, path: str, submodule: torch.nn.Module, trains: dict[int, int], decays: set[int]) -> None:
        groups: dict[int | None, UnitSlots] = {}
        for name, parameter in submodule.named_parameters(recurse=False):
            if id(parameter) in self.of_parameter or parameter.numel() == 0 or not parameter.is_floating_point():
                continue
            group = trains.get(id(parameter))
            unit = groups.get(group)
            if unit is None:
                kind = " (frozen)" if group is None else f" (group {group})" if group else ""
                unit = groups[group] = UnitSlots((path or "model") + kind, group is not None, group or 0)
            full = f"{path}.{name}" if path else name
            slot = Slot(full, parameter, shape_of(parameter), unit.trains, id(parameter) in decays)
            unit.slots.append(slot)
            self.of_parameter[id(parameter)] = slot
        for unit in groups.values():
            for index, slot in enumerate(unit.slots):
                slot.unit, slot.index = len(self.units), index
            self.units.append(unit)

    def slots(self) -> list[Slot]:
        return [slot for unit in self.units for slot in unit.slots]

    def other_names(self, module: torch.nn.Module) -> dict[str, str]:
        """Returns the first name of each tied parameter by its other names."""
        every = [(name, self.of_parameter.get(id(p))) for name, p in module.named_parameters(remove_duplicate=False)]
        return {name: slot.name for name, slot in every if slot is not None and slot.name != name}

    def used_by(self, submodule: torch.nn.Module) -> list[int]:
        """Returns the units of a submodule's direct parameters."""
        found = [self.of_parameter.get(id(p)) for p in submodule.parameters(recurse=False)]
        return list(dict.fromkeys(slot.unit for slot in found if slot is not None))

    def declared(self) -> list[dict[str, Any]]:
        """Returns the JSON declaration of the units (cleave_engine_make)."""

        def told(slot: Slot) -> tuple[str, list[int], bool, str]:
            return slot.name, list(slot.shape), slot.decay, str(slot.parameter.dtype).removeprefix("torch.")

        return [
            {"name": u.name, "parameters": [told(slot) for slot in u.slots], "frozen": not u.trains, "group": u.group} for u in self.units
        ]


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Returns the whole shape of a parameter, also while its values are sharded."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


class ZeroParamStatus(enum.Enum):
    """Availability of a parameter's values on this rank."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


_ids = itertools.count()


def describe(parameter: torch.nn.Parameter) -> None:
    """Sets the attributes of ZeRO parameters in DeepSpeed: ds_id, ds_shape, ds_numel, ds_status and ds_active_sub_modules."""
    p: Any = parameter
    if not hasattr(p, "ds_id"):
        p.ds_id, p.ds_shape, p.ds_numel, p.ds_status = next(_ids), p.shape, p.numel(), ZeroParamStatus.AVAILABLE
        p.ds_active_sub_modules = set()  # always empty: the engine counts uses by unit
