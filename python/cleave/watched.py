"""Hooks of a module and its parameters, which gather weights; copies of the module have none."""

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .residency import Residency


class Watched(dict[str, Any]):
    """Parameters of a submodule; reading one gathers its unit. Copies are plain dictionaries."""

    def __init__(self, parameters: dict[str, Any], residency: "Residency") -> None:
        super().__init__(parameters)
        self._residency = residency

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._residency.read(parameter)
        return parameter

    def __reduce__(self) -> Any:
        self._residency.require_values(self.values())
        return dict, (dict(self),)


def _no_hook(*args: Any) -> None:
    """Replaces a hook in copies of a module."""


class Hook(partial[Any]):
    """Hook of a module; copies of the module have no hooks."""

    def __reduce__(self) -> Any:
        return getattr, (_no_hook, "__call__")


class ParameterOffload:
    """The hooks of a module under the names of DeepSpeed, for clients that remove them for generation and add them again."""

    def __init__(self, residency: "Residency") -> None:
        self.module = residency.module
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []
        self._add = residency.watch_calls
        for submodule in self.module.modules():
            submodule.ds_external_parameters = {}.items  # type: ignore[assignment]  # none: reading one gathers it

    def _register_deepspeed_module(self, module: torch.nn.Module) -> None:
        """Adds the hooks of the module and of its submodules."""
        self.forward_hooks += self._add(module)

    def remove(self) -> bool:
        """Removes all hooks. Returns False if the client has done so."""
        hooks, self.forward_hooks = self.forward_hooks, []
        for hook in hooks:
            hook.remove()
        return bool(hooks)
