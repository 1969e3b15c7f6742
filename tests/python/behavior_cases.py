"""Cases of behavior_test.py for ranks: behavior of DeepSpeed that scripts rely on. Each returns JSON."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from cleave.ops.adam import FusedAdam
from cleave.utils import safe_get_full_grad
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint
from trained_cases import Pair, config

# ---- returned optimizer ----


class Careful(torch.optim.AdamW):
    """An optimizer of a script with an argument of its own, which it needs for each group."""

    def __init__(self, parameters: Any, factor: float) -> None:
        self.factor = factor
        super().__init__(parameters, lr=1e-2, weight_decay=0.1, eps=1e-6)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group({**param_group, "factor": self.factor})


def returned(stage: int) -> dict[str, Any]:
    """Returns what a script asks about the returned optimizer, and the distance from torch with a schedule on it."""
    adam = {"optimizer": {"type": "Adam", "params": {"lr": 1e-2}}}
    engine, of_config, *_ = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage, **adam))
    out: dict[str, Any] = {"of the ds_config": isinstance(of_config, FusedAdam)}
    engine.destroy()
    for name, kind, make in (
        ("adam", torch.optim.Adam, lambda parameters: torch.optim.Adam(parameters, lr=1e-2, eps=1e-6)),
        ("its own", Careful, lambda parameters: Careful(parameters, 2.0)),
    ):
        pair = Pair(lambda: models.seeded(models.Mlp), stage, optimizer=make)
        schedules = [LambdaLR(optimizer, lambda step: 1 / (1 + step)) for optimizer in (pair.ours, pair.theirs)]
        for step in range(3):
            pair.step(step)
            for schedule in schedules:
                schedule.step()
        out[name] = [isinstance(pair.ours, kind), pair.ours == pair.optimizer, pair.ours in {pair.optimizer}, pair.ours != pair.theirs]
        out[f"{name}, apart"] = pair.apart()
    again, optimizer, *_ = deepspeed.initialize(model=pair.engine.module, optimizer=pair.ours, config=config(stage))
    out["again"] = [optimizer == pair.optimizer, isinstance(optimizer, Careful)]
    again.backward(models.loss(again, models.batch(3, 0, again.global_rank)))
    again.step()
    return out


# ---- gradients inside no_sync ----


def inside_no_sync(stage: int, more: dict[str, Any]) -> dict[str, Any]:
    """Returns distances from torch of the gradients that a rank has accumulated, and of the weights after discarding some of them."""
    micros = 3
    pair = Pair(lambda: models.seeded(models.Mlp), stage, gradient_accumulation_steps=micros, **more)
    engine, local = pair.engine, models.seeded(models.Mlp)
    names = dict(local.named_parameters())
    far, norms = 0.0, []
    for tries in range(2):
        local.zero_grad()
        with engine.no_sync():
            for micro in range(micros - 1):
                batch = models.batch(0, micro, engine.global_rank)
                engine.backward(models.loss(engine, batch))
                (models.loss(local, batch) / micros).backward()
                got = {name: safe_get_full_grad(p) for name, p in engine.module.named_parameters()}
                norms.append([name for name in got if got[name].norm().item() == 0])
                far = max([far, *((got[name] - p.grad).abs().max().item() / p.grad.abs().max().item() for name, p in names.items())])
            early = plain.said_of(lambda: engine.module.head.weight.grad)
        if tries == 0:
            engine.zero_grad()
            with engine.no_sync():
                discarded = safe_get_full_grad(engine.module.head.weight) is None
    engine.set_gradient_accumulation_boundary(True)
    engine.backward(models.loss(engine, models.batch(0, micros - 1, engine.global_rank)))
    engine.step()
    for micro in range(micros):
        for rank in range(engine.world_size):
            (models.loss(pair.plain, models.batch(0, micro, rank)) / (micros * engine.world_size)).backward()
    pair.theirs.step()
    return {"far": far, "apart": pair.apart(), "zero": norms, "discarded": discarded, "early": early, "steps": engine.global_steps}


def zeroed_within_a_step(stage: int) -> dict[str, Any]:
    """Returns the number of warnings of zero_grad outside of steps and within several, and whether the gradients stay."""
    pair = Pair(lambda: models.seeded(models.Mlp), stage, gradient_accumulation_steps=2)
    engine, counts = pair.engine, []
    for between in (False, True, True):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            engine.zero_grad()
            for micro in range(2):
                engine.backward(models.loss(engine, models.batch(0, micro, engine.global_rank)))
                if between:
                    engine.optimizer.zero_grad()
                engine.step()
        counts.append(said.getvalue().count("warning: zero_grad: "))
        pair.theirs.zero_grad()
        for micro in range(2):
            for rank in range(engine.world_size):
                (models.loss(pair.plain, models.batch(0, micro, rank)) / (2 * engine.world_size)).backward()
        pair.theirs.step()
    return {"counts": counts, "apart": pair.apart()}


def unused_inside_no_sync() -> list[float]:
    """Returns norms of the gradients of a used and an unused parameter, after a discarded backward that used both."""
    module = nn.ModuleDict({"used": nn.Linear(4, 4), "rarely": nn.Linear(4, 4)})
    module.forward = lambda x, both: module["used"](x) + (module["rarely"](x) if both else 0)  # type: ignore[method-assign]
    engine, *_ = deepspeed.initialize(model=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), config=config(1))
    norms = []
    for both in (True, False):
        with engine.no_sync():
            engine(torch.ones(2, 4), both).sum().backward()
            norms += [safe_get_full_grad(module[name].weight).norm().item() for name in ("used", "rarely")]
        engine.zero_grad()
    return norms


# ---- gradients that are not finite ----


def overflows(stage: int, checks: bool, more: dict[str, Any]) -> dict[str, Any]:
    """Trains a step with infinite gradients in bf16, then a usual one."""
    module = models.seeded(models.Mlp)
    made = config(stage, bf16={"enabled": True, "check_grad_overflow": checks}, **more)
    engine, *_ = deepspeed.initialize(model=module, optimizer=torch.optim.AdamW(module.parameters(), lr=1e-2), config=made)
    x, y = models.batch(0, 0, engine.global_rank)
    loss = models.loss(engine, (x.bfloat16(), y))
    loss.register_hook(lambda gradient: gradient * math.inf)
    engine.backward(loss)
    engine.step()
    head = engine.parameters_of("head.weight")
    return {"skipped": engine.skipped_steps, "steps": engine.global_steps, "finite": bool(head.isfinite().all())}


# ---- backwards that fail ----


class Failing(nn.Module):
    """Computes one layer again in the backward; may fail there, or after the gradient of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, models.CLASSES)
        self.fails = ""

    def computed_again(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails == "recomputation" and torch._C._current_graph_task_id() >= 0:
            raise RuntimeError("the recomputation of the script failed")
        return torch.tanh(self.body(x))

    def failing(self, gradient: torch.Tensor) -> None:
        if self.fails == "hook":
            raise RuntimeError("a hook of the script failed")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: Any = checkpoint(self.computed_again, self.first(x), use_reentrant=False)
        h.register_hook(self.failing)
        return self.head(h)


def failed(stage: int, own: bool, fails: str, ranks: list[int], more: dict[str, Any]) -> dict[str, Any]:
    """Trains steps with a backward that fails on some ranks in between, and returns its error and the distance from torch without it."""
    pair = Pair(lambda: models.seeded(Failing), stage, **more)
    engine, said = pair.engine, []
    for step in range(3):
        if engine.global_rank in ranks:
            engine.module.fails = fails
        loss = models.loss(engine, models.batch(90 + step, 0, engine.global_rank))
        said.append(plain.said_of(loss.backward if own else lambda: engine.backward(loss)))  # noqa: B023
        engine.module.fails = ""
        if step == 1:
            engine.zero_grad()
        pair.step(step)
    return {"said": said[-1], "apart": pair.apart(), "steps": engine.global_steps, "skipped": engine.skipped_steps}


def failed_late() -> list[str]:
    """Returns the errors of a second backward of a step that fails, and of the next one."""
    engine = Pair(lambda: models.seeded(Failing), 1, gradient_accumulation_steps=2).engine
    said = []
    for fails in ("", "hook", ""):
        engine.module.fails = fails
        said.append(plain.said_of(lambda: engine.backward(models.loss(engine, models.batch(0, 0, 0)))))
        if not fails:
            said.append(plain.said_of(engine.step))
    return said


# ---- tags ----


def tags(folder: str, mode: str | None) -> dict[str, Any]:
    """Saves with a tag per rank. Returns the saved tags, or the error."""
    engine = deepspeed.initialize(
        model=models.seeded(models.Mlp),
        config=config(1, optimizer={"type": "Adam"}, checkpoint={"tag_validation": mode} if mode else {}),
    )[0]
    said = plain.said_of(lambda: engine.save_checkpoint(folder, tag=f"of-{engine.global_rank}"))
    torch.distributed.barrier()
    saved = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
    return {"said": said, "saved": saved, "loads": bool(saved) and str(engine.load_checkpoint(folder)[0]).endswith("of-0")}
