"""Cases of losses_test.py for ranks: losses that reach an engine on unusual ways, compared with a loop in torch; each returns JSON."""

from __future__ import annotations

import copy
import dataclasses
import types
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from engine_cases import config, in_torch
from torch import nn
from torch.nn import functional as F

WIDTH = models.WIDTH


def _config(stage: int, **more: Any) -> dict[str, Any]:
    given = {"optimizer": {"type": "Adam", "params": {"lr": 1e-2, "eps": 1e-4}}, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0}
    made = config(stage, **given, **more)
    made["zero_optimization"]["stage3_param_persistence_threshold"] = 0 if stage == 3 else 20
    return made


def _pair() -> list[nn.Module]:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
    return [maker, nn.Sequential(nn.Linear(8, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1))]


def _samples(step: int, ranks: range) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draws = [torch.Generator().manual_seed(100 * step + rank) for rank in ranks]
    return [(torch.randn(4, 4, generator=draw), torch.randn(4, 8, generator=draw)) for draw in draws]


def _wanted(steps: int, ranks: int) -> list[nn.Module]:
    """Returns the modules after a loop in torch over the samples of all ranks."""
    maker, judge = modules = _pair()
    optimizers = [torch.optim.Adam(module.parameters(), lr=1e-2, eps=1e-4) for module in modules]
    for step in range(steps):
        judge.zero_grad()
        for noise, real in _samples(step, range(ranks)):
            (F.softplus(-judge(real)).mean() / ranks).backward()
            (F.softplus(judge(maker(noise).detach())).mean() / ranks).backward()
        optimizers[1].step()
        maker.zero_grad()
        for noise, _ in _samples(step, range(ranks)):
            (F.softplus(-judge(maker(noise))).mean() / ranks).backward()
        optimizers[0].step()
    return modules


def adversaries(stages: list[int]) -> dict[str, list[float]]:
    """Trains two engines, where the loss of one goes through the module of the other, which drops its gradients in three ways; returns the
    largest differences of their weights."""
    out = {}
    for stage in stages:
        for drop in ("module", "engine", "optimizer"):
            maker, judge = modules = _pair()
            making, judging = (
                deepspeed.initialize(model=module, model_parameters=module.parameters(), config=_config(stage))[0] for module in modules
            )
            for step in range(3):
                {"module": judge, "engine": judging, "optimizer": judging.optimizer}[drop].zero_grad()
                ((noise, real),) = _samples(step, range(judging.global_rank, judging.global_rank + 1))
                judging.backward(F.softplus(-judge(real)).mean())
                fake = maker(noise)
                judging.backward(F.softplus(judge(fake.detach())).mean())
                judging.step()
                maker.zero_grad()
                making.backward(F.softplus(-judge(maker(noise))).mean())
                making.step()
            wanted = _wanted(3, judging.world_size)
            out[f"{stage}, {drop}"] = [plain.apart(engine, module) for engine, module in zip((making, judging), wanted, strict=True)]
            making.destroy()
            judging.destroy()
    return out


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    inner: Any = None


@dataclasses.dataclass(slots=True)
class Slots:
    loss: Any


class Wrapped(nn.Module):
    """Returns its loss inside an object."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = models.Mlp(), kind

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(self.inner(x), y)
        return {
            "dataclass": lambda: Output(loss),
            "slots": lambda: Slots(loss),
            "namespace": lambda: types.SimpleNamespace(loss=loss),
            "nested": lambda: Output(torch.zeros(()), [types.SimpleNamespace(loss={"loss": loss})]),
        }[self.kind]()


def loss_in(output: Any) -> torch.Tensor:
    if isinstance(output, dict):
        return output["loss"]  # type: ignore[no-any-return]
    return loss_in(output.inner[0].loss) if getattr(output, "inner", None) else output.loss


def objects(stages: list[int]) -> dict[str, float]:
    """Trains modules that return their loss inside an object, by loss.backward(); returns the differences of their weights."""
    out = {}
    for stage in stages:
        for kind in ("dataclass", "slots", "namespace", "nested"):
            module = models.seeded(Wrapped, 0, kind)
            whole = copy.deepcopy(module)
            engine = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=_config(stage))[0]
            for step in range(3):
                loss_in(engine(*models.batch(step, 0, engine.global_rank))).backward()
                engine.step()
            in_torch(whole.inner, torch.optim.Adam(whole.parameters(), lr=1e-2, eps=1e-4), engine.world_size, 3, micros=1, clipping=0.0)
            out[f"{stage}, {kind}"] = plain.apart(engine, whole)
            engine.destroy()
    return out
