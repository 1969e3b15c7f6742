"""Engines as references: this one with another ds_config (--against OTHER.json), and DeepSpeed (--against deepspeed)."""

import pathlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from .follower import Follower, compared
from .optimizers import optimizer_of


class UpdatingFollower(Follower):
    """A reference that also updates, with the recorded gradients; its weights are compared with the update in double."""

    _times = 1.0  # factor from gradients on a rank to those of the step

    def __init__(self, engine: Any, folder: pathlib.Path, end: Callable[[], None] | None, steps: int, subject: pathlib.Path) -> None:
        super().__init__(engine, folder, end, steps, subject)
        given, made = engine.client_optimizer, getattr(engine.optimizer, "optimizer", engine.optimizer)
        if given is None:
            given = optimizer_of(engine.config.get("optimizer") or {}, None, [torch.nn.Parameter(torch.zeros(1))])
        self.rule = given if isinstance(given, torch.optim.Optimizer) else made
        self._sizes: dict[str, list[Any]] = {}
        self._expected: dict[str, tuple[torch.Tensor, ...]] = {}
        self._held: dict[str, torch.Tensor] = {}
        for name, p in self.names().items():
            if p.requires_grad:
                p.register_hook(partial(self._take, name))

    def _take(self, name: str, gradient: torch.Tensor) -> None:
        size = (gradient.to_dense() if gradient.is_sparse else gradient).detach().to("cpu", torch.float64).abs()
        kept = self._sizes.setdefault(name, [torch.zeros_like(size), 0])
        kept[0] += size
        kept[1] += 1

    def align(self) -> None:
        """Has no effect: the engine places its parameters."""

    def gradient(self, name: str) -> torch.Tensor:
        """Returns the averaged and unscaled gradient. Collective."""
        return self.engine.gradient_of(name)  # type: ignore[no-any-return]

    def set_gradient(self, name: str, value: torch.Tensor) -> None:
        """Overwrites the gradient of the step. Collective."""
        self.engine.set_parameter(name, value, "gradient")

    def sums(self, name: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        whole = self.gradient(name).to("cpu", torch.float64)
        sizes, count = self._sizes.pop(name, None) or [torch.zeros_like(whole), 0]
        counted = torch.tensor([float(count)])
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(sizes)
            dist.all_reduce(counted)
        return whole, 2 * self._times * sizes / self.scale, int(counted)  # both sums are rounded

    def held_before_update(self, name: str) -> torch.Tensor:
        return self._held[name]

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
                    self.set_gradient(name, gradients[name])
        self._sizes.clear()

    def after(self) -> None:
        for name in self.names():
            got = self.held(name).double()
            if name in self._expected:
                value, want, error = self._expected.pop(name)
                self.events.add("own update", self.step, name=name, **compared(got - value, want - value, error))
        super().after()


class EngineFollower(UpdatingFollower):
    """The engine with another ds_config."""

    def held(self, name: str) -> torch.Tensor:
        return self.engine.parameters_of(name)  # type: ignore[no-any-return]

    def follow_scale(self, scale: float) -> None:
        self.scale = self.engine._native.loss_scale()
        self.engine._native.wait_with_updates(1)  # so that recorded gradients can replace those of this step


class DeepSpeedFollower(UpdatingFollower):
    """DeepSpeed's engine."""

    def __init__(
        self,
        engine: Any,
        folder: pathlib.Path,
        end: Callable[[], None] | None,
        steps: int,
        subject: pathlib.Path,
        names_of_groups: list[list[str]],
    ) -> None:
        import deepspeed

        self._library, self._names_of_groups = deepspeed, names_of_groups
        self._times = 1.0 / engine.world_size
        engine.client_optimizer = getattr(engine, "client_optimizer", None)
        super().__init__(engine, folder, end, steps, subject)

    def begin(self) -> None:
        weights = self.recorded("weight", 0)
        for name, p in self.names().items():
            held = self.held(name)
            # DeepSpeed begins with masters in the type of the module.
            if name in weights and not torch.equal(held, weights[name].to(p.dtype).float()) and self.rank == 0:
                self.events.add("initial", 0, name=name)
        self.force(0)

    def names(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.engine.module.named_parameters() if getattr(p, "ds_numel", p.numel())}

    def groups(self) -> list[tuple[dict[str, Any], list[str]]]:
        return list(zip(self.engine.optimizer.param_groups, self._names_of_groups, strict=False))

    def held(self, name: str) -> torch.Tensor:
        p = self.names()[name]
        whole = self._library.utils.safe_get_full_fp32_param(p) if p.requires_grad else None
        if whole is None:
            with self._library.zero.GatheredParameters([p]):
                whole = p.detach().clone()
        return whole.to("cpu", torch.float32)

    def set(self, name: str, value: torch.Tensor) -> None:
        p = self.names()[name]
        if p.requires_grad:
            self._put("fp32_param", p, value)
        with self._library.zero.GatheredParameters([p], modifier_rank=0), torch.no_grad():
            p.copy_(value)

    def gradient(self, name: str) -> torch.Tensor:
        p = self.names()[name]
        whole = self._library.utils.safe_get_full_grad(p)
        return torch.zeros(getattr(p, "ds_shape", p.shape)) if whole is None else whole.float() / self.scale

    def set_gradient(self, name: str, value: torch.Tensor) -> None:
        self._put("grad", self.names()[name], value * self.scale)

    def _put(self, what: str, p: Any, value: torch.Tensor) -> None:
        utils, value = self._library.utils, value.to(self.engine.device)
        if self.engine.zero_optimization_stage() != 3:
            getattr(utils, f"safe_set_full_{what}")(p, value)
            return
        each = -(-value.numel() // self.engine.world_size)  # safe_set_full_... fails if ranks do not divide the parameter
        padded = torch.nn.functional.pad(value.flatten(), (0, each * self.engine.world_size - value.numel()))
        getattr(utils, f"safe_set_local_{what}")(p, padded[each * self.rank :][:each])

    def allowed(self, sizes: torch.Tensor, count: int) -> torch.Tensor:
        # At stage 3 it computes linear layers by its own function, in another order.
        return super().allowed(sizes, count) + 64 * self.eps() * (sizes.max() if self.engine.zero_optimization_stage() == 3 else 0.0)

    def expect(self, name: str, value: torch.Tensor, want: torch.Tensor, error: torch.Tensor) -> None:
        betas = next((group["betas"] for group, names in self.groups() if name in names and "betas" in group), (0.0,))
        rounded = torch.finfo(torch.float32).eps / (1 - max(betas))  # it corrects moments by betas in double, and has them in fp32
        super().expect(name, value, want, error + rounded * (want - value).abs())

    def follow_scale(self, scale: float) -> None:
        now = getattr(self.engine.optimizer, "loss_scale", 1.0)
        self.scale = float(now) if self.engine.fp16_enabled() else 1.0


def names_of_groups(model: torch.nn.Module, optimizer: Any, parameters: Iterable[Any] | None) -> list[list[str]]:
    """Returns the names of the parameters of each group, before DeepSpeed replaces them by flat ones."""
    names = {id(p): name for name, p in model.named_parameters()}
    groups: list[Any] = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else list(parameters or model.parameters())
    if groups and not isinstance(groups[0], dict):
        groups = [{"params": groups}]
    return [[names[id(p)] for p in group["params"] if id(p) in names and p.requires_grad] for group in groups]
