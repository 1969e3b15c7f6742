"""Weights & Biases: the package wandb writes the events of an engine to a run, as the section `wandb` of the ds_config says."""

from __future__ import annotations

import atexit
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from . import native
from .errors import UsageError


def _points(event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the points of an event; curves have DeepSpeed's names."""
    kind = event["event"]
    if kind == "scalars":
        yield from ((tag, float(value)) for tag, value in event["scalars"].items())
    elif kind == "memory":
        yield from ((f"memory_{event['kind']}_bytes/{name}", float(value)) for name, value in event["bytes"].items())
    elif kind == "checkpoint":
        yield from ((f"checkpoint/{event['kind']}_{name}", float(event[name])) for name in ("seconds", "bytes"))
    elif kind == "collectives":
        for name, sums in event["sums"].items():
            yield from ((f"collectives/{name}/{of}", float(value)) for of, value in sums.items())


class WandbRun:
    """A run on rank 0. The package sends it, or keeps it in a folder with WANDB_MODE=offline."""

    def __init__(self, engine: native.NativeEngine, values: Mapping[str, Any]) -> None:
        """Starts the run.

        Raises:
            UsageError: the package is missing, or cannot start a run.
        """
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError:
            raise UsageError("wandb.enabled: the Python package wandb is missing; run pip install wandb, or disable the section") from None
        _value = values.__getitem__
        names = {"project": _value("wandb.project"), "group": _value("wandb.group") or None, "entity": _value("wandb.team") or None}
        try:
            self._run: Any = wandb.init(**names)
        except Exception as error:
            raise UsageError(f"wandb.enabled: {error}; run wandb login, or set WANDB_MODE=offline") from None
        atexit.register(self._leave)  # runs before the package ends the run with the exit code of the script
        self._engine, self._samples, self._waiting = engine, 0, {}  # type: tuple[native.NativeEngine, int, dict[str, float]]

    def take(self, wait: bool = False) -> None:
        """Adds the events since the last call, with the number of trained samples as the step of the run.

        Args:
            wait: first wait for events that are still on their way.
        """
        for event in json.loads(self._engine.asked("take_events", int(wait))) if self._run is not None else ():
            self._waiting.update(_points(event))
            if event["event"] == "start":
                self._tell(lambda run, config=event["fields"]["config"]: run.config.update(config))
            if event["event"] == "scalars":
                self._samples = max(self._samples, event["samples"])
                self._flush()

    def finish(self) -> None:
        """Ends the run."""
        atexit.unregister(self._leave)
        self.take(wait=True)
        self._flush()
        self._tell(lambda run: run.finish())
        self._run = None

    def _leave(self) -> None:
        """Adds the last events. The package ends the run."""
        if not self._engine.freed:
            self.take(wait=True)
            self._flush()
        self._run = None

    def _flush(self) -> None:
        points, self._waiting = self._waiting, {}
        if points:
            self._tell(lambda run: run.log(points, step=self._samples))

    def _tell(self, call: Any) -> None:
        """Calls the package. Its errors do not end the training."""
        if self._run is None:
            return
        try:
            call(self._run)
        except Exception as error:
            self._run = None
            native.warn(f"warning: wandb: {error}; this run adds nothing more to it")
