"""Cases of engine_test.py for ranks; each returns JSON."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
from typing import Any

import cleave as deepspeed
import models
import plain
import torch

ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}


def config(stage: int, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage},
        "optimizer": ADAMW,
        **more,
    }
    if stage == 3:
        made["zero_optimization"].setdefault("stage3_param_persistence_threshold", 20)
    return made


def steps(engine: Any, count: int, first: int = 0, batch: Any = models.batch) -> list[tuple[float, float]]:
    out = []
    for step in range(first, first + count):
        for micro in range(engine.gradient_accumulation_steps()):
            engine.backward(models.loss(engine, batch(step, micro, engine.global_rank)))
            engine.step()
        out.append((engine.last_result.loss, engine.get_global_grad_norm()))
    return out


def in_torch(module: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: int, steps: int, **more: Any) -> list[tuple[float, float]]:
    return plain.train(module, optimizer, models.batch, models.loss, steps=steps, ranks=ranks, **{"micros": 2, "clipping": 0.5, **more})


def digest(engine: Any) -> str:
    names = [name for name, _ in engine.module.named_parameters()]
    values = b"".join(engine.parameters_of(name).numpy().tobytes() for name in names)
    return hashlib.sha256(values).hexdigest()


def worst(got: list[Any], want: list[Any]) -> float:
    return max(abs(a - b) / max(1.0, abs(b)) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))


def against_torch(kinds: list[Any]) -> dict[str, float]:
    """Returns, by model and stage, the difference in losses and norms of 4 steps from a loop in torch alone."""
    out = {}
    for name, *args in kinds:
        for stage in (0, 1, 2, 3):
            module, other = (models.seeded(getattr(models, name), 0, *args) for _ in range(2))
            engine = deepspeed.initialize(model=module, config=config(stage))[0]
            got = steps(engine, 4)
            trained = [p for p in other.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
            want = in_torch(other, optimizer, engine.world_size, 4)
            out[f"{name}{args} stage {stage}"] = worst(got, want)
            engine.destroy()
    return out


def _drawn(seed: int, folder: str) -> dict[str, Any]:
    """Returns a random configuration: stage, homes, sizes, micro-batches, clipping, optimizer."""
    draw = random.Random(1000 + seed)
    stage = draw.randrange(4)
    zero: dict[str, Any] = {"stage": stage}
    homes = [None, {"device": "cpu"}, {"device": "nvme", "nvme_path": folder}]
    offload_optimizer, offload_param = draw.choice(homes[: 3 if stage == 3 else 2]), draw.choice(homes)
    if stage > 0 and offload_optimizer:
        zero["offload_optimizer"] = offload_optimizer
    if stage == 3 and offload_param:
        zero["offload_param"] = offload_param
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = draw.choice([0, 10, 100])
        zero["stage3_prefetch_bucket_size"] = draw.choice([0, 100, 1000])
    if stage > 0:
        zero |= {"reduce_bucket_size": draw.choice([60, 500, 10000]), "overlap_comm": draw.random() < 0.5}
    sgd = {"type": "SGD", "params": {"lr": 3e-2, "momentum": 0.9, "weight_decay": 0.1}}
    optimizer = draw.choice([ADAMW, sgd])
    clipping = draw.choice([0.0, 0.5])
    micros = draw.choice([1, 2, 3])
    return config(stage, zero_optimization=zero, optimizer=optimizer, gradient_clipping=clipping, gradient_accumulation_steps=micros)


def random_modules(seeds: list[int], folder: str) -> dict[str, float]:
    """Returns, by seed and configuration, the difference in losses, norms and weights of 4 steps from a loop in torch alone."""
    out = {}
    for seed in seeds:
        made = _drawn(seed, folder)
        module, other = (models.seeded(models.Random, seed, seed) for _ in range(2))
        engine = deepspeed.initialize(model=module, config=made)[0]
        got = steps(engine, 4)
        kind = torch.optim.AdamW if made["optimizer"] is ADAMW else torch.optim.SGD
        optimizer = kind([p for p in other.parameters() if p.requires_grad], **made["optimizer"]["params"])
        want = in_torch(
            other, optimizer, engine.world_size, 4, micros=made["gradient_accumulation_steps"], clipping=made["gradient_clipping"]
        )
        zero = made["zero_optimization"]
        out[f"seed {seed}: {zero}, {made['gradient_accumulation_steps']} micro-batches"] = max(worst(got, want), plain.apart(engine, other))
        engine.destroy()
    return out


HOMES = (None, "cpu", "nvme")
PLACEMENTS: list[dict[str, Any]] = [
    *({"stage": stage, "offload_optimizer": home} for stage in (0, 1, 2) for home in (HOMES if stage else HOMES[:1])),
    *({"stage": 3, "offload_optimizer": home, "offload_param": other} for home in HOMES for other in HOMES),
    {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 500},
    {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.4}},
    {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0},
]


def _placed(zero: dict[str, Any], folder: str) -> dict[str, Any]:
    """Returns the section of a placement, with file paths for state on disk."""
    homes = {k: {"device": v, "nvme_path": folder} if v == "nvme" else {"device": v} for k, v in zero.items() if v in HOMES[1:]}
    return {k: v for k, v in zero.items() if v not in HOMES} | homes


def digests(name: str, folder: str, precision: str, count: int, exact: bool) -> dict[str, str]:
    """Returns digests of the weights after some steps for each placement; files name those that differ. With exact sums, a step has two
    micro-batches."""
    out = {}
    for zero in PLACEMENTS:
        made = config(0, zero_optimization=_placed(zero, folder), gradient_accumulation_steps=2 if exact else 1)
        made["cleave"] = {"exact_sums": exact}
        if precision != "fp32":
            made[precision] = {"enabled": True}
        path = os.path.join(folder, f"ds_config{os.environ['RANK']}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(made, file)
        engine = deepspeed.initialize(model=models.seeded(getattr(models, name)), config=path)[0]
        steps(engine, count)
        out[str(zero)] = digest(engine)
        memory = engine.memory()
        assert memory["live"] == memory["planned"], (zero, memory)
        engine.destroy()
    return out


def _optimizers() -> dict[str, Any]:
    o, ds = torch.optim, deepspeed.ops
    return {
        "AdamW": (o.AdamW, {"lr": 3e-3, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.2}),
        "own rates": (o.AdamW, {"lr": 1e-2}),
        "Adam": (o.Adam, {"lr": 3e-3, "weight_decay": 0.2}),
        "SGD": (o.SGD, {"lr": 3e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        "SGD alone": (o.SGD, {"lr": 3e-2}),
        "Adagrad": (o.Adagrad, {"lr": 1e-2}),
        "FusedAdam": (o.AdamW, {"lr": 3e-3, "weight_decay": 0.2}, ds.adam.FusedAdam),
        "DeepSpeedCPUAdam": (o.AdamW, {"lr": 3e-3, "weight_decay": 0.2}, ds.adam.DeepSpeedCPUAdam),
    }


def _groups(module: torch.nn.Module) -> list[dict[str, Any]]:
    named = list(module.named_parameters())
    return [{"params": [p for n, p in named if "bias" not in n]}, {"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0}]


def _own_rates(module: torch.nn.Module) -> list[dict[str, Any]]:
    named = list(module.named_parameters())
    head = [p for n, p in named if n.startswith("head")]
    biases = [p for n, p in named if "bias" in n and not n.startswith("head")]
    weights = [p for n, p in named if "bias" not in n and not n.startswith("head")]
    return [
        {"params": weights, "weight_decay": 0.2},
        {"params": biases, "weight_decay": 0.0, "lr": 2e-2, "betas": (0.5, 0.9)},
        {"params": head, "weight_decay": 0.5, "lr": 4e-3},
    ]


def optimizer_objects(stage: int) -> dict[str, float]:
    """Returns, by optimizer, the difference of an object with two groups and a torch schedule from torch alone."""
    out = {}
    for key, (kind, values, *ours) in _optimizers().items():
        module, other = models.seeded(models.Mlp), models.seeded(models.Mlp)
        of = _own_rates if key == "own rates" else _groups
        made = (ours[0] if ours else kind)(of(module), **values)
        schedule = torch.optim.lr_scheduler.StepLR(made, 2, 0.5)
        without = {k: v for k, v in config(stage).items() if k != "optimizer"}
        engine, optimizer, _, back = deepspeed.initialize(model=module, optimizer=made, lr_scheduler=schedule, config=without)
        assert back is schedule and optimizer.param_groups[0] is made.param_groups[0]
        got = steps(engine, 5)
        want_optimizer = kind(of(other), **values)
        want_schedule = torch.optim.lr_scheduler.StepLR(want_optimizer, 2, 0.5)
        want = in_torch(other, want_optimizer, engine.world_size, 5, scheduler=want_schedule)
        assert engine.get_lr() == want_schedule.get_last_lr(), (engine.get_lr(), want_schedule.get_last_lr())
        out[key] = max(worst(got, want), plain.apart(engine, other))
        engine.destroy()
    return out


def callables(stage: int) -> list[float]:
    """Returns the rates of each step for an optimizer and schedule created by callables, and for those of the ds_config."""
    rates = []
    for given in (True, False):
        made = config(stage)
        kwargs: dict[str, Any] = {}
        if given:
            del made["optimizer"]
            kwargs["optimizer"] = lambda parameters: torch.optim.AdamW(parameters, lr=8e-3)
            kwargs["lr_scheduler"] = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k))
        else:
            params = {"warmup_min_lr": 0, "warmup_max_lr": 8e-3, "warmup_num_steps": 4, "warmup_type": "linear"}
            made["scheduler"] = {"type": "WarmupLR", "params": params}
        module = models.seeded(models.Mlp)
        engine, _, _, schedule = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=made, **kwargs)
        for step in range(3):
            steps(engine, 1, step)
            rates.append(engine.last_result.lr)
        assert schedule.get_last_lr() == engine.get_lr()
        engine.destroy()
    return rates


def half_precision(stage: int, precision: str) -> dict[str, Any]:
    """Returns the difference of the first step in 16 bits from torch's passes in the same type; in fp16, also the effect of too large a
    loss scale."""
    made = config(stage)
    made[precision] = {"enabled": True}
    if precision == "fp16":
        made[precision].update(initial_scale_power=18, hysteresis=1)
    engine = deepspeed.initialize(model=models.seeded(models.Gpt), config=made)[0]
    exact = all(torch.equal(engine.parameters_of(name), p.detach()) for name, p in models.seeded(models.Gpt).named_parameters())
    scales, got = [], []
    for _ in range(12):
        got += steps(engine, 1, 0)
        scales.append(engine.optimizer.loss_scale)
        if engine.was_step_applied() and len(got) - engine.skipped_steps == 1:
            first = got[-1]
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    assert next(engine.module.parameters()).dtype == dtype
    want = plain.first_step(models.seeded(models.Gpt).to(dtype), models.batch, models.loss, micros=2, ranks=engine.world_size)
    counts = {"skipped": engine.skipped_steps, "scales": scales, "steps": engine.global_steps}
    return {"exact": exact, "far": worst([first], [want]), **counts}


def resumed(folder: str, save: int, load: int, begin: bool) -> dict[str, Any]:
    """Trains 3 steps and saves at stage `save`, or trains 2 more from the checkpoint at stage `load`."""
    made = config(save if begin else load)
    made["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}}
    engine = deepspeed.initialize(model=models.seeded(models.Gpt, 0 if begin else 7), config=made)[0]
    world = engine.world_size

    def batch(step: int, micro: int, rank: int) -> plain.Batch:  # same samples in each step on any number of ranks
        parts = [models.batch(step, micro, r) for r in range(4)]
        x, y = (torch.cat([p[i] for p in parts]) for i in range(2))
        return x[rank * 16 // world : (rank + 1) * 16 // world], y[rank * 16 // world : (rank + 1) * 16 // world]

    if begin:
        steps(engine, 3, 0, batch)
        assert engine.save_checkpoint(folder, client_state={"epoch": 4, "tensor": torch.arange(3)})
        return {"losses": steps(engine, 2, 3, batch), "lr": engine.get_lr()}
    path, client = engine.load_checkpoint(folder)
    assert path == os.path.join(folder, "global_step3") and client["epoch"] == 4 and client["tensor"].tolist() == [0, 1, 2]
    assert engine.global_steps == 3 and engine.global_samples == 3 * 16
    return {"losses": steps(engine, 2, 3, batch), "lr": engine.get_lr()}


def checkpointed(stage: int) -> dict[str, float]:
    """Returns losses and norms with recomputed activations, reentrant or not, also for frozen units, and those without recomputation."""
    out = {}
    want: list[Any] = []
    for mode in ("none", "reentrant", "other"):
        model = models.seeded(models.Blocks, 0, mode)
        engine = deepspeed.initialize(model=model, config=config(stage))[0]
        got = steps(engine, 3)
        want = want or got
        out[mode] = worst(got, want)
        engine.destroy()
    return out


def _chained(modules: list[Any], sample: plain.Batch) -> torch.Tensor:
    first = torch.nn.functional.pad(modules[0](sample[0]), (0, 3))
    return torch.nn.functional.cross_entropy(modules[1](first), sample[1])


def _weighted(modules: list[Any], sample: plain.Batch) -> torch.Tensor:
    """Returns a loss times the norm of another gradient, that of the output by the input."""
    x = sample[0].clone().requires_grad_()
    [gradient] = torch.autograd.grad(modules[0](x).square().sum(), x)
    return models.loss(modules[0], sample) * gradient.norm()


_LOSSES: dict[str, Any] = {
    "one": lambda modules, sample: models.loss(modules[0], sample),
    "two": lambda modules, sample: models.loss(modules[0], sample) + models.loss(modules[1], sample) / 2,
    "chained": _chained,
    "weighted": _weighted,
    "of an output": lambda modules, sample: modules[0](sample[0]).cos().sum(),
}


def own_backwards(stages: list[int]) -> dict[str, float]:
    """Returns, by stage and loss, the difference of the weights from torch's after steps of two modules by loss.backward()."""
    out = {}
    for stage, (case, loss) in itertools.product(stages, _LOSSES.items()):
        engines, others = [], []
        for seed in range(2):
            engines.append(deepspeed.initialize(model=models.seeded(models.Mlp, seed), config=config(stage, gradient_clipping=0.0))[0])
            others.append(models.seeded(models.Mlp, seed))
        optimizers = [torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1) for other in others]
        trained = [k for k in range(2) if k == 0 or case in ("two", "chained")]
        ranks = engines[0].world_size
        for step in range(2):
            for micro in range(2):
                loss(engines, models.batch(step, micro, engines[0].global_rank)).backward()
                for k in trained:
                    engines[k].step()
                for rank in range(ranks):
                    (loss(others, models.batch(step, micro, rank)) / (2 * ranks)).backward()
            for k in trained:
                optimizers[k].step()
                optimizers[k].zero_grad()
        out[f"stage {stage}: {case}"] = max(plain.apart(engines[k], others[k]) for k in trained)
        for engine in engines:
            engine.destroy()
    return out


