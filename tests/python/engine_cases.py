"""What engine_test.py runs on ranks: each case returns JSON."""

from __future__ import annotations

import functools
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


def digest(engine: Any) -> str:
    names = [name for name, _ in engine.module.named_parameters()]
    values = b"".join(engine.parameters_of(name).numpy().tobytes() for name in names)
    return hashlib.sha256(values).hexdigest()


def worst(got: list[Any], want: list[Any]) -> float:
    return max(abs(a - b) / max(1.0, abs(b)) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))


def against_torch(kinds: list[Any]) -> dict[str, float]:
    """By model and stage: how far losses and norms of 4 steps are from those of a loop of torch's alone."""
    out = {}
    for name, *args in kinds:
        for stage in (0, 1, 2, 3):
            module, other = (models.seeded(getattr(models, name), 0, *args) for _ in range(2))
            engine = deepspeed.initialize(model=module, config=config(stage))[0]
            got = steps(engine, 4)
            trained = [p for p in other.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
            want = plain.train(other, optimizer, models.batch, models.loss, steps=4, micros=2, ranks=engine.world_size, clipping=0.5)
            out[f"{name}{args} stage {stage}"] = worst(got, want)
            engine.destroy()
    return out


def _drawn(seed: int, folder: str) -> dict[str, Any]:
    """A random configuration: stage, homes, sizes, micro-batches, clipping, optimizer."""
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
    """By seed and configuration: how far losses, norms and weights of 4 steps are from those of a loop of torch's alone."""
    out = {}
    for seed in seeds:
        made = _drawn(seed, folder)
        module, other = (models.seeded(models.Random, seed, seed) for _ in range(2))
        engine = deepspeed.initialize(model=module, config=made)[0]
        got = steps(engine, 4)
        kind = torch.optim.AdamW if made["optimizer"] is ADAMW else torch.optim.SGD
        optimizer = kind([p for p in other.parameters() if p.requires_grad], **made["optimizer"]["params"])
        want = plain.train(
            other,
            optimizer,
            models.batch,
            models.loss,
            steps=4,
            micros=made["gradient_accumulation_steps"],
            ranks=engine.world_size,
            clipping=made["gradient_clipping"],
        )
        far = [(engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in other.named_parameters()]
        zero = made["zero_optimization"]
        out[f"seed {seed}: {zero}, {made['gradient_accumulation_steps']} micro-batches"] = max(worst(got, want), *far)
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
    """The section of a placement, with the paths of what is on disk."""
    homes = {k: {"device": v, "nvme_path": folder} if v == "nvme" else {"device": v} for k, v in zero.items() if v in HOMES[1:]}
    return {k: v for k, v in zero.items() if v not in HOMES} | homes


def digests(name: str, folder: str, precision: str, count: int, exact: bool) -> dict[str, str]:
    """Of the weights after steps, for each placement, of which one file says what is another; with exact sums two micro-batches a step."""
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
    """By optimizer: an object with two groups and a schedule of torch's, against the same in torch alone."""
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
        want = plain.train(
            other,
            want_optimizer,
            models.batch,
            models.loss,
            steps=5,
            micros=2,
            ranks=engine.world_size,
            clipping=0.5,
            scheduler=want_schedule,
        )
        assert engine.get_lr() == want_schedule.get_last_lr(), (engine.get_lr(), want_schedule.get_last_lr())
        far = [(engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in other.named_parameters()]
        out[key] = max(worst(got, want), *far)
        engine.destroy()
    return out


def callables(stage: int) -> list[float]:
    """An optimizer and a schedule that are made by callables, and those of the ds_config: rates that each step used."""
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
    """The first step in 16 bits against torch's passes in the same type; of fp16, what too large a loss scale does."""
    made = config(stage)
    made[precision] = {"enabled": True}
    if precision == "fp16":
        made[precision].update(initial_scale_power=18, hysteresis=1)
    engine = deepspeed.initialize(model=models.seeded(models.Gpt), config=made)[0]
    scales, got = [], []
    for _ in range(12):
        got += steps(engine, 1, 0)
        scales.append(engine.optimizer.loss_scale)
        if engine.was_step_applied() and len(got) - engine.skipped_steps == 1:
            first = got[-1]
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    assert next(engine.module.parameters()).dtype == dtype
    want = plain.first_step(models.seeded(models.Gpt).to(dtype), models.batch, models.loss, micros=2, ranks=engine.world_size)
    return {"far": worst([first], [want]), "skipped": engine.skipped_steps, "scales": scales, "steps": engine.global_steps}


def resumed(folder: str, save: int, load: int, begin: bool) -> dict[str, Any]:
    """3 steps and a checkpoint at stage `save`, or from it 2 more at stage `load`."""
    made = config(save if begin else load)
    made["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}}
    engine = deepspeed.initialize(model=models.seeded(models.Gpt, 0 if begin else 7), config=made)[0]
    world = engine.world_size

    def batch(step: int, micro: int, rank: int) -> plain.Batch:  # the same samples in each step, however many ranks there are
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


def gathered(stage: int) -> dict[str, Any]:
    """What a parameter is outside of calls, within GatheredParameters, and after one rank changed it."""
    engine = deepspeed.initialize(model=models.seeded(models.Gpt), config=config(stage, bf16={"enabled": True}))[0]
    steps(engine, 1)
    weight = engine.module.head.weight
    outside = bool(torch.isnan(weight).any())
    master = engine.parameters_of("embed.weight")
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
        inside = torch.equal(weight.float(), master.bfloat16().float())
        if engine.global_rank == 0:
            engine.module.norm.bias.data.fill_(2.5)
    with deepspeed.zero.GatheredParameters(engine.module.norm.bias):
        changed = engine.module.norm.bias.tolist()
    kept = torch.equal(master, engine.parameters_of("embed.weight"))
    whole = engine._zero3_consolidated_16bit_state_dict()
    names = None if whole is None else sorted(whole) == sorted(engine.module.state_dict())
    return {"outside": outside, "shape": list(weight.shape), "inside": inside, "changed": changed, "kept": kept, "names": names}


def checkpointed(stage: int) -> dict[str, float]:
    """Losses and norms with activations computed again, re-entrant or not, of frozen units too, beside those without."""
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
    """A loss times the size of another gradient, that of the output by the input."""
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
    """By stage and loss: how far weights are from torch's after steps of two modules by loss.backward()."""
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
        far = [
            (engines[k].parameters_of(name) - p.detach()).abs().max().item() for k in trained for name, p in others[k].named_parameters()
        ]
        out[f"stage {stage}: {case}"] = max(far)
        for engine in engines:
            engine.destroy()
    return out


def added_backwards(stages: list[int]) -> dict[str, float]:
    """By stage: how far norms and weights are from torch's where each step has two backwards."""
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
        far += [(engine.parameters_of(name) - p.detach()).abs().max().item() for name, p in other.named_parameters()]
        out[f"stage {stage}"] = max(far)
        engine.destroy()
    return out


def scaled_backwards(stage: int) -> dict[str, Any]:
    """Norms with a loss scale by engine.backward and by engine.scale; what is said without, and after a backward that failed."""
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
    out["unscaled"] = _said_of(lambda: models.loss(engine, models.batch(0, 0, 0)).backward())
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0]

    def fails(gradient: torch.Tensor) -> None:
        raise ValueError("a hook of the script")

    def backward() -> None:
        x, y = models.batch(0, 0, 0)
        loss = torch.nn.functional.cross_entropy(engine(x.requires_grad_()), y)
        x.register_hook(fails)
        loss.backward()

    other = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0]
    out["another's"] = _said_of(lambda: other.backward(_chained([engine, other], models.batch(0, 0, 0))))
    engine, unscaled = (deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0] for _ in range(2))
    models.loss(unscaled, models.batch(0, 0, 0)).backward()
    out["taken back"] = _said_of(unscaled.optimizer.zero_grad)
    out["failed"] = _said_of(backward)
    out["after"] = _said_of(backward)
    return out


def _said_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refusals(mistakes: list[str], folder: str) -> dict[str, str]:
    """By mistake what is said of it."""
    out = {}
    for which in mistakes:
        out[which] = _said_of(functools.partial(_mistake, which, folder))
    return out


def _mistake(which: str, folder: str) -> None:
    stage = 3 if which.startswith("stage 3: ") else 1
    what = which.removeprefix("stage 3: ")
    module = models.seeded(models.Mlp)
    if what == "unknown key":
        deepspeed.initialize(model=module, config={**config(0), "gradient_cliping": 1})
    if what == "no file":
        deepspeed.initialize(model=module, config="nowhere.json")
    if what == "twice":
        args = type("Args", (), {"deepspeed_config": "a.json"})
        deepspeed.initialize(args=args, model=module, config=config(0))
    if what == "groups":
        groups = [{"params": [p], "momentum": 0.1 * k} for k, p in enumerate(module.parameters())]
        deepspeed.initialize(model=module, optimizer=torch.optim.SGD(groups, lr=1), config=config(1))
    engine = deepspeed.initialize(model=module, config=config(stage))[0]
    loss = models.loss(engine, models.batch(0, 0, engine.global_rank))
    if what == "step alone":
        engine.step()
    if what == "past the engine":
        models.loss(module, models.batch(0, 0, 0)).backward()
    if what == "backward twice":
        engine.backward(loss)
        engine.backward(loss)
    if what == "in place":
        engine = deepspeed.initialize(model=models.seeded(models.InPlace), config=config(stage))[0]
        engine.backward(models.loss(engine, models.batch(0, 0, 0)))
    if what == "other model":
        engine.backward(loss), engine.step()
        engine.backward(models.loss(engine, models.batch(0, 1, 0))), engine.step()
        engine.save_checkpoint(folder)
        other = deepspeed.initialize(model=models.seeded(models.Gpt), config=config(stage))[0]
        other.load_checkpoint(folder)
    if what == "save within":
        engine.backward(loss), engine.step()
        engine.backward(models.loss(engine, models.batch(0, 1, 0)))
        engine.save_checkpoint(folder)
    if what == "load within":
        engine.backward(loss), engine.step()
        engine.load_checkpoint(folder)


def raises(rank: int, where: str) -> None:
    """One rank's loss throws."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(3))[0]
    for step in range(3):
        loss = models.loss(engine, models.batch(step, 0, engine.global_rank))
        if step == 1 and engine.global_rank == rank:
            if where == "exit":
                os._exit(9)
            raise ValueError("the loss of this rank is bad")
        engine.backward(loss)
        engine.step()


def loader(size: int, folder: str) -> dict[str, list[int]]:
    """Samples that each rank gets of a Dataset, through workers that are forked, and from a checkpoint on."""
    data = [(torch.full((8,), float(i)), i % models.CLASSES) for i in range(size)]
    engine, _, dataloader, _ = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2), training_data=data)
    dataloader.sampler.set_epoch(0)  # what scripts call of torch's own
    assert dataloader.batch_size == engine.train_micro_batch_size_per_gpu()
    seen = [int(v) for x, _ in dataloader for v in x[:, 0]]
    from torch.utils.data import DataLoader

    forked = [int(v) for x, _ in DataLoader(data, batch_size=4, num_workers=2) for v in x[:, 0]]
    assert forked == list(range(size))
    steps(engine, 1)
    first = list(itertools.islice(iter(dataloader), 3))
    out = {"seen": seen, "third": [int(v) for v in first[2][0][:, 0]]}
    for given, tag in ((2, "a"), (3, "b")):  # a step, and a micro-batch more, which is no part of a checkpoint
        batches = iter(dataloader)
        for batch in itertools.islice(batches, given):
            engine.backward(models.loss(engine, batch))
            engine.step()
        engine.save_checkpoint(folder, tag)
        again = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2), training_data=data)[0]
        again.load_checkpoint(folder, tag)
        out[tag] = [int(v) for x, _ in again.training_dataloader for v in x[:, 0]]
        out[tag + " after"] = [int(v) for x, _ in again.training_dataloader for v in x[:, 0]]
        again.destroy()
    return out


def built_sharded() -> dict[str, Any]:
    """A model that zero.Init builds: what a rank holds, a change before there is an engine, and how far its losses are from torch's."""
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = models.seeded(models.Gpt)
    statuses = [{p.ds_status.name for p in model.parameters()}]
    shards = [p.ds_shard for p in dict.fromkeys(model.parameters())]
    held = sum(shard._part.numel() for shard in shards)
    shown = torch.cat([p.detach().flatten() for p in model.parameters()])
    whole = models.seeded(models.Gpt)
    with deepspeed.zero.GatheredParameters(model, modifier_rank=1), torch.no_grad():
        same = all(torch.equal(p, q) for p, q in zip(model.parameters(), whole.parameters(), strict=True))
        statuses.append({p.ds_status.name for p in model.parameters()})
        if os.environ["RANK"] == "1":
            model.norm.bias.fill_(0.25)
    with torch.no_grad():
        whole.norm.bias.fill_(0.25)
    engine = deepspeed.initialize(model=model, config=config(3))[0]
    want = plain.train(
        whole,
        torch.optim.AdamW(whole.parameters(), lr=1e-2, weight_decay=0.1),
        models.batch,
        models.loss,
        steps=3,
        micros=2,
        ranks=engine.world_size,
        clipping=0.5,
    )
    statuses.append({p.ds_status.name for p in model.parameters()})
    return {
        "statuses": [sorted(names) for names in statuses],
        "held": held,
        "numel": sum(p.numel() for p in whole.parameters()),
        "nothing": bool(shown.isnan().all()),
        "same": same,
        "far": worst(steps(engine, 3, 0), want),
    }


def states(stage: int) -> dict[str, Any]:
    """What utils reads and writes of a parameter."""
    from cleave.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state, safe_set_full_fp32_param

    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0]
    steps(engine, 2, 0)
    bias = engine.module.head.bias
    first = safe_get_full_fp32_param(bias)
    moment = safe_get_full_optimizer_state(bias, "exp_avg")
    safe_set_full_fp32_param(bias, torch.full((models.CLASSES,), 0.5))
    with deepspeed.zero.GatheredParameters(bias):
        shown = bias.tolist()
    return {"first": first.tolist(), "moment": moment.tolist(), "shown": shown}


