"""torch.compile of modules with gathered parameters, as at ZeRO stage 3.

A graph of torch.compile cannot gather: hooks of submodules would break it at each of them. So a compiled module gathers the parameters of
all of its submodules before its graph runs and releases them afterwards, and its submodules have no hooks. Compiling a module with a list
of blocks compiles the blocks, because one graph of the whole module would need all parameters at a time.
"""

import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .watched import Watched

if TYPE_CHECKING:
    from .residency import Residency

_residencies: "weakref.WeakSet[Residency]" = weakref.WeakSet()
_compile: Any = torch.nn.Module.compile


def is_compiled(module: torch.nn.Module) -> bool:
    """Returns True for a module after `module.compile()`, and for the result of `torch.compile(module)` with one graph."""
    return module._compiled_call_impl is not None or (is_wrapper(module) and parts_of(module) == [module])


def is_wrapper(module: torch.nn.Module) -> bool:
    """Returns True for the result of `torch.compile(module)`."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _are_blocks(module: torch.nn.Module) -> bool:
    blocks = list(module.children())
    listed = isinstance(module, torch.nn.ModuleList) or (isinstance(module, torch.nn.Sequential) and len(set(map(type, blocks))) == 1)
    return listed and len(blocks) > 1 and all(block._modules for block in blocks)


def parts_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the modules to compile instead of a module: the blocks of its lists, and other submodules of several layers."""
    if not any(map(_are_blocks, module.modules())):
        return [module]
    if _are_blocks(module):
        return list(module.children())
    return [part for child in module.children() if child._modules for part in parts_of(child)]


class Split:
    """Result of `torch.compile(module)` that compiles the blocks of the module instead."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        for part in parts_of(wrapper):
            part._compiled_call_impl = wrapper.dynamo_ctx(part._call_impl)
        wrapper.forward = wrapper._orig_mod.__call__

    def remove(self) -> None:
        """Compiles the whole module again."""
        self._wrapper._initialize()


class Visit:
    """Calls of a compiled module, with the parameters of all of its submodules."""

    def __init__(self, residency: "Residency", module: torch.nn.Module, used: list[int]) -> None:
        self._residency, self._module, self._used = residency, module, used
        self._frozen = [u for u in used if not residency.units.units[u].trains]
        self._compiled = module._compiled_call_impl
        self._run = self._compiled or module._call_impl
        watched = [submodule for submodule in module.modules() if isinstance(submodule._parameters, Watched)]
        self._dictionaries = [(vars(submodule), submodule._parameters, dict(submodule._parameters)) for submodule in watched]
        module._compiled_call_impl = torch.compiler.disable(self._call)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        residency, output = self._residency, None
        residency._before(self._used, self._module, args)
        for attributes, _, plain in self._dictionaries:
            attributes["_parameters"] = plain
        try:
            output = self._run(*args, **kwargs)
        finally:
            for attributes, watched, _ in self._dictionaries:
                attributes["_parameters"] = watched
            replaced = residency._after(self._used, self._module, args, output)
            if self._frozen:
                residency._after_frozen(self._frozen, self._module, args, kwargs, output)
        return output if replaced is None else replaced

    def remove(self) -> None:
        """Lets the module run without the engine."""
        self._module._compiled_call_impl = self._compiled


def _compiles(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    """Replaces Module.compile while an engine gathers."""
    owners = [residency for residency in _residencies if residency.gathered_below(self)]
    hooked = [residency.offload for residency in owners if residency.offload.remove()]
    for part in parts_of(self) if owners else [self]:
        _compile(part, *args, **kwargs)
    for offload in hooked:
        offload._register_deepspeed_module(offload.module)


def watch(residency: "Residency") -> None:
    """Adds an engine that gathers parameters."""
    _residencies.add(residency)
    torch.nn.Module.compile = _compiles  # type: ignore[method-assign]


def leave(residency: "Residency") -> None:
    """Removes an engine; the last one restores torch's class."""
    _residencies.discard(residency)
    if not _residencies:
        torch.nn.Module.compile = _compile  # type: ignore[method-assign]