def added_backwards(stages: list[int]) -> dict[str, float]:
    """Returns, by stage, the difference of norms and weights from torch's with two backwards per step."""
    out = {}
    for stage in stages:
        model, other = models.seeded(models.Odd), models.seeded(models.Odd)
        engine = deepspeed.initialize(model=model, config=config(stage, gradient_accumulation_steps=1))[0]
        optimizer = torch.optim.AdamW([p for p in other.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
        far = []

        def losses(module: torch.nn.Module, step: int, rank: int) -> list[torch.Tensor]:
            first, second = (models.batch(step, micro, rank) for micro in range(2))
            return [models.loss(module, first), module(second[0])[:, 0].mean()]

        for step in range(2):
            for loss in losses(engine, step, engine.global_rank):
                engine.backward(loss)
            engine.step()
            for rank in range(engine.world_size):
                for loss in losses(other, step, rank):
                    (loss / engine.world_size).backward()
            norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            for p in other.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None and p.requires_grad else p.grad
            optimizer.step()
            optimizer.zero_grad()
            far.append(abs(engine.get_global_grad_norm() - norm.item()))
        far.append(plain.apart(engine, other))
        out[f"stage {stage}"] = max(far)
        engine.destroy()
    return out


def scaled_backwards(stage: int) -> dict[str, Any]:
    """Returns norms with a loss scale by engine.backward and by engine.scale, and the errors without it and after a failed backward."""
    out: dict[str, Any] = {"norms": []}
    for scaled in (False, True):
        made = config(stage, fp16={"enabled": True, "initial_scale_power": 8}, gradient_accumulation_steps=1)
        engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
        for step in range(2):
            loss = models.loss(engine, models.batch(step, 0, engine.global_rank))
            if scaled:
                engine.scale(loss).backward()
            else:
                engine.backward(loss)
            engine.step()
            out["norms"].append(engine.get_global_grad_norm())
    out["unscaled"] = plain.said_of(lambda: models.loss(engine, models.batch(0, 0, 0)).backward())
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0]

    def fails(gradient: torch.Tensor) -> None:
        raise ValueError("a hook of the script")

    def backward() -> None:
        x, y = models.batch(0, 0, 0)
        loss = torch.nn.functional.cross_entropy(engine(x.requires_grad_()), y)
        x.register_hook(fails)
        loss.backward()

    other = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0]
    out["another's"] = plain.said_of(lambda: other.backward(_chained([engine, other], models.batch(0, 0, 0))))
    engine, unscaled = (deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0] for _ in range(2))
    models.loss(unscaled, models.batch(0, 0, 0)).backward()
    out["taken back"] = plain.said_of(unscaled.optimizer.zero_grad)
    out["failed"] = plain.said_of(backward)
    out["after"] = plain.said_of(backward)
    return out


