"""DeepSpeed's long tail of names: modules that exist as rows of a table (names.py), made when somebody imports them."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


class _Names(ModuleType):
    """A module of the table."""

    _rows: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from .names import MODULES, found

        below = self.__name__.partition(".")[2]
        if name in self._rows:
            return found(self._rows[name], f"{self.__name__}.{name}")
        if f"{below}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"{self.__name__} has no {name}: it is not built; docs/python.md lists what of DeepSpeed's names is")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the table's modules below this package, after those that are files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, below = fullname.partition(".")
        if package != _PACKAGE or not below:
            return None
        from .names import MODULES

        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if below in MODULES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        from .names import MODULES

        module._rows = MODULES[module.__name__.partition(".")[2]]  # type: ignore[attr-defined]
        module.__doc__ = "Names of DeepSpeed's (cleave/compat/names.py)."


def install() -> None:
    """Lets the table's modules be imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
