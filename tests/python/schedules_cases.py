"""Cases of schedules_test.py for ranks; each returns JSON."""

from __future__ import annotations

from typing import Any

import cleave as deepspeed
import models
import torch
from engine_cases import config


def _groups(module: torch.nn.Module, rates: list[float]) -> list[dict[str, Any]]:
    """Returns a group for each rate: a linear layer, another one, and the rest."""
    parts = [list(layer.parameters()) for layer in module.modules() if isinstance(layer, torch.nn.Linear)][: len(rates) - 1]
    taken = {id(p) for part in parts for p in part}
    parts.append([p for p in module.parameters() if id(p) not in taken])
    return [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]


def _engine(case: dict[str, Any], stage: int) -> Any:
    module = models.seeded(models.Mlp)
    section = {"type": case["type"], "params": case["params"]}
    optimizer = {"type": "AdamW", "params": {"weight_decay": 0.0, "eps": 1e-3}}
    made = config(stage, scheduler=section, optimizer=optimizer, gradient_accumulation_steps=1, gradient_clipping=0.0)
    return deepspeed.initialize(model=module, model_parameters=_groups(module, case["rates"]), config=made)[0]


def trained(cases: list[dict[str, Any]], stage: int, folder: str) -> list[dict[str, Any]]:
    """Trains with a ds_config schedule, resumed at one step; returns rates before each step, and the difference of the weights from a torch
    loop with the given rates."""
    out = []
    for number, case in enumerate(cases):
        engine, seen = _engine(case, stage), []
        module = models.seeded(models.Mlp)
        plain = torch.optim.AdamW(_groups(module, case["rates"]), weight_decay=0.0, eps=1e-3)
        for step, want in enumerate(case["trace"][:10]):
            if step == case["resumed_at"]:
                engine.save_checkpoint(f"{folder}/{number}")
                engine = _engine(case, stage)
                engine.load_checkpoint(f"{folder}/{number}")
            seen.append([[group["lr"], *group["betas"]] for group in engine.optimizer.param_groups])
            batch = models.batch(step, 0, 0)
            engine.backward(models.loss(engine, batch))
            engine.step()
            plain.zero_grad()
            models.loss(module, batch).backward()
            for group, (lr, *betas) in zip(plain.param_groups, want, strict=True):
                group["lr"], group["betas"] = lr, tuple(betas)
            plain.step()
        far = max((engine.parameters_of(name) - p.detach()).abs().max().item() for name, p in module.named_parameters())
        out.append({"seen": seen, "far": far})
    return out


def divided(kind: str) -> list[list[float]]:
    """Returns the rates of groups before each step with a schedule of the script, a function or an object, and equal first rates."""
    module = models.seeded(models.Mlp)
    optimizer = torch.optim.AdamW(_groups(module, [1e-2, 1e-3]))

    def lambdas(made: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1.0, step / 2))

    def warmup(made: torch.optim.Optimizer) -> Any:
        return deepspeed.runtime.lr_schedules.WarmupLR(made, 0.0, [0.25, 0.5], 2, "linear")

    schedule: Any = lambdas if "torch" in kind else warmup
    for group in optimizer.param_groups if "equal" in kind else []:
        group["lr"] = 1e-2
    given = schedule if "function" in kind else schedule(optimizer)
    engine = deepspeed.initialize(model=module, optimizer=optimizer, lr_scheduler=given, config=config(2, gradient_accumulation_steps=1))[0]
    out = []
    for step in range(4):
        out.append([group["lr"] for group in engine.optimizer.param_groups])
        engine.backward(models.loss(engine, models.batch(step, 0, engine.global_rank)))
        engine.step()
    return out
