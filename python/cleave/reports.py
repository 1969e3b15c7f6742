"""Reports of a training on rank 0: curves in files and services, and the lines that the ds_config asks for."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from . import native
from .profiled import ModuleProfile
from .wandb_run import WandbRun


class _Timed:
    """Context that runs a timer of the native engine."""

    def __init__(self, engine: native.NativeEngine, timer: str) -> None:
        self._engine, self._timer = engine, timer

    def __enter__(self) -> None:
        self._engine.time(self._timer, 1)

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._engine.time(self._timer, 0)


class MonitorMaster:
    """The monitors that a ds_config enables (`engine.monitor`); they write on rank 0 and have no effect on other ranks.

    The sections `tensorboard`, `csv_monitor`, `wandb` and `cleave.mlflow` select them. Each step adds the loss, the learning rate, the loss
    scale and the gradient norm at the number of trained samples, as `Train/Samples/train_loss`, `lr`, `loss_scale` and `grad_norm`. With
    `wall_clock_breakdown`, it adds `elapsed_time_ms_forward`, `backward`, `backward_inner`, `backward_allreduce` and `step`.
    """

    def __init__(self, engine: native.NativeEngine, values: Mapping[str, Any], rank: int) -> None:
        has = ctypes.c_int32()
        engine.has_monitors(ctypes.byref(has))
        self._engine, self._rank, self._values, facts = engine, rank, values, engine.facts()
        self.enabled = bool(has.value)
        self._reports, self._world = bool(facts["reports"]), math.prod(facts["mesh"].values())
        self._computes = not facts["vocabulary"]  # the script computes the module
        self._times = any(values.get(key) for key in ("wall_clock_breakdown", "flops_profiler.enabled"))
        self.reports_at_end = any(values.get(key) for key in ("wall_clock_breakdown", "comms_logger.enabled", "wandb.enabled"))
        self._wandb = WandbRun(engine, values) if rank == 0 and values.get("wandb.enabled") else None
        self._profile: ModuleProfile | None = None
        if rank == 0 and values.get("dump_state"):
            print("effective values:", *(f"  {key} = {json.dumps(value)}" for key, value in values.items()), sep="\n")
            print(facts["units"], flush=True)

    def write_events(self, event_list: Iterable[tuple[str, Any, int]], flush: bool = True) -> None:
        """Adds points to curves, as in DeepSpeed.

        Args:
            event_list: tag, value and number of trained samples of each point.
            flush: accepted; another thread writes the points, within 50 ms.
        """
        for tag, value, samples in event_list if self.enabled else ():
            self._engine.write_scalar(tag, float(value), int(samples))

    def timed(self, timer: str, when: bool = True) -> contextlib.AbstractContextManager[None]:
        """Returns a context that adds to a timer of `wall_clock_breakdown`: fwd, bwd, bwd_inner or step."""
        measures = self._times and when and (self._computes or timer == "step")
        return _Timed(self._engine, timer) if measures else contextlib.nullcontext()

    def start(self, timer: str) -> None:
        """Starts a timer that `stop` stops."""
        if self._times:
            self._engine.time(timer, 1)

    def stop(self, timer: str) -> None:
        """Stops a timer."""
        if self._times:
            self._engine.time(timer, 0)

    def profiled(self, engine: Any) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for passes of a step, which `flops_profiler` may measure."""
        asked = self._times and self._computes and self._rank == 0 and self._values.get("flops_profiler.enabled")
        if not asked or engine.global_steps != self._values["flops_profiler.profile_step"] or not torch.is_grad_enabled():
            return contextlib.nullcontext()
        self._profile = self._profile or ModuleProfile(engine.module, engine.device)
        return self._profile

    def step(self, result: Any, samples: int) -> None:
        """Reports a step; samples: trained so far. Collective with `wall_clock_breakdown`, `flops_profiler` or `comms_logger`."""
        if self._profile is not None:
            facts = [f"after {result.step - 1} steps; rank 0 of {self._world}"]
            rows = list(self._profile.rows(int(self._values["flops_profiler.module_depth"])))
            self._engine.give_profile(json.dumps({"rows": rows, "facts": facts + self._profile.facts()}))
            self._profile = None
        if self._reports:
            self._print(self._engine.asked("report_step", result, samples))
        if self._wandb is not None:
            self._wandb.take()

    def end(self) -> None:
        """Prints the rest of the reports."""
        if self._wandb is not None and not self._engine.freed:
            self._wandb.finish()
            self._wandb = None
        if self._reports and not self._engine.freed:
            self._reports = False
            self._print(self._engine.asked("report_end"))

    def collectives(self) -> str:
        """Returns the table of `comms_logger` up to now, an empty string if it is off."""
        return self._engine.asked("collectives")

    def _print(self, text: str) -> None:
        if text and self._rank == 0:
            print(text, flush=True)
