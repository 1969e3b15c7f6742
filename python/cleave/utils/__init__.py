"""deepspeed.utils: states of parameters, loaders, logs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import groups as groups
    from . import zero_to_fp32 as zero_to_fp32
    from .leaves import get_z3_leaf_modules as get_z3_leaf_modules
    from .leaves import set_z3_leaf_module as set_z3_leaf_module
    from .leaves import set_z3_leaf_modules as set_z3_leaf_modules
    from .leaves import unset_z3_leaf_modules as unset_z3_leaf_modules
    from .leaves import z3_leaf_module as z3_leaf_module
    from .leaves import z3_leaf_parameter as z3_leaf_parameter
    from .loading import RepeatingLoader as RepeatingLoader
    from .logging import log_dist as log_dist
    from .logging import logger as logger
    from .states import safe_get_full_fp32_param as safe_get_full_fp32_param
    from .states import safe_get_full_grad as safe_get_full_grad
    from .states import safe_get_full_optimizer_state as safe_get_full_optimizer_state
    from .states import safe_set_full_fp32_param as safe_set_full_fp32_param
    from .states import safe_set_full_optimizer_state as safe_set_full_optimizer_state

_FILES = ("groups", "leaves", "loading", "logging", "states", "zero_to_fp32")


def __getattr__(name: str) -> Any:
    from ..compat.names import MODULES, found

    if name in _FILES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in MODULES["utils"]:
        return found(MODULES["utils"][name], f"{__name__}.{name}")
    raise AttributeError(f"cleave.utils has no {name}: it is not built; docs/python.md lists what of DeepSpeed's names is")
