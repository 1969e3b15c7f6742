"""Leaf modules of ZeRO-3. Ranks may use units in different orders here, so the marks have no effect."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import UsageError

_MARK = "_z3_leaf"


def z3_leaf_module(module: torch.nn.Module) -> bool:
    """Returns True if a module is marked."""
    return bool(getattr(module, _MARK, False))


def z3_leaf_parameter(parameter: torch.nn.Parameter) -> bool:
    """Returns False: marks have no effect on parameters."""
    return False


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Sequence[type | str], raise_if_not_found: bool = True, flag: bool = True
) -> list[torch.nn.Module]:
    """Marks (or with flag=False unmarks) the modules of the given classes or class names, and returns them.

    Raises:
        ValueError: the model contains none of them.
    """
    named = {module: {type(module).__name__, f"{type(module).__module__}.{type(module).__qualname__}"} for module in model.modules()}
    found = [m for m in named if any(k in named[m] if isinstance(k, str) else isinstance(m, k) for k in leaf_module_classes)]
    if not found and raise_if_not_found:
        raise ValueError(f"{type(model).__name__}: contains no {', '.join(map(str, leaf_module_classes))}")
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


unset_z3_leaf_modules = functools.partial(set_z3_leaf_modules, raise_if_not_found=False, flag=False)
"""Removes the marks from the modules of the given classes, and returns these modules."""


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks a module, or with flag=False removes the mark."""
    setattr(model, _MARK, flag)


def mark_configured(model: torch.nn.Module, section: Mapping[str, Any]) -> list[str]:
    """Marks the modules of a section `zero_optimization.leaf_module` and returns the entries that match none.

    Args:
        model: the module.
        section: lists (or single strings) `classes`, `names` and `name_suffixes`.
    """
    tests: dict[str, Any] = {"names": lambda name, entry: name == entry, "name_suffixes": str.endswith}
    missing = []
    for kind in ("classes", *tests):
        entries = [given] if isinstance(given := section.get(kind) or [], str) else given
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise UsageError(f"zero_optimization.leaf_module.{kind}: wrong type (got {given!r}, expected a list of strings); correct it")
        for entry in entries:
            if kind == "classes":
                found = set_z3_leaf_modules(model, [entry], raise_if_not_found=False)
            else:
                found = [module for name, module in model.named_modules() if tests[kind](name, entry)]
            for module in found:
                set_z3_leaf_module(module, True)
            missing += [] if found else [entry]
    return missing


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the marked modules."""
    return [module for module in model.modules() if z3_leaf_module(module)]
