"""Cases of outside_test.py for ranks: torch optimizers without an engine kernel. Each case returns JSON."""

from __future__ import annotations

import itertools
import os
from typing import Any

import cleave as deepspeed
import engine_cases
import models
import plain
import torch

ELEMENTWISE: dict[str, tuple[Any, dict[str, Any]]] = {
    "RMSprop": (torch.optim.RMSprop, {"lr": 3e-3, "momentum": 0.9, "centered": True, "eps": 1e-4, "weight_decay": 0.1}),
    "Adamax": (torch.optim.Adamax, {"lr": 3e-3, "weight_decay": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 3e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "RAdam": (torch.optim.RAdam, {"lr": 3e-3, "weight_decay": 0.1}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "Rprop": (torch.optim.Rprop, {"lr": 1e-3}),
    "ASGD": (torch.optim.ASGD, {"lr": 3e-2, "t0": 2, "lambd": 1e-2}),
    "AdamW": (torch.optim.AdamW, {"lr": 3e-3, "amsgrad": True, "weight_decay": 0.1}),
    "SGD": (torch.optim.SGD, {"lr": 3e-2}),
}
WHOLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "Adafactor": (torch.optim.Adafactor, {"lr": 3e-2}),
    "Muon": (torch.optim.Muon, {"lr": 3e-3}),
}


class Sharing(torch.optim.Optimizer):
    """An optimizer with a step length that depends on all gradients."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
        for p in parameters:
            p.data.sub_(p.grad / norm, alpha=self.param_groups[0]["lr"])


def _config(stage: int, **more: Any) -> dict[str, Any]:
    made = engine_cases.config(stage, zero_allow_untested_optimizer=True, **more)
    return {key: value for key, value in made.items() if key != "optimizer"}


def _groups(kind: Any, module: torch.nn.Module) -> list[dict[str, Any]]:
    """Returns two groups with different options of the optimizer; Muon accepts only matrices."""
    named = list(module.named_parameters())
    for _, parameter in named:
        parameter.requires_grad_(kind is not torch.optim.Muon or parameter.dim() == 2)
    first, second = ([p for n, p in named if p.requires_grad and n.startswith("head") == head] for head in (False, True))
    return [{"params": first}, {"params": second, "lr": 1e-3, **({"momentum": 0.5} if kind is torch.optim.SGD else {})}]


def against_torch(stages: dict[str, Any], which: list[str]) -> dict[str, float]:
    """Returns, by optimizer, the difference in losses, norms and weights of 5 steps with two groups and a schedule from torch alone."""
    out = {}
    for (stage, zero), key in itertools.product(((int(s), z) for s, z in stages.items()), which):
        if stage and key in WHOLE:
            continue
        kind, values = (ELEMENTWISE | WHOLE)[key]
        module, other = models.seeded(models.Mlp), models.seeded(models.Mlp)
        made, want = kind(_groups(kind, module), **values), kind(_groups(kind, other), **values)
        schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (made, want)]
        section = {"stage": stage, **{k: {**v, "nvme_path": "/tmp"} if isinstance(v, dict) else v for k, v in zero.items()}}
        engine = deepspeed.initialize(
            model=module, optimizer=made, lr_scheduler=schedules[0], config=_config(stage, zero_optimization=section)
        )[0]
        got = engine_cases.steps(engine, 5)
        memory = engine.memory()
        assert memory["live"] == memory["planned"], memory
        losses = engine_cases.in_torch(other, want, engine.world_size, 5, scheduler=schedules[1])
        far = [plain.apart(engine, other)]
        for n, p in other.named_parameters():
            for state in (s for s in engine._native.facts()["kinds"] if s in want.state.get(p, {})):
                far.append((engine.parameters_of(n, state) - want.state[p][state]).abs().max().item())
        out[f"{key} at stage {stage} {zero}"] = max(engine_cases.worst(got, losses), *far)
        engine.destroy()
    return out


def resumed(folder: str, stages: dict[str, int], begin: bool) -> dict[str, Any]:
    """Trains, by optimizer and its stage, 3 steps and saves, or 2 more from the checkpoint; each step has the same samples on any number of
    ranks."""
    return {key: _resumed(os.path.join(folder, key), stage, key, begin) for key, stage in stages.items()}


def another(folder: str) -> dict[str, Any]:
    """Resumes with another optimizer than the checkpoint's."""
    _resumed(folder, 1, "NAdam", True)
    return _resumed(folder, 1, "RAdam", False)


def _resumed(folder: str, stage: int, key: str, begin: bool) -> dict[str, Any]:
    kind, values = (ELEMENTWISE | WHOLE)[key]
    module = models.seeded(models.Mlp, 0 if begin else 7)
    made = kind(_groups(kind, module), **values)
    engine = deepspeed.initialize(model=module, optimizer=made, config=_config(stage, train_micro_batch_size_per_gpu=None) | SIZES)[0]
    world = engine.world_size

    def batch(step: int, micro: int, rank: int) -> plain.Batch:
        x, y = (torch.cat(parts) for parts in zip(*(models.batch(step, micro, r) for r in range(2)), strict=True))
        return x[rank * 8 // world : (rank + 1) * 8 // world], y[rank * 8 // world : (rank + 1) * 8 // world]

    if begin:
        engine_cases.steps(engine, 3, 0, batch)
        engine.save_checkpoint(folder)
    else:
        try:
            engine.load_checkpoint(folder)
        except deepspeed.CheckpointError as error:
            return {"refused": str(error)}
    losses = engine_cases.steps(engine, 2, 3, batch)
    engine.load_checkpoint(folder, load_optimizer_states=False)
    anew = engine_cases.steps(engine, 2, 3, batch)
    return {"losses": losses, "anew": anew}


SIZES = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": None}


def overflows(stages: list[int]) -> list[dict[str, Any]]:
    """Trains in fp16 with too large a loss scale; returns the state that a skipped step leaves unchanged, and the number of updates."""
    return [_overflows(stage) for stage in stages]


def _overflows(stage: int) -> dict[str, Any]:
    module = models.seeded(models.Mlp)
    made = torch.optim.NAdam(module.parameters(), lr=3e-3)
    fp16 = {"enabled": True, "initial_scale_power": 20, "hysteresis": 1}
    engine = deepspeed.initialize(model=module, optimizer=made, config=_config(stage, fp16=fp16))[0]
    applied, same = [], []
    for step in range(9):
        before = engine_cases.digest(engine)
        engine_cases.steps(engine, 1, step)
        applied.append(engine.was_step_applied())
        same.append(engine_cases.digest(engine) == before)
    return {"applied": applied, "same": same, "updates": float(engine.optimizer.state_dict()["outside"]["rest"][0]["step"])}


def refusals(which: list[str]) -> dict[str, str]:
    """Returns the error of each mistake."""
    out = {}
    for name in which:
        optimizer, _, rest = name.partition(" ")
        stage, key = (1 if "stage 1" in rest else 0), "without" not in rest
        kind = {"LBFGS": torch.optim.LBFGS, "SparseAdam": torch.optim.SparseAdam, "Sharing": Sharing}.get(optimizer) or (
            ELEMENTWISE | WHOLE
        )[optimizer][0]
        module = models.seeded(models.Mlp)
        made = kind([p for p in module.parameters() if p.dim() == 2])
        config = _config(stage, cleave={"exact_sums": "exact" in rest}) | {"zero_allow_untested_optimizer": key}
        try:
            engine = deepspeed.initialize(model=module, optimizer=made, config=config)[0]
            engine_cases.steps(engine, 1)
            out[name] = "nothing"
        except deepspeed.CleaveError as error:
            out[name] = f"{type(error).__name__}: {error}"
    return out


def named(stage: int) -> dict[str, Any]:
    """Trains with a torch optimizer and a schedule that the ds_config names."""
    section = {"type": "RMSprop", "params": {"lr": 1e-2, "momentum": 0.5}}
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 4, "warmup_type": "linear"}}
    made = _config(stage, scheduler=schedule) | {"optimizer": section}
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
    rates = []
    for step in range(3):
        engine_cases.steps(engine, 1, step)
        rates.append(engine.last_result.lr)
    moved = engine.parameters_of("head.weight", "momentum_buffer").abs().max().item()
    return {"rates": rates, "moved": moved, "name": type(engine.optimizer.optimizer).__name__}
