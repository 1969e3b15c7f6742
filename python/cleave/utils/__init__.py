"""Utilities with DeepSpeed's names: parameter states, loaders and logs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import groups as groups
    from . import zero_to_fp32 as zero_to_fp32
    from .leaves import *  # noqa: F403
    from .loading import RepeatingLoader as RepeatingLoader
    from .logging import log_dist as log_dist
    from .logging import logger as logger
    from .states import *  # noqa: F403


def __getattr__(name: str) -> Any:
    from .. import compat

    return compat.name_of("utils", name)
