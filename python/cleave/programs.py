"""The command-line program under the names that people type."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from .errors import CleaveError


def _program() -> Path:
    here = Path(__file__).resolve().parent
    candidates = [here / "bin" / "cleave", here.parents[1] / "build" / "release" / "bin" / "cleave"]
    for path in candidates:
        if path.exists():
            return path
    raise CleaveError(f"the program cleave is in none of {', '.join(map(str, candidates))}: install the package again")


def _become(name: str, *arguments: str) -> NoReturn:
    os.execv(_program(), [name, *arguments, *sys.argv[1:]])


def cleave() -> NoReturn:
    """`cleave`."""
    _become("cleave")


def deepspeed() -> NoReturn:
    """`deepspeed`: the launcher, with DeepSpeed's command line."""
    _become("deepspeed")


def ds_report() -> NoReturn:
    """`ds_report`: what this machine and this build offer."""
    _become("cleave", "report")
