"""Observes an engine in both runs: losses, outputs, groups and the result of each step."""

import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import torch

from ..errors import NotBuilt, UsageError
from ..units import shape_of
from .events import VALUES, Events
from .records import TensorWriter
from .watch import Watch


def plain_values(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a group as JSON values."""
    found = {key: group[key] for key in VALUES if key in group}
    return {key: list(map(float, v)) if isinstance(v, list | tuple) else float(v) for key, v in found.items()}


class Observer:
    """Common part of both runs; subclasses record or follow at each update."""

    def __init__(self, engine: Any, folder: pathlib.Path, end: Callable[[], None] | None, steps: int) -> None:
        """Attaches to an engine.

        Args:
            folder: for the records.
            end: ends the process; called after the last step. None: another engine decides when the comparison ends.
            steps: number of steps.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.engine, self.folder, self.steps, self._end = engine, folder, steps, end
        self.rank, self.step, self.micro = int(engine.global_rank), 0, 0
        self.events = Events(folder, self.rank)
        engine.compile = engine.destroy = lambda *args, **kwargs: None
        engine.save_checkpoint = engine.save_16bit_model = engine.save_fp16_model = lambda *args, **kwargs: True
        load, self._named = engine.load_checkpoint, dict[str, torch.nn.Parameter]()
        engine.load_checkpoint = lambda *args, **kwargs: _nothing(load(*args, **kwargs))
        self._watch = Watch(engine.module, self._emit)
        self._attach()

    def _attach(self) -> None:
        """Replaces the functions of the engine that make a step."""
        engine = self.engine
        self._backward, self._step = engine.backward, engine.step
        engine.backward, engine.step = self._on_backward, self._on_step

    def _emit(self, what: str, **more: Any) -> None:
        if not self.is_quiet():
            self.events.add(what, self.step, micro=self.micro, **more)

    def is_quiet(self) -> bool:
        """Returns True while the engine computes what this rank does not compute in the other run."""
        return bool(getattr(self.engine, "quiet", False))

    def names(self) -> dict[str, torch.nn.Parameter]:
        """Returns the parameters by name."""
        named = getattr(self.engine, "names", None)
        return named if isinstance(named, dict) else {s.name: s.parameter for s in self.engine._units.slots() if not s.has_bits}

    def groups(self) -> list[tuple[dict[str, Any], list[str]]]:
        """Returns the parameter groups of the optimizer with the names of their parameters."""
        names = {id(p): name for name, p in self.names().items()}
        return [(group, [names[id(p)] for p in group["params"] if id(p) in names]) for group in self.engine.optimizer.param_groups]

    def trained(self) -> list[str]:
        """Returns the names of the parameters that the optimizer trains now, in the order of the module."""
        has = {name for _, names in self.groups() for name in names}
        return [name for name, p in self.names().items() if name in has and p.requires_grad]

    def _on_backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._backward(loss, *args, **kwargs)
        self.events.add("loss", self.step, micro=self.micro, value=float(loss.detach()))
        self.micro += 1
        return result

    def _on_step(self, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        updates = not getattr(engine, "_managed", True) or engine.is_gradient_accumulation_boundary()
        if updates:
            self._begin_update()
        result = self._step(*args, **kwargs)
        if updates:
            self._end_update()
        return result

    def _begin_update(self) -> None:
        groups = self.groups_now()
        for group in groups if self.rank == 0 else ():
            self.events.add("group", self.step, **group)
        self.before()

    def _end_update(self) -> None:
        self.after()
        self.step, self.micro = self.step + 1, 0
        if self.step == self.steps:
            self.end()

    def end(self) -> None:
        """Ends the comparison."""
        if self._end:
            self._end()

    def groups_now(self) -> list[dict[str, Any]]:
        """Returns names, frozen names and values of each parameter group."""
        named = self.names()
        return [
            {"names": names, "frozen": [name for name in names if not named[name].requires_grad], "values": plain_values(group)}
            for group, names in self.groups()
        ]

    def begin(self) -> None:
        """Called after initialize."""

    def before(self) -> None:
        """Called before an update; the gradients of the step are complete. Collective."""

    def after(self) -> None:
        """Called after an update. Collective."""

    def close(self) -> None:
        self.events.flush()


def _nothing(loaded: Any) -> Any:
    if loaded[0] is not None:
        raise NotBuilt("load_checkpoint: not supported in a comparison, which starts without optimizer state; leave it out")
    return loaded


class Recorder(Observer):
    """The subject: records gradients, weights and results of the engine."""

    def __init__(self, engine: Any, folder: pathlib.Path, end: Callable[[], None] | None, steps: int) -> None:
        super().__init__(engine, folder, end, steps)
        self._gradients, self._weights = TensorWriter(folder, "gradient"), TensorWriter(folder, "weight")

    def _all(self, kind: str, names: list[str]) -> Any:
        """Yields whole tensors. Collective."""
        for name in names:
            whole = self.engine.gradient_of(name) if kind == "gradient" else self.engine.parameters_of(name)
            yield name, whole

    def _write(self, writer: TensorWriter, kind: str, step: int, names: list[str]) -> None:
        whole = self._all(kind, names)
        if self.rank == 0:
            writer.write(step, whole)
        for _ in whole:
            pass

    def begin(self) -> None:
        engine, values = self.engine, self.engine._configuration.values
        types = [engine._precision, values.get("data_types.grad_accum_dtype"), values.get("communication_data_type")]
        cache = not engine._residency.any_gathers  # autocast keeps casts of weights, and adds the gradients of their uses in 16 bits
        facts = {"types": types, "cache": cache, "exact_sums": bool(values.get("cleave.exact_sums"))}
        self._require_space()
        micros = engine.gradient_accumulation_steps()
        self.events.add(
            "start", 0, names=list(self.names()), ranks=engine.world_size, micros=micros, stage=engine.zero_optimization_stage(), **facts
        )
        self._write(self._weights, "weight", 0, list(self.names()))

    def _require_space(self) -> None:
        """Prints how much space the records take, and checks that it is free."""
        named = {name: 4 * shape_of(p).numel() for name, p in self.names().items()}
        trained = sum(named[name] for name in self.trained())
        most, free = sum(named.values()) + 2 * self.steps * trained, shutil.disk_usage(self.folder).free
        if self.rank == 0 and self._end:
            print(f"compare: records of gradients and weights take {most / 2**20:.1f} MiB in {self.folder}", flush=True)
        if most > free:
            text = f"compare: not enough space in {self.folder} (got {free}, expected {most} bytes)"
            raise UsageError(f"{text}; set TMPDIR or --keep to another disk, or use fewer --steps")

    def before(self) -> None:
        self._scale = self.engine._native.loss_scale()
        self._write(self._gradients, "gradient", self.step, self.trained())

    def after(self) -> None:
        engine, result = self.engine, self.engine.last_result
        self.events.add(
            "step",
            self.step,
            norm=float(result.grad_norm),
            skipped=not engine.was_step_applied(),
            scale=self._scale,
            rate=float(result.lr),
        )
        if self.step == 0:
            seen = self._watch.alignments
            self.events.add(
                "alignment", 0, of={name: seen.get(id(p), p.data_ptr() % 64) for name, p in self.names().items() if not p.is_meta}
            )
        self._write(self._weights, "weight", self.step + 1, list(self.names()))
        self.events.flush()
