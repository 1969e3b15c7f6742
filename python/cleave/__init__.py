"""Training engine with the interface of DeepSpeed: `import cleave as deepspeed`.

Importing the package loads neither torch nor the native library; the first name that needs them loads both.
"""

from typing import TYPE_CHECKING, Any

from . import compat

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import checkpointing as checkpointing
    from . import comm as comm
    from . import ops as ops
    from . import utils as utils
    from . import zero as zero
    from .api import add_config_arguments, init_distributed, initialize, tp_model_init  # noqa: F401
    from .engine import DeepSpeedEngine as DeepSpeedEngine
    from .errors import CheckpointError, CleaveError, NotBuilt, OutOfMemory, RankLost, StepOrderError, TrainingError, UsageError  # noqa: F401
    from .layers import PipelineModule as PipelineModule
    from .pipeline import PipelineEngine as PipelineEngine
    from .planning import plan as plan


def __getattr__(name: str) -> Any:
    return compat.name_of("", name)


def __dir__() -> list[str]:
    return sorted([*compat.MODULES[""], *compat.SUBMODULES[""], "__version__"])


compat.install()