def surface(stages: list[int]) -> dict[str, dict[str, Any]]:
    """What an engine does beside its steps: each against torch alone, or as a number that has to be true."""
    out = {}
    for stage in stages:
        model, other = models.seeded(models.Gpt, 5), models.seeded(models.Gpt)
        engine = deepspeed.initialize(model=model, config=config(stage))[0]
        engine.load_module_state_dict({"module": other.state_dict()})
        loaded = all(torch.equal(engine.parameters_of(name), p.detach()) for name, p in other.named_parameters())
        engine.set_train_batch_size(3 * 4 * engine.world_size)
        assert engine.gradient_accumulation_steps() == 3 and engine.get_type() == [0.0]
        got = []
        for step in range(2):
            for micro in range(3):
                engine.scale(models.loss(engine, models.batch(step, micro, engine.global_rank))).backward()
                engine.step()
            got.append((engine.last_result.loss, engine.get_global_grad_norm()))
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
        want = plain.train(other, optimizer, models.batch, models.loss, steps=2, micros=3, ranks=engine.world_size, clipping=0.5)
        assert engine.global_samples == 2 * 3 * 4 * engine.world_size and not engine.is_compiled
        engine.compile(backend="eager")
        seen: dict[str, Any] = {"loaded": loaded, "far": worst(got, want), "compiled": engine.is_compiled}
        for name, call in {
            "missing": lambda e: e.load_module_state_dict({"embed.weight": torch.zeros(1)}),
            "shape": lambda e: e.load_module_state_dict({"embed.weight": torch.zeros(1)}, strict=False),
            "batch": lambda e: e.set_train_batch_size(5),
            "offload": lambda e: e.offload_states(),
            "tags": lambda e: e.save_checkpoint("nowhere", f"of rank {e.global_rank}"),
            "early": _early,
            "ahead": lambda e: _ahead(e.zero_optimization_stage()),
            "within": _within,
        }.items():
            try:
                call(engine)
            except deepspeed.CleaveError as error:
                seen[name] = f"{type(error).__name__}: {error}"
        engine.destroy()
        out[str(stage)] = seen | _autocast(stage) | {"gradients": _gradients(stage)}
    return out


