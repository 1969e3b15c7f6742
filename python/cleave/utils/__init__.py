"""deepspeed.utils: states of parameters, loaders, logs."""

from __future__ import annotations

import importlib
from typing import Any

_FILES = ("groups", "leaves", "loading", "logging", "states", "zero_to_fp32")


def __getattr__(name: str) -> Any:
    from ..compat.names import MODULES, found

    if name in _FILES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in MODULES["utils"]:
        return found(MODULES["utils"][name], f"{__name__}.{name}")
    raise AttributeError(f"cleave.utils has no {name}: it is not built; docs/python.md lists what of DeepSpeed's names is")
