"""What is built beside the package: its library, and the command-line program under the names that people type."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from .errors import CleaveError

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"  # clients write there what ranks shall have in their environment


def installed(file: str, variable: str = "") -> Path:
    """A file of the build: the one that a variable of the environment names, beside the package, or in its source tree."""
    here, named = Path(__file__).resolve().parent, os.environ.get(variable)
    candidates = [*([Path(named)] if named else []), here / file, here.parents[1] / "build" / "release" / file]
    for path in candidates:
        if path.exists():
            return path
    where = ", ".join(map(str, candidates)) + (f" or {variable}" if variable else "")
    raise CleaveError(
        f"{Path(file).name}: not found in {where}; install the package again, or run cmake --build --preset release in a clone"
    )


def main() -> NoReturn:
    """`cleave`, `deepspeed`, which is the launcher with DeepSpeed's command line, or `ds_report`: whichever this was called as."""
    name = Path(sys.argv[0]).stem
    os.execv(installed("bin/cleave"), [*(["cleave", "report"] if name == "ds_report" else [name]), *sys.argv[1:]])
