"""deepspeed.utils: states of parameters, loaders, logs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import groups as groups
    from . import zero_to_fp32 as zero_to_fp32
    from .leaves import *  # noqa: F403
    from .loading import RepeatingLoader as RepeatingLoader
    from .logging import log_dist as log_dist
    from .logging import logger as logger
    from .states import *  # noqa: F403

_FILES = ("groups", "leaves", "loading", "logging", "states", "zero_to_fp32")


def __getattr__(name: str) -> Any:
    from ..compat.names import MODULES, found

    if name in _FILES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in MODULES["utils"]:
        return found(MODULES["utils"][name], f"{__name__}.{name}")
    raise AttributeError(f"cleave.utils has no {name}: it is not built; docs/python.md lists what of DeepSpeed's names is")
