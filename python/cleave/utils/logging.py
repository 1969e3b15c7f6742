"""Messages of scripts, under the logger's name that they know."""

import logging
import os
from collections.abc import Iterable

logger = logging.getLogger("DeepSpeed")


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs on these ranks: on the first where none is named, on all by -1."""
    rank = int(os.environ.get("RANK", "0"))
    wanted = set(ranks) if ranks is not None else {0}
    if rank in wanted or -1 in wanted:
        logger.log(level, "[Rank %d] %s", rank, message)