def _early(engine: Any) -> None:
    engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
    deepspeed.utils.safe_get_full_grad(engine.module.head.weight)


def _ahead(stage: int) -> None:
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}}
    made = config(stage, gradient_clipping=0.0, scheduler=schedule, gradient_accumulation_steps=1)
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
    engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
    deepspeed.utils.safe_set_full_grad(engine.module.head.bias, torch.zeros(models.CLASSES))


def _within(engine: Any) -> None:
    with engine.no_sync():
        engine.backward(models.loss(engine, models.batch(0, 0, engine.global_rank)))
        engine.step()


def buffers() -> list[list[str]]:
    """The types of a module's buffers in 16 bits, by buffer_dtype."""
    out = []
    for given in (None, "bf16"):
        module = torch.nn.BatchNorm1d(8)
        made = config(1, bf16={"enabled": True}, data_types={"buffer_dtype": given})
        engine = deepspeed.initialize(model=module, config=made)[0]
        out.append([str(b.dtype) for b in engine.module.buffers()])
        engine.destroy()
    return out


def _gradients(stage: int) -> dict[str, Any]:
    """How far whole gradients are from torch's: where the update waits for the norm, and where units are updated before it."""
    out: dict[str, Any] = {}
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}}
    for name, more in (
        ("clipped", {}),
        ("ahead", {"gradient_clipping": 0.0, "scheduler": schedule}),
        ("exact", {"cleave": {"exact_sums": True}}),
    ):
        model, other = models.seeded(models.Odd), models.seeded(models.Odd)
        engine = deepspeed.initialize(model=model, config=config(stage, **more))[0]
        outside = deepspeed.utils.safe_get_full_grad(model.head.weight)
        for micro in range(2):
            engine.backward(models.loss(engine, models.batch(0, micro, engine.global_rank)))
            if micro == 0:
                engine.step()
            for rank in range(engine.world_size):
                (models.loss(other, models.batch(0, micro, rank)) / (2 * engine.world_size)).backward()
        far = []
        for parameter, want in zip(model.parameters(), other.parameters(), strict=True):
            got = deepspeed.utils.safe_get_full_grad(parameter)
            assert (got is None) == (not want.requires_grad)
            if got is not None:
                far.append((got - (want.grad if want.grad is not None else 0)).abs().max().item())
        engine.step()
        norm = torch.nn.utils.get_total_norm([p.grad for p in other.parameters() if p.grad is not None]).item()
        out[name] = max(*far, abs(engine.get_global_grad_norm() - norm)) if outside is None else 1.0
        engine.destroy()
    return out


