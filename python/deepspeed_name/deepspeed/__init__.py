"""The package name `deepspeed` for scripts and libraries that import it; its contents are those of Cleave."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

if importlib.util.find_spec("cleave") is None:  # installed from a clone, next to the cleave package
    sys.path.append(str(Path(__file__).resolve().parents[2]))

import cleave

__version__ = "0.19.8"  # version with the same behavior
version = __version__
__version_major__, __version_minor__, __version_patch__ = 0, 19, 8
__git_hash__ = __git_branch__ = None  # not built from DeepSpeed's tree


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook: deepspeed.NAME is the module cleave.NAME."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{__name__}."):
            return None
        below = fullname.partition(".")[2]
        if importlib.util.find_spec(f"cleave.{below}") is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"cleave.{spec.name.partition('.')[2]}")
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the module keeps its own name


def __getattr__(name: str) -> Any:
    return getattr(cleave, name)


def __dir__() -> list[str]:
    return dir(cleave)


sys.meta_path.insert(0, _Aliases())
