"""Cases of trained_test.py for ranks: parameters outside of the module, frozen and unfrozen, and of other types; visible gradients.

Each returns JSON.
"""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from cleave.utils import zero_to_fp32
from torch import nn

WIDTH = models.WIDTH


def config(stage: int, **more: Any) -> dict[str, Any]:
    zero = {"stage": stage, **({"stage3_param_persistence_threshold": 20} if stage == 3 else {})}
    made = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.0, "zero_optimization": zero}
    return {**made, "zero_allow_untested_optimizer": True, **more}


def adamw(parameters: Any, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **{"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-6, **more})


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=5e-2, momentum=0.9)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": adamw, "sgd": sgd}


class Pair:
    """An engine, and the same training in torch alone over the batches of all ranks."""

    def __init__(self, make: Callable[[], nn.Module], stage: int, optimizer: Any = adamw, of: Any = None, **more: Any) -> None:
        of = of or (lambda module: module.parameters())
        self.plain, module = make(), make()
        self.theirs = optimizer(of(self.plain))
        self.optimizer = optimizer(of(module))
        self.more, self.stage = more, stage
        self.engine, self.ours, *_ = deepspeed.initialize(model=module, optimizer=self.optimizer, config=config(stage, **more))

    def step(self, step: int, loss: Any = models.loss, between: Callable[[nn.Module], Any] = lambda module: None) -> tuple[Any, Any]:
        micros = self.engine.gradient_accumulation_steps()
        for micro in range(micros):
            self.engine.backward(loss(self.engine, models.batch(step, micro, self.engine.global_rank)))
            ours = between(self.engine.module) if micro == micros - 1 else None
            self.engine.step()
        self.theirs.zero_grad()
        for micro, rank in itertools.product(range(micros), range(self.engine.world_size)):
            (loss(self.plain, models.batch(step, micro, rank)) / (micros * self.engine.world_size)).backward()
        theirs = between(self.plain)
        self.theirs.step()
        return ours, theirs

    def apart(self) -> float:
        return plain.apart(self.engine, self.plain)


def ungrouped(stage: int) -> dict[str, float]:
    """Removes parameters from all groups, frozen and unfrozen ones, before and after the engine is built again for an unfrozen layer."""
    out = {}
    for name, frozen in (("frozen", True), ("trained", False)):
        pair = Pair(lambda: models.seeded(models.Mlp), stage, sgd)
        for module in (pair.engine.module, pair.plain):
            module.head.requires_grad_(False)
        for step in range(2):
            pair.step(step)
        for module, optimizer in ((pair.engine.module, pair.optimizer), (pair.plain, pair.theirs)):
            left = list(module.layers[0].parameters())
            for parameter in left:
                parameter.requires_grad_(not frozen)
                parameter.grad = None
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if all(p is not q for q in left)]
        pair.step(2)
        out[f"{name} before"] = pair.apart()
        for module in (pair.engine.module, pair.plain):
            module.head.requires_grad_(True)
        for step in range(3, 5):
            pair.step(step)
        out[f"{name} after"] = pair.apart()
        pair.engine.destroy()
    return out


# ---- outside of the module ----


def outside_of_the_module(folder: str) -> dict[str, Any]:
    """Trains a temperature that only the optimizer has, saves, and resumes at another stage."""
    out: dict[str, Any] = {}

    def made(stage: int) -> tuple[Pair, nn.Parameter, nn.Parameter]:
        ours, theirs = nn.Parameter(torch.tensor([1.5])), nn.Parameter(torch.tensor([1.5]))
        left = [theirs, ours]
        pair = Pair(lambda: models.seeded(models.Mlp), stage, of=lambda module: [*module.parameters(), left.pop(0)])
        return pair, ours, theirs

    for stage in range(4):
        pair, ours, theirs = made(stage)

        def loss(module: Any, batch: Any, pair: Pair = pair, ours: nn.Parameter = ours, theirs: nn.Parameter = theirs) -> torch.Tensor:
            scale = theirs if module is pair.plain else ours
            return nn.functional.cross_entropy(module(batch[0]) * scale, batch[1])

        for step in range(4):
            pair.step(step, loss)
        out[str(stage)] = max(pair.apart(), (ours.detach() - theirs.detach()).abs().item())
        pair.engine.save_checkpoint(f"{folder}/{stage}")
        again, other, _ = made(3 - stage)
        again.engine.load_checkpoint(f"{folder}/{stage}")
        out[f"resumed from {stage}"] = (other.detach() - theirs.detach()).abs().item()
        pair.engine.destroy()
        again.engine.destroy()
    out["names"] = sorted(zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(f"{folder}/3")) == sorted(models.Mlp().state_dict())
    return out


