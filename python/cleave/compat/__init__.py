"""The less common DeepSpeed names: names.py maps each name to its object, and `install` creates the modules that are not files."""

import importlib
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import NotBuilt
from .names import MODULES, SUBMODULES


class _Unsupported(type):
    """An unsupported name: it can be imported, and a call or an attribute of it raises NotBuilt."""

    _why = ""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotBuilt(cls._why)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotBuilt(cls._why)


def name_of(below: str, name: str) -> Any:
    """Returns the object of a name in a module of the table.

    Raises:
        AttributeError: the name is unknown.
    """
    of = f"cleave.{below}".rstrip(".")
    row = MODULES[below].get(name, "")
    if row.startswith("!"):
        return _Unsupported(name, (), {"__module__": of, "__doc__": f"Not supported: {row[1:]}.", "_why": f"{of}.{name}: {row[1:]}"})
    if row:
        module, _, attribute = row.partition(":")
        return getattr(importlib.import_module(f"cleave.{module}"), attribute)
    if name in SUBMODULES.get(below, ()) or f"{below}.{name}" in MODULES:
        return importlib.import_module(f"{of}.{name}")
    raise AttributeError(f"{of}: has no {name}; docs/python.md lists the supported DeepSpeed names")


class _Names(ModuleType):
    """A module of the table."""

    def __init__(self, below: str) -> None:
        super().__init__(f"cleave.{below}", "DeepSpeed names (cleave/compat/names.py).")
        self._below, self.__path__ = below, list[str]()
        self.__spec__ = importlib.machinery.ModuleSpec(self.__name__, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name_of(self._below, name)


def install() -> None:
    """Makes the table's modules importable, except those that are files."""
    package = Path(__file__).parents[1]
    for below in MODULES:
        path = package / below.replace(".", "/")
        if not path.exists() and not path.with_name(f"{path.name}.py").exists():
            sys.modules.setdefault(f"cleave.{below}", _Names(below))
