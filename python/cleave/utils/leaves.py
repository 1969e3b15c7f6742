"""Leaf modules of ZeRO-3. Units go by agreed number here, whichever of them a rank uses, so a mark changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MARK = "_z3_leaf"


def z3_leaf_module(module: torch.nn.Module) -> bool:
    """Whether a module is marked."""
    return bool(getattr(module, _MARK, False))


def z3_leaf_parameter(parameter: torch.nn.Parameter) -> bool:
    """Whether a parameter belongs to a marked module only: never, because marks change nothing."""
    return False


def _matching(model: torch.nn.Module, kinds: Sequence[type | str]) -> list[torch.nn.Module]:
    def fits(module: torch.nn.Module) -> bool:
        kind = type(module)
        names = {kind.__name__, f"{kind.__module__}.{kind.__qualname__}"}
        return any(k in names if isinstance(k, str) else isinstance(module, k) for k in kinds)

    return [module for module in model.modules() if fits(module)]


def _marked(modules: list[torch.nn.Module], flag: bool) -> list[torch.nn.Module]:
    for module in modules:
        setattr(module, _MARK, flag)
    return modules


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Sequence[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Marks the modules of these classes, and returns them."""
    found = _matching(model, leaf_module_classes)
    if not found and raise_if_not_found:
        raise ValueError(f"no module of {type(model).__name__} is a {', '.join(map(str, leaf_module_classes))}")
    return _marked(found, True)


def unset_z3_leaf_modules(model: torch.nn.Module, leaf_module_classes: Sequence[type | str]) -> list[torch.nn.Module]:
    """Takes the marks of these classes away, and returns the modules."""
    return _marked(_matching(model, leaf_module_classes), False)


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks one module, or takes its mark away."""
    setattr(model, _MARK, flag)


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The marked modules."""
    return [module for module in model.modules() if z3_leaf_module(module)]