class Odd(nn.Module):
    """A module with parameters of many types."""

    def __init__(self, first: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(first)
        values = torch.randint(0, 2, (50, 3), generator=draw)
        made = {"int8": values.to(torch.int8), "int64": values * 2**40, "flags": values.bool(), "waves": values * (1 + 2j)}
        for name, value in made.items():
            self.register_parameter(name, nn.Parameter(value + (0 if value.dtype == torch.bool else first), requires_grad=False))
        self.out = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.int8.float() + self.int64.float() * 1e-12 + self.flags.float() + self.waves.real  # type: ignore[operator]
        return self.out(x[:, :3] @ kept.T @ kept).pow(2).mean()


def not_floating(folder: str) -> dict[str, Any]:
    """Trains beside frozen parameters of other types, which differ between the ranks, changes one, and restores them."""
    out: dict[str, Any] = {}
    names, want = ("int8", "int64", "flags", "waves"), Odd(3)
    weights = {}

    def equal(values: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(values[n], getattr(want, n)) and values[n].dtype == getattr(want, n).dtype for n in names)

    def whole(module: nn.Module) -> dict[str, torch.Tensor]:
        with deepspeed.zero.GatheredParameters(list(module.parameters())):
            return {n: p.detach().clone() for n, p in module.named_parameters()}

    for stage in (0, 3):
        module = Odd(3 + torch.distributed.get_rank() if torch.distributed.is_initialized() else 3)
        engine, *_ = deepspeed.initialize(model=module, optimizer=adamw(module.out.parameters()), config=config(stage))
        for step in range(2):
            engine.backward(engine(models.batch(step, 0, engine.global_rank)[0]))
            engine.step()
        engine.save_checkpoint(f"{folder}/{stage}")
        engine.save_16bit_model(f"{folder}/{stage}", "whole.bin")
        again = Odd(9)
        other, *_ = deepspeed.initialize(model=again, optimizer=adamw(again.out.parameters()), config=config(3 - stage))
        other.load_checkpoint(f"{folder}/{stage}")
        saved = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(f"{folder}/{stage}")
        trained, loaded = whole(module), whole(again)
        for where, of in (("trained", trained), ("loaded", loaded), ("saved", saved), ("file", torch.load(f"{folder}/{stage}/whole.bin"))):
            out[f"{where} at {stage}"] = equal(of)
        out[f"handed over at {stage}"] = equal({n: value.clone() for n, value in engine.whole_weights()})
        out[f"read at {stage}"] = torch.equal(engine.parameters_of("int64"), want.int64)
        out[f"hidden at {stage}"] = (module.waves.numel() == 0) == (stage == 3)
        with deepspeed.zero.GatheredParameters([module.waves], modifier_rank=1):
            if engine.global_rank == 1:
                module.waves.data[1] = 1j
        out[f"changed at {stage}"] = torch.equal(whole(module)["waves"][:3, 0], torch.tensor([want.waves[0, 0], 1j, want.waves[2, 0]]))
        state = {**{n: value.clone() for n, value in whole(module).items()}, "waves": want.waves.detach()}
        engine.load_module_state_dict(state)
        out[f"overwritten at {stage}"] = equal(whole(module))
        out[f"planned at {stage}"] = engine.memory()["planned"] == engine.memory()["peak"]
        weights[stage] = sum(kind.get("weights", 0) for kind in engine.memory()["live"].values())
        engine.destroy()
        other.destroy()
    out["sharded"] = weights[3] < 0.6 * weights[0]
    return out


class _Packed(torch.autograd.Function):
    """A product with packed integers that keeps a view of them without save_for_backward, as libraries for 4-bit weights do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        ctx.view = packed.data.t()
        return x @ ctx.view.float()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient @ ctx.view.float().t(), None


class PackedLayer(nn.Module):
    """A frozen layer of integers beside a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Parameter(torch.randint(-3, 4, (WIDTH, WIDTH), dtype=torch.int8), requires_grad=False)
        self.trained = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(_Packed.apply(x, self.packed) / WIDTH + self.trained(x))


def packed(stage: int) -> dict[str, float]:
    """Trains through frozen layers of integers whose views a library keeps until the backward."""
    out = {}
    for of_input in (False, True):

        def made() -> nn.Module:
            torch.manual_seed(5)
            return nn.Sequential(nn.Linear(8, WIDTH), *(PackedLayer() for _ in range(5)))

        def loss(module: Any, batch: Any, of_input: bool = of_input) -> torch.Tensor:
            x = batch[0]
            if of_input:
                x.requires_grad_(True)
            return module(x).pow(2).mean()  # type: ignore[no-any-return]

        pair = Pair(made, stage, of=lambda module: [p for p in module.parameters() if p.requires_grad])
        for step in range(4):
            pair.step(step, loss)
        out[f"with a gradient of the input: {of_input}"] = pair.apart()
        pair.engine.destroy()
    return out


# ---- frozen and unfrozen ----


def frozen_in_turns(seeds: list[int]) -> dict[str, float]:
    """Freezes and unfreezes random parameters in mid-training, and saves and loads in between."""
    out = {}
    for seed, stage in itertools.product(seeds, range(4)):
        draw = random.Random(seed)
        name = draw.choice(sorted(OPTIMIZERS))
        micros = draw.choice([1, 2])
        names = [n for n, _ in models.Mlp().named_parameters()]

        def made(frozen: set[str]) -> nn.Module:
            module = models.seeded(models.Mlp)
            for n, p in module.named_parameters():
                p.requires_grad_(n not in frozen)
            return module

        first = set(draw.sample(names, draw.randint(0, len(names) - 2)))
        pair = Pair(lambda first=first: made(first), stage, OPTIMIZERS[name], gradient_accumulation_steps=micros)  # type: ignore[misc]
        for step in range(7):
            if step % 2:
                frozen = set(draw.sample(names, draw.randint(0, len(names) - 1)))
                for module in (pair.engine.module, pair.plain):
                    for n, p in module.named_parameters():
                        p.requires_grad_(n not in frozen)
            pair.step(step)
        out[f"{seed} {name} stage {stage}"] = pair.apart()
        pair.engine.destroy()
    return out


def frozen_and_resumed(folder: str) -> dict[str, float]:
    """Freezes a layer for two steps, saves, and continues in a new engine at another stage."""
    out = {}
    for stage in range(4):
        pair = Pair(lambda: models.seeded(models.Mlp), stage)
        for step in range(4):
            for module in (pair.engine.module, pair.plain):
                module.head.requires_grad_(step not in (1, 2))
            pair.step(step)
        pair.engine.save_checkpoint(f"{folder}/{stage}")
        again = Pair(lambda: models.seeded(models.Mlp, 5), 3 - stage)
        again.engine.load_checkpoint(f"{folder}/{stage}")
        again.plain, again.theirs = pair.plain, pair.theirs
        for step in range(4, 6):
            again.step(step)
        out[str(stage)] = again.apart()
        pair.engine.destroy()
        again.engine.destroy()
    return out


def frozen_in_16_bits(folder: str) -> dict[str, list[bool]]:
    """Freezes one parameter of a layer in bf16, with optimizer state in every home; returns which of weights and masters stayed."""
    out = {}
    homes: list[dict[str, Any]] = [{}, {"device": "cpu"}, {"device": "nvme", "nvme_path": folder}]
    for stage, home, kind in itertools.product((1, 2, 3), homes, ("AdamW", "Lamb")):
        if home.get("device") == "nvme" and stage < 3:
            continue
        made = config(stage, bf16={"enabled": True}, optimizer={"type": kind, "params": {"lr": 1e-2}})
        made["zero_optimization"] |= {"offload_optimizer": home} if home else {}
        engine, *_ = deepspeed.initialize(model=(module := models.seeded(models.Mlp)), model_parameters=module.parameters(), config=made)

        def values(engine: Any = engine) -> list[torch.Tensor]:
            with deepspeed.zero.GatheredParameters(list(engine.module.head.parameters())):
                shown = [p.detach().clone() for p in engine.module.head.parameters()]
            return [*shown, *(engine.parameters_of(name) for name in ("head.weight", "head.bias"))]

        for step in range(4):
            module.head.weight.requires_grad_(step != 2)
            before = values()
            x, y = models.batch(step, 0, engine.global_rank)
            engine.backward(nn.functional.cross_entropy(engine(x.bfloat16()).float(), y))
            engine.step()
            if step == 2:
                out[f"{kind} stage {stage} {home.get('device')}"] = [torch.equal(a, b) for a, b in zip(before, values(), strict=True)]
        engine.destroy()
    return out


def groups_change() -> dict[str, float]:
    """Adds a group in mid-training, lets groups with equal first rates depart, and begins to decay."""
    out = {}
    for stage, through_engine in itertools.product(range(4), (False, True)):
        pair = Pair(lambda: models.seeded(models.Mlp), stage, of=lambda module: [{"params": module.layers.parameters()}])
        pair.plain.head.requires_grad_(False), pair.engine.module.head.requires_grad_(False)
        for step in range(6):
            if step == 2:
                for module, optimizer in ((pair.plain, pair.theirs), (pair.engine.module, pair.ours if through_engine else pair.optimizer)):
                    module.head.requires_grad_(True)
                    optimizer.add_param_group({"params": list(module.head.parameters()), "weight_decay": 0.0})
            for optimizer in (pair.theirs, pair.ours):
                if step >= 3:
                    optimizer.param_groups[1]["lr"] = 2e-2
                if step >= 4:
                    optimizer.param_groups[1]["weight_decay"] = 0.2
            pair.step(step)
        out[f"{stage} {through_engine}"] = pair.apart()
        pair.engine.destroy()
    return out


def warms_up_from_zero() -> dict[str, Any]:
    """Two groups with different rates, whose schedule begins with 0 for both."""
    pair = Pair(
        lambda: models.seeded(models.Mlp),
        2,
        of=lambda module: [{"params": module.layers.parameters(), "lr": 1e-3}, {"params": module.head.parameters(), "lr": 1e-2}],
    )
    made = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, i / 3)) for optimizer in (pair.theirs, pair.optimizer)]
    for step in range(5):
        pair.step(step)
        for schedule in made:
            schedule.step()
    return {"apart": pair.apart(), "rates": [group["lr"] for group in pair.ours.param_groups]}


