"""Parameters that a script adds to a module, or replaces, after `initialize`: the engine neither trains nor saves them."""

import operator
from collections.abc import Callable, Set
from itertools import chain

import torch

from .errors import UsageError
from .units import ModuleUnits


class Structure:
    """The submodules and parameters of a module, to notice changes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._look()

    def _look(self) -> None:
        held = [each for submodule in self._module.modules() for each in (submodule._parameters, submodule._modules)]
        self._views = [each.values() for each in held]  # follow their dictionaries
        self._seen = list(chain.from_iterable(self._views))
        self._names = {name for name, _ in self._module.named_parameters(remove_duplicate=False)}
        self._frozen: list[torch.nn.Parameter] = []  # parameters that the engine does not have

    def _is_as_seen(self) -> bool:
        """Returns True if the module has the same submodules and parameters. Costs about 20 ns for each of them."""
        same = sum(map(len, self._views)) == len(self._seen) and all(map(operator.is_, chain.from_iterable(self._views), self._seen))
        return same and not any(parameter.requires_grad for parameter in self._frozen)

    def require_known(self, units: ModuleUnits, grouped: Callable[[], Set[int]]) -> None:
        """Checks that the engine has all trained parameters of the module.

        Args:
            units: the parameters of the engine.
            grouped: returns the ids of the optimizer's parameters, which the engine has from the next step on.
        """
        if self._is_as_seen():
            return
        known = units.of_parameter.keys() | grouped()
        named = self._module.named_parameters(remove_duplicate=False)
        others = [(name, parameter) for name, parameter in named if id(parameter) not in known and parameter.numel()]
        for name, parameter in others:
            if name in self._names:
                raise UsageError(
                    f"{name}: replaced after initialize, so the new parameter is neither trained nor saved; replace it before initialize, "
                    "or change its values inside zero.GatheredParameters with modifier_rank"
                )
            if parameter.requires_grad:
                raise UsageError(
                    f"{name}: added after initialize, so it is neither trained nor saved; add it before initialize or with "
                    "optimizer.add_param_group, or freeze it with requires_grad_(False)"
                )
        self._look()
        self._names -= {name for name, _ in others}
        self._frozen = [parameter for _, parameter in others]
