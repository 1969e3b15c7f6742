"""DeepSpeed's long tail of names: modules that exist as rows of a table (names.py)."""

import importlib
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .names import MODULES, found


class _Names(ModuleType):
    """A module of the table."""

    def __init__(self, below: str, rows: dict[str, Any]) -> None:
        super().__init__(f"cleave.{below}", "Names of DeepSpeed's (cleave/compat/names.py).")
        self._below, self._rows, self.__path__ = below, rows, list[str]()
        self.__spec__ = importlib.machinery.ModuleSpec(self.__name__, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._rows:
            return found(self._rows[name], f"{self.__name__}.{name}")
        if f"{self._below}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"{self.__name__} has no {name}: it is not built; docs/python.md lists what of DeepSpeed's names is")


def install() -> None:
    """Lets the table's modules be imported, but for those that are files."""
    package = Path(__file__).parents[1]
    for below, rows in MODULES.items():
        if not (package / below).exists():
            sys.modules.setdefault(f"cleave.{below}", _Names(below, rows))