def autocast(stage: int) -> dict[str, float]:
    """Returns the difference of two steps under autocast from torch's, and from fp32 steps."""
    model, other, whole = (models.seeded(models.Mlp) for _ in range(3))
    made = config(stage, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    engine = deepspeed.initialize(model=model, config=made)[0]

    def loss(module: torch.nn.Module, batch: plain.Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = module(batch[0])
        return torch.nn.functional.cross_entropy(out.float(), batch[1])

    def trained(module: torch.nn.Module, of: Any) -> list[tuple[float, float]]:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1)
        return plain.train(module, optimizer, models.batch, of, steps=2, micros=2, ranks=engine.world_size, clipping=0.5)

    got = steps(engine, 2)
    engine.destroy()
    return {"autocast": worst(got, trained(other, loss)), "fp32": worst(got, trained(whole, models.loss))}


def autocast_of_bf16(stage: int) -> list[list[float]]:
    """Returns the losses of two micro-batches of fp32 inputs with bf16 parameters, and those in torch; both need autocast."""
    module, whole = models.seeded(models.Mlp), models.seeded(models.Mlp).bfloat16()
    engine = deepspeed.initialize(model=module, config=config(stage, bf16={"enabled": True}, torch_autocast={"enabled": True}))[0]
    out: list[list[float]] = [[], []]
    for micro in range(2):
        x, y = models.batch(0, micro, engine.global_rank)
        loss = torch.nn.functional.cross_entropy(engine(x).float(), y)
        engine.backward(loss)
        engine.step()
        out[0].append(loss.item())
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            output = whole(x)
        out[1].append(torch.nn.functional.cross_entropy(output.float(), y).item())
    print("norm", engine.get_global_grad_norm())
    return out


def full_bf16() -> list[str]:
    """Returns the digests of weights after two steps in bf16, without and with keys that ask for 16-bit masters and states."""
    keys = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    out = []
    for more in ({}, keys):
        made = config(1, bf16={"enabled": True, **more})
        engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
        steps(engine, 2)
        out.append(digest(engine))
        engine.destroy()
    print("equal" if out[0] == out[1] else "differ")
    return out


def autocast_in_fp16(stage: int) -> dict[str, Any]:
    """Compares two steps under autocast in fp16 with torch and its GradScaler, then two more after an overflow."""
    model, other = models.seeded(models.Mlp), models.seeded(models.Mlp)
    made = config(stage, torch_autocast={"enabled": True, "dtype": "float16"}, gradient_clipping=0.0)
    engine = deepspeed.initialize(model=model, config=made)[0]
    optimizer, scaler = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1), torch.amp.GradScaler("cpu")
    seen: dict[str, Any] = {"scales": [engine.optimizer.loss_scale], "want": [scaler.get_scale() or 2.0**16], "far": 0.0}
    for step in range(4):
        times = 1e9 if step == 2 else 1.0
        optimizer.zero_grad()
        for micro in range(2):
            engine.backward(models.loss(engine, models.batch(step, micro, engine.global_rank)) * times)
            engine.step()
            for rank in range(engine.world_size):
                x, y = models.batch(step, micro, rank)
                with torch.autocast("cpu", torch.float16):
                    out = other(x)
                loss = torch.nn.functional.cross_entropy(out.float(), y) * times / (2 * engine.world_size)
                scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen["scales"].append(engine.optimizer.loss_scale), seen["want"].append(scaler.get_scale())
        seen["far"] = max(seen["far"], plain.apart(engine, other))
    return seen | {"skipped": engine.skipped_steps}


def compiled(stages: list[int]) -> dict[str, float]:
    """Returns the difference in losses and norms with torch.compile of a module, and of its blocks, from torch without it."""
    out = {}
    for stage, whole in itertools.product(stages, (True, False)):
        model, other = models.seeded(models.Gpt), models.seeded(models.Gpt)
        engine = deepspeed.initialize(model=model, config=config(stage))[0]
        for part in [model] if whole else model.blocks:
            part.compile(backend="aot_eager")
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
        want = in_torch(other, optimizer, engine.world_size, 3)
        out[f"whole {whole}, stage {stage}"] = worst(steps(engine, 3), want)
        engine.destroy()
    return out
