"""Observes an engine in both runs: losses, outputs, groups and the result of each step."""

import pathlib
from collections.abc import Callable
from typing import Any

import torch

from ..errors import NotBuilt
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
        self._backward, self._step = engine.backward, engine.step
        engine.backward, engine.step = self._on_backward, self._on_step
        engine.compile = engine.destroy = lambda *args, **kwargs: None
        engine.save_checkpoint = engine.save_16bit_model = engine.save_fp16_model = lambda *args, **kwargs: True
        load, self._named = engine.load_checkpoint, dict[str, torch.nn.Parameter]()
        engine.load_checkpoint = lambda *args, **kwargs: _nothing(load(*args, **kwargs))
        Watch(engine.module, lambda what, **more: self.events.add(what, self.step, micro=self.micro, **more))

    def names(self) -> dict[str, torch.nn.Parameter]:
        """Returns the parameters by name."""
        named = getattr(self.engine, "names", None)
        return named if isinstance(named, dict) else {slot.name: slot.parameter for slot in self.engine._units.slots()}

    def trained(self) -> list[str]:
        """Returns the names of the parameters that the optimizer trains now, in the order of the module."""
        has = {id(p) for group in self.engine.optimizer.param_groups for p in group["params"]}
        return [name for name, p in self.names().items() if id(p) in has and p.requires_grad]

    def _on_backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._backward(loss, *args, **kwargs)
        self.events.add("loss", self.step, micro=self.micro, value=float(loss.detach()))
        self.micro += 1
        return result

    def _on_step(self, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        updates = not engine._managed or engine.is_gradient_accumulation_boundary()
        if updates:
            self._note_groups()
            self.before()
        result = self._step(*args, **kwargs)
        if updates:
            self.after()
            self.step, self.micro = self.step + 1, 0
            if self.step == self.steps:
                self.end()
        return result

    def end(self) -> None:
        """Ends the comparison."""
        if self._end:
            self._end()

    def _note_groups(self) -> None:
        names = {id(p): name for name, p in self.names().items()}
        for group in self.engine.optimizer.param_groups if self.rank == 0 else ():
            known = [names[id(p)] for p in group["params"] if id(p) in names]
            frozen = [name for name in known if not self.names()[name].requires_grad]
            self.events.add("group", self.step, names=known, frozen=frozen, values=plain_values(group))

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
        micros = engine.gradient_accumulation_steps()
        self.events.add(
            "start", 0, names=list(self.names()), ranks=engine.world_size, micros=micros, stage=engine.zero_optimization_stage(), **facts
        )
        self._write(self._weights, "weight", 0, list(self.names()))

    def before(self) -> None:
        self._scale = float(self.engine._native.facts()["loss_scale"])
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
        self._write(self._weights, "weight", self.step + 1, list(self.names()))
        self.events.flush()
