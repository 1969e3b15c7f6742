"""The logger named DeepSpeed, for messages of scripts."""

import logging
import os
from collections.abc import Iterable

logger = logging.getLogger("DeepSpeed")
"""The logger."""


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs on the given ranks (default: rank 0; -1: all)."""
    rank = int(os.environ.get("RANK", "0"))
    wanted = set(ranks) if ranks is not None else {0}
    if rank in wanted or -1 in wanted:
        logger.log(level, "[Rank %d] %s", rank, message)