def changed_gradients(stages: list[int]) -> dict[str, float]:
    """By stage and form of gradients: how far from torch's a norm and weights are whose gradients a script changes before the update."""
    out = {}
    for stage in stages:
        forms: dict[str, Any] = {"clipped": {}, "exact": {"cleave": {"exact_sums": True}}, "fp16": {"fp16": {"enabled": True}}}
        if stage:
            forms["offloaded"] = {"zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}}}
        for form, more in forms.items():
            model, other = models.seeded(models.Odd), models.seeded(models.Odd)
            engine = deepspeed.initialize(model=model, config=config(stage, **more))[0]
            trained = [p for p in other.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1)
            far = []
            for step in range(2):
                for micro in range(2):
                    engine.backward(models.loss(engine, models.batch(step, micro, engine.global_rank)))
                    if micro == 0:
                        engine.step()
                if form == "fp16":  # of a value that 16 bits hold: a norm in closed form
                    for mine in (p for p in model.parameters() if p.requires_grad):
                        deepspeed.utils.safe_set_full_grad(mine, torch.full(mine.ds_shape, 0.25))
                    far.append((deepspeed.utils.safe_get_full_grad(model.head.weight) - 0.25).abs().max().item())
                    engine.step()
                    far.append(engine.get_global_grad_norm() / (0.25 * sum(p.numel() for p in trained) ** 0.5) - 1)
                    continue
                for p in trained:
                    p.grad = torch.zeros_like(p)
                for micro, rank in itertools.product(range(2), range(engine.world_size)):
                    (models.loss(other, models.batch(step, micro, rank)) / (2 * engine.world_size)).backward()
                for mine, p in zip(model.parameters(), other.parameters(), strict=True):
                    if p.requires_grad:
                        p.grad = 0.5 * p.grad + 0.01
                        deepspeed.utils.safe_set_full_grad(mine, 0.5 * deepspeed.utils.safe_get_full_grad(mine) + 0.01)
                        far.append((deepspeed.utils.safe_get_full_grad(mine) - p.grad).abs().max().item())
                norm = torch.nn.utils.clip_grad_norm_(trained, 0.5).item()
                optimizer.step()
                engine.step()
                far.append(engine.get_global_grad_norm() - norm)
            if form != "fp16":
                far += [(engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in other.named_parameters()]
            out[f"{form} at stage {stage}"] = max(map(abs, far))
            engine.destroy()
    return out


def _autocast(stage: int) -> dict[str, float]:
    """How far two steps under autocast are from torch's, and from those in fp32."""
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


def autocast_in_fp16(stage: int) -> dict[str, Any]:
    """Two steps under autocast in fp16 beside torch's with its GradScaler, and two more whose first one overflows."""
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
        far = [(engine.parameters_of(n) - p.detach()).abs().max().item() for n, p in other.named_parameters()]
        seen["far"] = max(seen["far"], *far)
    return seen | {"skipped": engine.skipped_steps}


def refused() -> None:
    """A mistake that nobody catches."""
    deepspeed.initialize(model=models.seeded(models.Mlp), config={"train_batch_size": 7, "gradient_cliping": 1})


def compiled(stages: list[int]) -> dict[str, float]:
    """torch.compile of a module, and of its blocks: how far losses and norms are from torch's without it."""
    out = {}
    for stage, whole in itertools.product(stages, (True, False)):
        model, other = models.seeded(models.Gpt), models.seeded(models.Gpt)
        engine = deepspeed.initialize(model=model, config=config(stage))[0]
        for part in [model] if whole else model.blocks:
            part.compile(backend="aot_eager")
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.1)
        want = plain.train(other, optimizer, models.batch, models.loss, steps=3, micros=2, ranks=engine.world_size, clipping=0.5)
        out[f"whole {whole}, stage {stage}"] = worst(steps(engine, 3), want)
        engine.destroy()
    return out
