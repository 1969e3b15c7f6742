"""Cleave as the module that training scripts know: `import cleave as deepspeed`.

Importing it loads neither torch nor the native library; both come with the first name that needs them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import compat

__version__ = "0.1.0"

# Names by the module that has them.
_NAMES = {
    **dict.fromkeys(("initialize", "init_distributed", "add_config_arguments"), "api"),
    "plan": "planning",
    "DeepSpeedEngine": "engine",
    "PipelineEngine": "pipeline",
    "PipelineModule": "layers",
    **dict.fromkeys(("CleaveError", "UsageError", "OutOfMemory", "CheckpointError", "TrainingError", "RankLost"), "errors"),
    **dict.fromkeys(("NotBuilt", "StepOrderError"), "errors"),
}
_MODULES = ("accelerator", "checkpointing", "comm", "ops", "pipe", "runtime", "utils", "zero")

if TYPE_CHECKING:
    from . import checkpointing as checkpointing
    from . import comm as comm
    from . import ops as ops
    from . import utils as utils
    from . import zero as zero
    from .api import add_config_arguments, init_distributed, initialize  # noqa: F401
    from .engine import DeepSpeedEngine as DeepSpeedEngine
    from .errors import CheckpointError, CleaveError, NotBuilt, OutOfMemory, RankLost, StepOrderError, TrainingError, UsageError  # noqa: F401
    from .layers import PipelineModule as PipelineModule
    from .pipeline import PipelineEngine as PipelineEngine
    from .planning import plan as plan


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    from .compat.names import NOT_BUILT, found

    if name in NOT_BUILT:
        return found(NOT_BUILT[name], f"{__name__}.{name}")
    raise AttributeError(f"cleave has no {name}; docs/python.md lists what of DeepSpeed's names is built")


def __dir__() -> list[str]:
    return sorted([*_NAMES, *_MODULES, "__version__"])


compat.install()
