"""Installed files of the package: the native library, and the `cleave` program with its other names."""

import contextlib
import importlib.util
import os
import platform
import runpy
import sys
from pathlib import Path
from typing import NoReturn

from .errors import CleaveError, UsageError

_FOLDERS, _CUDA_LIBRARIES = "CLEAVE_CUDA_LIBRARIES", ("libcublasLt", "libcudnn", "libnccl")
DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"  # clients write variables for the environment of ranks there


def installed(file: str, variable: str = "") -> Path:
    """Returns a file of the build: named by an environment variable, in the package, or in the source tree.

    Raises:
        UsageError: the variable names a missing file.
        CleaveError: not found.
    """
    here, named = Path(__file__).resolve().parent, os.environ.get(variable)
    candidates = [Path(named)] if named else [here / file, here.parents[1] / "build" / "release" / file]
    for path in candidates:
        if path.exists():
            return path
    if named:
        raise UsageError(f"{variable}: names a missing file (got {named}, expected {Path(file).name}); correct it or leave it out")
    where = ", ".join(map(str, candidates)) + (f" or {variable}" if variable else "")
    raise CleaveError(
        f"{Path(file).name}: not found in {where}; install the package again, or run cmake --build --preset release in a clone"
    )


def name_cuda_libraries() -> None:
    """Names the folders of the CUDA libraries in Python packages, for the engine in this process and in child processes."""
    packages = importlib.util.find_spec("nvidia")
    roots = packages.submodule_search_locations if packages else None
    files = (file for root in roots or () for name in _CUDA_LIBRARIES for file in sorted(Path(root).glob(f"*/lib/{name}.so.*")))
    folders = dict.fromkeys(str(file.parent) for file in files)
    if folders and not os.environ.get(_FOLDERS):
        os.environ[_FOLDERS] = ":".join(folders)


def _version_of_torch() -> str:
    """Returns the version of torch with that of its CUDA, without the time of an import."""
    package = importlib.util.find_spec("torch")
    for folder in package.submodule_search_locations or () if package else ():
        with contextlib.suppress(Exception):  # a damaged installation
            return str(runpy.run_path(f"{folder}/version.py")["__version__"])
    return "unknown" if package else "not installed"


def main() -> NoReturn:
    """Runs `cleave`, `deepspeed` (the launcher with the DeepSpeed command line) or `ds_report`, by the name of this program."""
    name_cuda_libraries()
    name = Path(sys.argv[0]).stem
    arguments = [*(["cleave", "report"] if name == "ds_report" else [name]), *sys.argv[1:]]
    if arguments == ["cleave", "report"]:  # a table, without --json
        print(f"python        {platform.python_version()}, torch {_version_of_torch()}", flush=True)
    os.execv(installed("bin/cleave"), arguments)
