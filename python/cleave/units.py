"""Units of a module: the direct parameters of each submodule, each parameter once."""

import enum
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .cuts import Cut
from .errors import NotBuilt, UsageError

OUTSIDE = "outside_of_the_module"
"""Begin of the names of parameters that only the optimizer has."""


@dataclass(eq=False)
class Slot:
    """A parameter of a unit."""

    name: str
    parameter: torch.nn.Parameter
    shape: torch.Size  # of this tensor-parallel rank's part
    whole: torch.Size
    cut: Cut | None
    trains: bool
    decay: bool
    unit: int = -1
    index: int = -1

    @property
    def has_bits(self) -> bool:
        """True if the values are moved and saved as bits."""
        return has_bits(self.parameter)

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.parameter.element_size()

    @property
    def is_part(self) -> bool:
        """True if this tensor-parallel rank has only a part of the parameter."""
        return self.cut is not None and bool(self.cut.extents)

    def require_whole(self, what: str) -> None:
        """Checks that a function of this name can change the parameter by a rank's value."""
        if self.is_part:
            raise NotBuilt(f"{self.name}: split for tensor parallelism, so {what} cannot change it; call engine.set_parameter")


@dataclass
class UnitSlots:
    """A unit with its parameters in order."""

    name: str
    trains: bool
    group: int
    slots: list[Slot] = field(default_factory=list)
    whole: bool = False  # at every stage
    has_bits: bool = False  # Slot.has_bits of all


class ModuleUnits:
    """The units of a module in the order of its submodules, the units that each submodule uses, and the parameters in no unit."""

    def __init__(
        self,
        module: torch.nn.Module,
        trains: dict[int, int],
        decays: set[int],
        others: Iterable[torch.nn.Parameter] = (),
        cuts: Mapping[int, Cut] | None = None,
    ) -> None:
        """Builds the units.

        Args:
            module: the module.
            trains: number of the rates for each trained parameter, by id.
            decays: ids of parameters with weight decay.
            others: trained parameters, which may be outside of the module. Those outside have units that are whole on every rank.
            cuts: how tensor-parallel ranks share parameters, by id.
        """
        self._cuts = cuts or {}
        self.units: list[UnitSlots] = []
        self.of_parameter: dict[int, Slot] = {}
        alone = _called_by_one_rank(module)
        for path, submodule in module.named_modules():
            first = len(self.units)
            self._add(path, submodule.named_parameters(recurse=False), trains, decays)
            for unit in self.units[first:]:
                unit.whole = submodule in alone
        outside = {f"{OUTSIDE}.{i}": p for i, p in enumerate(p for p in others if id(p) not in self.of_parameter)}
        inside, self.outside = len(self.units), list(outside)
        self._add("", outside.items(), trains, decays, OUTSIDE)
        for unit in self.units[inside:]:
            unit.whole = True
        if not self.units:
            raise UsageError(f"{type(module).__name__}: has no parameters on this rank")
        self._slots = [slot for unit in self.units for slot in unit.slots]

    def _add(
        self,
        path: str,
        named: Iterable[tuple[str, torch.nn.Parameter]],
        trains: dict[int, int],
        decays: set[int],
        unit_name: str = "model",
    ) -> None:
        groups: dict[int | str, UnitSlots] = {}
        for name, parameter in named:
            full = f"{path}.{name}" if path else name
            if id(parameter) in self.of_parameter or parameter.numel() == 0:
                continue
            group: int | str = trains.get(id(parameter), "frozen")
            _require_quantized(full, parameter)
            if has_bits(parameter):
                _require_frozen(full, parameter, group)
                group = "bits"
            unit = groups.get(group)
            if unit is None:
                kind = f" ({group})" if isinstance(group, str) else f" (group {group})" if group else ""
                number = group if isinstance(group, int) else None
                unit = groups[group] = UnitSlots((path or unit_name) + kind, number is not None, number or 0, has_bits=group == "bits")
            cut, shape = self._cuts.get(id(parameter)), shape_of(parameter)
            shapes = cut.shapes(shape) if cut else (shape, shape)
            slot = Slot(full, parameter, *shapes, cut, unit.trains, id(parameter) in decays)
            unit.slots.append(slot)
            self.of_parameter[id(parameter)] = slot
        for unit in groups.values():
            for index, slot in enumerate(unit.slots):
                slot.unit, slot.index = len(self.units), index
            self.units.append(unit)

    def with_bits(self) -> dict[str, Slot]:
        """Returns the slots of parameters that are not floating-point numbers, by name."""
        return {slot.name: slot for slot in self.slots() if slot.has_bits}

    def slots(self) -> list[Slot]:
        return self._slots

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

        def told(slot: Slot) -> list[Any]:
            cut = [slot.cut.declared()] if slot.cut else []
            shape = [-(-slot.nbytes // 8)] if slot.has_bits else list(slot.whole)  # words
            return [slot.name, shape, slot.decay, str(slot.parameter.dtype).removeprefix("torch."), *cut]

        def unit(u: UnitSlots) -> dict[str, Any]:
            facts = {"name": u.name, "frozen": not u.trains, "group": u.group, "whole": u.whole, "bytes": u.has_bits}
            return {**facts, "parameters": [told(slot) for slot in u.slots]}

        return list(map(unit, self.units))


def has_bits(parameter: torch.Tensor) -> bool:
    """Returns True if a parameter has other values than floating-point numbers, also if a library packed them into such a type."""
    return not parameter.is_floating_point() or getattr(parameter, "quant_state", None) is not None


def _require_quantized(name: str, parameter: torch.nn.Parameter) -> None:
    later = getattr(parameter, "bnb_quantized", None) is False or getattr(parameter, "has_fp16_weights", None) is False
    if later and parameter.is_floating_point():
        raise UsageError(f"{name}: not quantized yet; call model.cuda(), which quantizes layers of bitsandbytes, before initialize()")


def _require_frozen(name: str, parameter: torch.nn.Parameter, group: int | str) -> None:
    if isinstance(group, int):
        raise NotBuilt(
            f"{name}: training of complex numbers is not supported (got {parameter.dtype}); store torch.view_as_real(...) as the "
            "parameter and use torch.view_as_complex(parameter) in forward"
        )


def shape_of(parameter: torch.Tensor) -> torch.Size:
    """Returns the whole shape of a parameter, also while its values are sharded."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _called_by_one_rank(module: torch.nn.Module) -> set[torch.nn.Module]:
    """Returns the submodules that a library also calls on the first rank alone: prompt encoders, which peft calls to save them."""
    owners = [owner for owner in module.modules() if hasattr(type(owner), "get_prompt_embedding_to_save")]
    return {below for owner in owners for below in getattr(owner, "prompt_encoder", torch.nn.Module()).modules()}


class ZeroParamStatus(enum.Enum):
    """Availability of a parameter's values on this rank."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def describe_shape(parameter: Any, shape: torch.Size) -> None:
    """Sets ds_shape and ds_numel."""
    parameter.ds_shape, parameter.ds_numel = shape, shape.numel()


_ids = itertools.count()


def describe(parameter: torch.nn.Parameter) -> None:
    """Sets the attributes of ZeRO parameters in DeepSpeed: ds_id, ds_shape, ds_numel, ds_status and ds_active_sub_modules."""
    p: Any = parameter
    if not hasattr(p, "ds_id"):
        p.ds_id, p.ds_shape, p.ds_numel, p.ds_status = next(_ids), p.shape, p.numel(), ZeroParamStatus.AVAILABLE
        p.ds_active_sub_modules = set()  # always empty: the engine counts uses by unit