# ---- gradients ----


def clipped_by_hand() -> dict[str, Any]:
    """Clips and reads gradients as a torch loop does."""
    out: dict[str, Any] = {}
    for stage, micros, bf16 in itertools.product((0, 1), (1, 2), (False, True)):
        more = {"bf16": {"enabled": True}} if bf16 else {}
        pair = Pair(lambda: models.seeded(models.Mlp), stage, sgd, gradient_accumulation_steps=micros, **more)

        def clip(module: nn.Module) -> list[float]:
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05)
            assert module.head.weight.grad is not None  # type: ignore[union-attr]
            module.head.weight.grad.mul_(0.5)  # type: ignore[union-attr]
            module.head.bias.grad = torch.full_like(module.head.bias.grad, 1e-3)  # type: ignore[union-attr, arg-type]
            return [norm.item(), module.layers[0].weight.grad.abs().max().item()]  # type: ignore[union-attr, index, operator]

        far = 0.0
        for step in range(4):
            ours, theirs = pair.step(step, between=clip)
            far = max([far, *(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(ours, theirs, strict=True))])
        out[f"stage {stage}, {micros} micro-batches{', bf16' if bf16 else ''}"] = [far, pair.apart()]
        pair.engine.destroy()
    return out


def read_on_one_rank() -> dict[str, Any]:
    """Reads a gradient on one rank only, in one step of three."""
    pair = Pair(lambda: models.seeded(models.Mlp), 1)
    got = []

    def read(module: nn.Module) -> None:
        if module is pair.plain or (pair.engine.global_rank == 0 and pair.engine.global_steps != 1):
            got.append(module.head.weight.grad.norm().item())  # type: ignore[union-attr, operator]

    for step in range(3):
        pair.step(step, between=read)
    return {"apart": pair.apart(), "norms": got, "after": pair.engine.module.head.weight.grad is None}


