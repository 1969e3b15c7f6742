"""Cases of modules_test.py for ranks: other owners of parameters: scripts, copies and other engines; each returns JSON."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from pathlib import Path
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from chains import RATE, WIDTH, Chain, SavedParameter, config, engine_of, mean, sample
from torch.nn import functional as F


def replaced(stage: int) -> dict[str, Any]:
    """Replaces the data of a parameter inside GatheredParameters on all ranks, as scripts write it, and later outside."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    engine, optimizer = engine_of(module, stage), torch.optim.SGD(alone.parameters(), RATE)
    far = 0.0
    for step in range(4):
        if step == 1:
            weight = module.layers[0].weight
            with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
                weight.data = weight.data * 2
            alone.layers[0].weight.data = alone.layers[0].weight.data * 2
        engine.backward(mean(engine, module, sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        sum(mean(alone, alone, sample(step, rank), False) / engine.world_size for rank in range(engine.world_size)).backward()
        optimizer.step()
        far = max(far, plain.apart(engine, alone))
    with deepspeed.zero.GatheredParameters([module.layers[0].weight]):
        far = max(far, (module.layers[0].weight - alone.layers[0].weight).abs().max().item())
    module.layers[0].weight.data = torch.zeros(WIDTH, WIDTH)

    def later() -> None:
        engine.backward(mean(engine, module, sample(0, 0), True))
        engine.step()

    return {"far": far, "later": plain.said_of(later)}


def without_hooks() -> dict[str, Any]:
    """Removes the hooks for generation and adds them again, as clients do."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    engine, optimizer = engine_of(module), torch.optim.SGD(alone.parameters(), RATE)
    offload, x = engine.optimizer.parameter_offload, sample(0, 0)
    far = 0.0
    for step in range(2):
        for parameter in [*offload.module.parameters(), *(p for _, p in offload.module.ds_external_parameters())]:
            parameter.ds_active_sub_modules.clear()
        for hook in (*offload.forward_hooks, *offload.backward_hooks):
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        with torch.no_grad(), deepspeed.zero.GatheredParameters(list(module.parameters())):
            far = max(far, (module(x) - alone(x)).abs().max().item())
        hidden = bool(torch.isnan(module(x)).all())
        offload._register_deepspeed_module(offload.module)
        engine.backward(mean(engine, module, sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        sum(mean(alone, alone, sample(step, rank), False) / engine.world_size for rank in range(engine.world_size)).backward()
        optimizer.step()
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())
    return {"far": max(far, plain.apart(engine, alone)), "hidden": hidden, "hooks": hooks == 2 * len(list(module.modules()))}


def copied(stage: int, folder: str) -> dict[str, Any]:
    """Copies of a module by deepcopy and torch.save, inside and outside GatheredParameters."""
    engine = engine_of(models.seeded(Chain), stage)
    said = {"copy": plain.said_of(lambda: copy.deepcopy(engine.module)), "engine": plain.said_of(lambda: copy.deepcopy(engine))}
    said["save"] = plain.said_of(lambda: torch.save(engine.module, io.BytesIO()))
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        other = copy.deepcopy(engine.module)
    file = Path(folder, f"{engine.global_rank}.pt")
    torch.save(other, file)
    loaded, x = torch.load(file, weights_only=False), sample(0, 0)
    with torch.no_grad():
        want = engine(x)
        said["equal"] = torch.equal(other(x), want) and torch.equal(loaded(x), want)
    loss = mean(other, other, x, False)
    loss.backward()  # the copy trains without the engine
    said["plain"] = all(p.grad is not None for p in other.parameters()) and "cleave" not in repr(other._forward_hooks)
    return said


def taken_over(stage: int) -> dict[str, Any]:
    """Trains a module that an engine for evaluation held before, and evaluates it with both engines afterwards."""
    module, alone = (models.seeded(Chain) for _ in range(2))
    evaluates = {key: value for key, value in config(stage).items() if key != "optimizer"}
    first = deepspeed.initialize(model=module, config=evaluates)[0]
    x = sample(0, 0)
    with torch.no_grad():
        far = [(first(x) - alone(x)).abs().max().item()]
    engine = engine_of(module, stage)
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for step in range(3):
        engine.backward(mean(engine, module, sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        for rank in range(engine.world_size):
            (mean(alone, alone, sample(step, rank), False) / engine.world_size).backward()
        optimizer.step()
    with torch.no_grad():
        far += [plain.apart(engine, alone), *((made(x) - alone(x)).abs().max().item() for made in (first, engine))]
    part = plain.said_of(lambda: deepspeed.initialize(model=module.layers, config=evaluates))
    return {"far": max(far), "part": part}


def mixed(stage: int) -> float:
    """Returns the distance from torch after one rank moves the weights of an engine to those of another, as for a reference model."""
    model, reference, other = (models.seeded(Chain, seed) for seed in (0, 1, 1))
    engine = engine_of(models.seeded(Chain), stage)
    held = deepspeed.initialize(model=reference, config={k: v for k, v in config(stage).items() if k != "optimizer"})[0]
    pairs = list(zip(reference.parameters(), engine.module.parameters(), strict=True))
    with deepspeed.zero.GatheredParameters([p for pair in pairs for p in pair], modifier_rank=0):
        for ours, trained in pairs if engine.global_rank == 0 else ():
            ours.data.mul_(0.25).add_(trained.data, alpha=0.75)
    for mine, trained in zip(other.parameters(), model.parameters(), strict=True):
        mine.data.mul_(0.25).add_(trained.data, alpha=0.75)
    return max(plain.apart(held, other), plain.apart(engine, model))


class GatheredTwice(SavedParameter):
    """Gathers the weight for its forward and, by the parameter itself, for its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with deepspeed.zero.GatheredParameters([weight]):
            y = x @ weight.t()
        ctx.save_for_backward(x, weight)
        return y


class Taught(Chain):
    """Multiplies its output by a weight of a teacher that another engine may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [models.seeded(Chain, 1)]  # no module of this one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * super().forward(x)
        return GatheredTwice.apply(y, self.teacher[0].layers[1].weight)  # type: ignore[no-any-return, no-untyped-call]


def taught(stage: int) -> float:
    """Returns the distance from torch of a module trained with the weight of another engine."""

    def made() -> Taught:
        module = Taught()
        if held:
            deepspeed.initialize(model=module.teacher[0], config={k: v for k, v in config(stage).items() if k != "optimizer"})
        return module

    held = True
    engine = engine_of(models.seeded(made), stage)
    held = False
    alone = models.seeded(made)
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for step in range(2):
        engine.backward(mean(engine, engine.module, sample(step, engine.global_rank), True))
        engine.step()
        optimizer.zero_grad()
        for rank in range(engine.world_size):
            (mean(alone, alone, sample(step, rank), False) / engine.world_size).backward()
        optimizer.step()
    return plain.apart(engine, alone)


def aliases(stage: int) -> dict[str, Any]:
    """Returns whether tensors that share memory with parameters keep their values after destroy() and after the engine is gone, and
    whether an engine is freed without destroy()."""
    kept = []
    for destroys in (True, False):
        module = models.seeded(Chain)
        engine = engine_of(module, stage)
        state, want = module.state_dict(), {name: value.clone() for name, value in module.state_dict().items()}
        if destroys:
            engine.destroy()
            x = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(200)]  # takes the memory that was freed
            del x
        gone = weakref.ref(engine._native)
        del engine, module
        gc.collect()
        x = [torch.full((WIDTH, WIDTH), 7.0) for _ in range(200)]
        kept.append(all(torch.equal(value, want[name]) for name, value in state.items()))
        del x
    return {"kept": kept, "freed": gone() is None}


class Borrowing(Taught):
    """Multiplies with the weight of a teacher that another engine gathers only meanwhile."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.teacher[0].layers[1].weight
        y = x * Chain.forward(self, x)
        with deepspeed.zero.GatheredParameters([weight]):
            return F.linear(y, weight)


def borrowed(stage: int, with_engine: bool) -> float:
    """Returns the distance from torch of a module, with or without an engine, that borrows a weight. The owner of the weight gathers others
    in the same memory before the backward."""
    module, alone = (models.seeded(Borrowing) for _ in range(2))
    owner = deepspeed.initialize(model=module.teacher[0], config={k: v for k, v in config(stage).items() if k != "optimizer"})[0]
    call = engine_of(module, stage) if with_engine else module
    ranks = call.world_size if with_engine else 1
    loss = mean(call, module, sample(0, call.global_rank if with_engine else 0), True)
    with torch.no_grad():
        owner(sample(0, 0))
    if with_engine:
        call.backward(loss)
        call.step()
    else:
        loss.backward()
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    for rank in range(ranks):
        (mean(alone, alone, sample(0, rank), False) / ranks).backward()
    if with_engine:
        optimizer.step()
        return plain.apart(call, alone)
    pairs = zip(module.parameters(), alone.parameters(), strict=True)
    return max((p.grad - q.grad).abs().max().item() for p, q in pairs if p.grad is not None and q.grad is not None)


def gradients_left(stage: int) -> list[int]:
    """Returns the gradients left on parameters that the optimizer does not have, after a backward and after zero_grad."""
    module = models.seeded(Chain)
    engine = deepspeed.initialize(model=module, model_parameters=list(module.head.parameters()), config=config(stage))[0]
    engine.backward(mean(engine, module, sample(0, 0), True))
    engine.step()
    left = [sum(p.grad is not None for p in module.parameters())]
    engine.zero_grad()
    return [*left, sum(p.grad is not None for p in module.parameters())]
