"""Events of a rank as lines of JSON."""

import json
import pathlib
from typing import Any

from .records import writing

VALUES = ("lr", "betas", "weight_decay", "eps", "momentum", "dampening", "nesterov", "lr_decay", "bias_correction")  # numbers of a group


class Events:
    """Writes what happened on a rank."""

    def __init__(self, folder: pathlib.Path, rank: int) -> None:
        self._folder = folder
        with writing(folder):
            self._file = open(folder / f"rank{rank}.jsonl", "w")  # noqa: SIM115  lives as long as the process

    def add(self, what: str, step: int, **more: Any) -> None:
        with writing(self._folder):
            self._file.write(json.dumps({"what": what, "step": step, **more}) + "\n")

    def flush(self) -> None:
        with writing(self._folder):
            self._file.flush()


def events_of(folder: pathlib.Path, rank: int, *kinds: str) -> list[dict[str, Any]]:
    """Returns the events of a rank, or those of some kinds."""
    path = folder / f"rank{rank}.jsonl"
    every = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in every if not kinds or event["what"] in kinds]