def read_between(pair: Pair, step: int) -> str:
    """Returns the error of reading a gradient between backward and step."""
    weight = pair.engine.module.head.weight
    return str(pair.step(step, between=lambda module: "" if module is pair.plain else plain.said_of(lambda: weight.grad))[0])


def gradients_not_shown() -> dict[str, str]:
    """Returns the errors of reads that cannot work."""
    out = {}
    for name, stage, more in (
        ("stage 2", 2, {}),
        ("stage 3", 3, {}),
        ("off", 0, {"cleave": {"visible_gradients": "off"}}),
        ("exact sums", 0, {"cleave": {"exact_sums": True}}),
    ):
        pair = Pair(lambda: models.seeded(models.Mlp), stage, **more)
        out[name] = read_between(pair, 0)
        out[f"{name}, later"] = str(pair.engine.module.head.weight.grad)
        pair.engine.destroy()
    pair = Pair(lambda: models.seeded(models.Mlp), 0)
    pair.step(0)
    out["unread"] = read_between(pair, 1)
    pair = Pair(lambda: models.seeded(models.Mlp), 0, gradient_accumulation_steps=2)
    weight = pair.engine.module.head.weight
    pair.engine.backward(models.loss(pair.engine, models.batch(0, 0, 0)))
    out["early"] = plain.said_of(lambda: weight.grad)
    out["discarded"] = plain.said_of(lambda: setattr(weight, "grad", None))
    return out


