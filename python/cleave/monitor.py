"""Curves and lines of a training on rank 0: TensorBoard and CSV files, `steps_per_print` and `dump_state`."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Mapping
from typing import Any

from . import native


class Monitor:
    """The monitors that a ds_config enables (`engine.monitor`); they write on rank 0 and have no effect on other ranks.

    The sections `tensorboard` and `csv_monitor` select them. Each step adds the loss, the learning rate, the loss scale and the gradient
    norm at the number of trained samples, as `Train/Samples/train_loss`, `lr`, `loss_scale` and `grad_norm`.
    """

    def __init__(self, engine: native.NativeEngine, values: Mapping[str, Any], rank: int) -> None:
        has = ctypes.c_int32()
        engine.has_monitors(ctypes.byref(has))
        self._engine = engine
        self.enabled = bool(has.value)
        self._reports = rank == 0 and (self.enabled or any(values.get(key) for key in ("steps_per_print", "memory_breakdown")))
        if rank == 0 and values.get("dump_state"):
            print("effective values:", *(f"  {key} = {json.dumps(value)}" for key, value in values.items()), sep="\n")
            print(engine.facts()["units"], flush=True)

    def write_events(self, event_list: Iterable[tuple[str, Any, int]], flush: bool = True) -> None:
        """Adds points to curves, as in DeepSpeed.

        Args:
            event_list: tag, value and number of trained samples of each point.
            flush: accepted; points are written at once.
        """
        for tag, value, samples in event_list if self.enabled else ():
            self._engine.write_scalar(tag, float(value), int(samples))

    def step(self, result: Any, samples: int) -> None:
        """Reports a step; samples: trained so far."""
        if self._reports and (line := self._engine.asked("report_step", result, samples)):
            print(line, flush=True)
