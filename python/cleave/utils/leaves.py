"""Leaf modules of ZeRO-3. Units go by agreed number here, whichever of them a rank uses, so a mark changes nothing."""

import functools
from collections.abc import Sequence

import torch

_MARK = "_z3_leaf"


def z3_leaf_module(module: torch.nn.Module) -> bool:
    """Whether a module is marked."""
    return bool(getattr(module, _MARK, False))


def z3_leaf_parameter(parameter: torch.nn.Parameter) -> bool:
    """Whether a parameter belongs to a marked module only: never, because marks change nothing."""
    return False


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Sequence[type | str], raise_if_not_found: bool = True, flag: bool = True
) -> list[torch.nn.Module]:
    """Marks the modules of these classes, or takes their marks away, and returns them."""
    named = {module: {type(module).__name__, f"{type(module).__module__}.{type(module).__qualname__}"} for module in model.modules()}
    found = [m for m in named if any(k in named[m] if isinstance(k, str) else isinstance(m, k) for k in leaf_module_classes)]
    if not found and raise_if_not_found:
        raise ValueError(f"{type(model).__name__}: contains no {', '.join(map(str, leaf_module_classes))}")
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


unset_z3_leaf_modules = functools.partial(set_z3_leaf_modules, raise_if_not_found=False, flag=False)


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks one module, or takes its mark away."""
    setattr(model, _MARK, flag)


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The marked modules."""
    return [module for module in model.modules() if z3_leaf_module(module)]
