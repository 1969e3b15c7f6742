"""The engine as a reference, with another ds_config (--against OTHER.json)."""

import pathlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .follower import Follower, compared
from .optimizers import optimizer_of


class EngineFollower(Follower):
    """Follows with the engine: it also updates with the recorded gradients, and its weights are compared."""

    def __init__(self, engine: Any, folder: pathlib.Path, end: Callable[[], None] | None, steps: int, subject: pathlib.Path) -> None:
        super().__init__(engine, folder, end, steps, subject)
        given = engine.client_optimizer
        if not isinstance(given, torch.optim.Optimizer):
            alone = [torch.nn.Parameter(torch.zeros(1))]
            given = engine.optimizer.optimizer if callable(given) else optimizer_of(engine.config.get("optimizer") or {}, None, alone)
        self.rule = given
        self._sizes: dict[str, list[Any]] = {}
        self._expected: dict[str, tuple[torch.Tensor, ...]] = {}
        self._held: dict[str, torch.Tensor] = {}
        for name, p in self.names().items():
            if p.requires_grad:
                p.register_hook(lambda gradient, name=name: self._take(name, gradient))

    def _take(self, name: str, gradient: torch.Tensor) -> None:
        size = (gradient.to_dense() if gradient.is_sparse else gradient).detach().to("cpu", torch.float64).abs()
        kept = self._sizes.setdefault(name, [torch.zeros_like(size), 0])
        kept[0] += size
        kept[1] += 1

    def sums(self, name: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        whole = self.engine.gradient_of(name).double()
        sizes, count = self._sizes.pop(name, None) or [torch.zeros_like(whole), 0]
        if self.engine.world_size > 1:
            dist.all_reduce(sizes)
            count = int(self.engine._job.sum([float(count)])[0])
        return whole, 2 * sizes / self.scale, count  # both sums are rounded

    def held(self, name: str) -> torch.Tensor:
        return self.engine.parameters_of(name)  # type: ignore[no-any-return]

    def held_before_update(self, name: str) -> torch.Tensor:
        return self._held[name]

    def follow_scale(self, scale: float) -> None:
        self.scale = float(self.engine._native.facts()["loss_scale"])
        self.engine._native.wait_with_updates(1)  # so that recorded gradients can replace those of this step

    def expect(self, name: str, value: torch.Tensor, want: torch.Tensor, error: torch.Tensor) -> None:
        self._expected[name] = value, want, error

    def before(self) -> None:
        every = {name: self.held(name) for name in self.names()}
        self._held = every if self.rank == 0 else {}
        super().before()
        if self.is_updated():
            gradients = self.recorded("gradient", self.step)
            for name in self.trained():
                if name in gradients:
                    self.engine.set_parameter(name, gradients[name], "gradient")
        self._sizes.clear()

    def after(self) -> None:
        for name in self.names():
            got = self.engine.parameters_of(name).double()
            if name in self._expected:
                value, want, error = self._expected.pop(name)
                self.events.add("own update", self.step, name=name, **compared(got - value, want - value, error))
        super().after()
