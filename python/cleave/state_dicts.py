"""Hooks of `state_dict` and `load_state_dict` of submodules with parameters that this rank has only a part of."""

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import native
from .errors import UsageError
from .watched import Hook

if TYPE_CHECKING:
    from .views import ParameterViews

_READERS = {"pytorch_lightning.trainer.connectors.checkpoint_connector", "lightning.pytorch.trainer.connectors.checkpoint_connector"}
"""Modules that drop the values, and save by engine.save_checkpoint."""

_warned = False  # a process warns once


def watch(views: "ParameterViews", module: torch.nn.Module) -> list[Any]:
    """Returns the handles of the hooks of a module and its submodules. Copies of the module have none."""
    handles: list[Any] = []
    for submodule in module.modules():
        if any(views.gathers[u] for u in views.units.used_by(submodule)):
            handles.append(submodule.register_state_dict_post_hook(Hook(_warn, views.hidden_name)))
            handles.append(submodule.register_load_state_dict_pre_hook(Hook(_refuse, views.hidden_name)))
    return handles


def _hidden(hidden_name: Callable[[Any], str | None], module: torch.nn.Module, state: Any, prefix: str) -> str | None:
    """Returns the name of the first parameter of a module that has no values, is in the dictionary, and is not there as itself."""
    own = ((parameter, state.get(prefix + name)) for name, parameter in dict.items(module._parameters))
    named = (hidden_name(parameter) for parameter, value in own if value is not None and value is not parameter)
    return next(filter(None, named), None)


def _warn(hidden_name: Callable[[Any], str | None], module: torch.nn.Module, state: Any, prefix: str, _: Any) -> None:
    global _warned
    if _warned or (name := _hidden(hidden_name, module, state, prefix)) is None:
        return
    if any(frame.f_globals.get("__name__") in _READERS for frame, _ in traceback.walk_stack(None)):
        return
    _warned = True
    native.warn(
        f"warning: state_dict: {name} is NaN, because this rank has only a part of it; to save whole weights, call "
        "engine.save_16bit_model, read engine.whole_weights(), or call state_dict inside zero.GatheredParameters(module.parameters())"
    )


def _refuse(hidden_name: Callable[[Any], str | None], module: torch.nn.Module, state: Any, prefix: str, *_: Any) -> None:
    if name := _hidden(hidden_name, module, state, prefix):
        raise UsageError(
            f"load_state_dict: this rank has only a part of {name}; call engine.load_module_state_dict, or load inside "
            "zero.GatheredParameters(module.parameters(), modifier_rank=0)"
        )