def shown_by_key() -> float:
    """Reads gradients in a later step only, with updates that would overlap the backward."""
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-6}}
    module, reference = models.seeded(models.Mlp), models.seeded(models.Mlp)
    made = config(
        0,
        optimizer=optimizer,
        scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_max_lr": 1e-2, "warmup_min_lr": 5e-3}},
    )
    engine, *_ = deepspeed.initialize(
        model=module, model_parameters=module.parameters(), config=made | {"cleave": {"visible_gradients": "on"}}
    )
    theirs = adamw(reference.parameters())
    for step in range(3):
        engine.backward(models.loss(engine, models.batch(step, 0, engine.global_rank)))
        if step == 2:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
        theirs.param_groups[0]["lr"] = engine.get_lr()[0]
        engine.step()
        theirs.zero_grad()
        for rank in range(engine.world_size):
            (models.loss(reference, models.batch(step, 0, rank)) / engine.world_size).backward()
        if step == 2:
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
        theirs.step()
    return plain.apart(engine, reference)


# ---- what cannot work ----


def refused() -> dict[str, str]:
    """Returns the errors of calls that cannot work."""
    pair = Pair(lambda: models.seeded(models.Mlp), 0)
    engine = pair.engine
    out = {
        "inner step": plain.said_of(pair.optimizer.step),
        "ddp around": plain.said_of(lambda: torch.nn.parallel.DistributedDataParallel(engine)),
        "ddp of the module": plain.said_of(lambda: torch.nn.parallel.DistributedDataParallel(engine.module)),
        "ddp of a copy": plain.said_of(lambda: torch.nn.parallel.DistributedDataParallel(copy.deepcopy(engine.module))),
        "ddp inside": plain.said_of(
            lambda: deepspeed.initialize(
                model=torch.nn.parallel.DistributedDataParallel(models.Mlp()), optimizer=adamw(models.Mlp().parameters()), config=config(0)
            )
        ),
        "fp64": plain.said_of(lambda: Pair(lambda: models.Mlp().double(), 0)),
    }

    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wave = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    out["complex"] = plain.said_of(lambda: Pair(Wave, 0))
    return out


def converted(stage: int) -> dict[str, str]:
    """Returns the errors of forwards after a conversion of the engine's module."""
    out = {}
    conversions: dict[str, Any] = {
        "double": lambda m: m.double(),
        "half": lambda m: m.half(),
        "bfloat16": lambda m: m.layers.bfloat16(),
        "meta": lambda m: m.to("meta"),
        "same": lambda m: m.float().cpu(),
    }
    for name, convert in conversions.items():
        pair = Pair(lambda: models.seeded(models.Mlp), stage)
        convert(pair.engine.module)
        x = models.batch(0, 0, pair.engine.global_rank)[0]
        out[name] = plain.said_of(functools.partial(pair.engine, x.double() if name == "double" else x))
    return out


def scaled(stage: int) -> str:
    """Returns the error of a GradScaler."""
    pair, scaler = Pair(lambda: models.seeded(models.Mlp), stage), torch.amp.GradScaler("cpu")
    scaler.scale(models.loss(pair.engine, models.batch(0, 0, pair.engine.global_rank))).backward()
    return plain.said_of(lambda: scaler.step(pair.optimizer))


def frozen_on_one_rank() -> None:
    pair = Pair(lambda: models.seeded(models.Mlp), 1)
    pair.engine.module.head.requires_grad_(pair.engine.global_rank == 0)
    pair.step(0)


def types_of_modules() -> dict[str, Any]:
    """Returns type and weights of modules with 16-bit parameters and without a precision section."""
    out: dict[str, Any] = {}
    for name, change in (("bf16", lambda m: m.bfloat16()), ("fp16", lambda m: m.half()), ("mixed", lambda m: m.layers[0].bfloat16() and m)):
        module = change(models.seeded(models.Mlp))
        engine, *_ = deepspeed.initialize(model=module, optimizer=adamw(module.parameters()), config=config(2))
        x, y = models.batch(0, 0, engine.global_rank)
        engine.backward(nn.functional.cross_entropy(engine(x.to(module.head.weight.dtype)).float(), y))
        engine.step()
        out[name] = [str(module.head.weight.dtype), engine.get_data_types()[0] == module.head.weight.dtype, engine.was_step_applied()]
        copied = copy.deepcopy(module.head.bias)
        out[name].append(type(copied).__mro__[1].__name__ if copied.grad is None else "has a gradient")
        engine.destroy()
    return out
