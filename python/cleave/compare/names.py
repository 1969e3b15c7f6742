"""Other names for packages in a run: `deepspeed` for Cleave, or `cleave` for DeepSpeed."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook: NAME.below is the module TARGET.below."""

    def __init__(self, name: str, target: str) -> None:
        self._name, self._target, self._specs = name, target, dict[str, Any]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{self._name}.") or fullname.startswith("cleave.compare"):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{self._target}.{spec.name.partition('.')[2]}")
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._specs[next(name for name, spec in self._specs.items() if spec.name == module.__name__)]


def alias(name: str, target: str) -> None:
    """Makes `import NAME` import another package."""
    whole = importlib.import_module(target)
    for known in [
        known for known in sys.modules if known == name or (known.startswith(f"{name}.") and not known.startswith("cleave.compare"))
    ]:
        del sys.modules[known]
    sys.modules[name] = whole
    sys.meta_path.insert(0, _Aliases(name, target))


def is_deepspeed_here() -> bool:
    """Returns True if DeepSpeed itself is installed, which has the name that scripts import."""
    spec = importlib.util.find_spec("deepspeed")
    return spec is not None and "deepspeed_name" not in str(spec.origin)
