"""Cases of compare_test.py for ranks: scripts that run once per role of a comparison, several per process."""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Callable
from typing import Any

import chains
import cleave as deepspeed
import cleave.api
import compared_cases
import drawn_cases
import models
import torch
from cleave import handles, utils
from cleave.compare import script, torch_ranks
from torch import nn
from torch.nn import functional as F

STEPS = 3
Script = Callable[[bool], None]  # called with True in the engine's run


def run_roles(role: str, folder: str, scripts: dict[str, Script]) -> bool:
    """Runs scripts as `cleave compare` does in one role; returns whether the native library was loaded."""
    if role == "reference":
        torch_ranks.install(pathlib.Path(folder))
    first = cleave.api.initialize
    for name, run in scripts.items():
        below = pathlib.Path(folder, name)
        below.mkdir(parents=True, exist_ok=True)
        random.seed(42)
        torch.manual_seed(42)
        cleave.api.initialize = first
        made = script.Run(below, role, {"steps": 1000, "seed": 42, "against": "torch"})  # never reached
        cleave.api.initialize = made.initialize
        run(role == "subject")
        made.close()
    cleave.api.initialize = first
    return handles.library.cache_info().currsize > 0


# ---- random modules ----


def _optimizer(draw: random.Random) -> dict[str, Any]:
    decay = draw.choice([0.0, 0.1])
    betas = draw.choice([[0.9, 0.999], [0.8, 0.95]])
    return draw.choice(
        [
            {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": decay, "betas": betas}},
            {"type": "Adam", "params": {"lr": 1e-2, "weight_decay": decay, "adam_w_mode": draw.random() < 0.5}},
            {"type": "Adam", "params": {"lr": 1e-2, "weight_decay": decay, "bias_correction": False}},
            {"type": "SGD", "params": {"lr": 5e-2, "weight_decay": decay, "momentum": draw.choice([0.0, 0.9])}},
            {"type": "SGD", "params": {"lr": 5e-2, "momentum": 0.9, "nesterov": True}},
            {"type": "Adagrad", "params": {"lr": 1e-2, "weight_decay": decay}},
            {"type": "Lion", "params": {"lr": 1e-3, "weight_decay": decay, "betas": betas}},
            {"type": "Lamb", "params": {"lr": 1e-2, "weight_decay": decay}},
            {"type": draw.choice(["Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]), "params": {"lr": 1e-2}},
        ]
    )


_SCHEDULES: list[dict[str, Any]] = [
    {"type": "WarmupLR", "params": {"warmup_num_steps": 2, "warmup_min_lr": 1e-3, "warmup_type": "linear"}},
    {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": 5, "warmup_max_lr": 0.02}},
    {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2, "total_num_steps": 5, "warmup_min_ratio": 0.1}},
    {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 2}},
    {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2}},
]


def _config(draw: random.Random) -> dict[str, Any]:
    stage = draw.choice([0, 1, 2, 3])
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": draw.choice([1, 1, 2, 3]),
        "gradient_clipping": draw.choice([0.0, 0.0, 0.1, 1.0]),
        "optimizer": _optimizer(draw),
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
    }
    if stage == 3:
        made["zero_optimization"]["stage3_param_persistence_threshold"] = draw.choice([0, 10])
    if draw.random() < 0.4:
        made["scheduler"] = draw.choice(_SCHEDULES)
    precision = draw.choice(["fp32", "fp32", "fp32", "bf16", "fp16", "autocast"])
    if precision == "bf16":
        made["bf16"] = {"enabled": True}
        if draw.random() < 0.5:
            made["data_types"] = {"grad_accum_dtype": "fp32"}
    if precision == "fp16":
        made["fp16"] = {"enabled": True, "initial_scale_power": draw.choice([8, 8, 24]), "hysteresis": 1}
    if precision == "autocast":
        made["torch_autocast"] = {"enabled": True, "dtype": draw.choice(["bfloat16", "float16"])}
    if draw.random() < 0.2:
        made["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    more = [{"communication_data_type": "fp16"}, {"communication_data_type": "bf16"}, {"cleave": {"exact_sums": True}}]
    if stage < 2:
        more += [{"prescale_gradients": True}, {"gradient_predivide_factor": 3.0}, {"gradient_allreduce_op": "sum"}]
    chosen = draw.choice(more) if draw.random() < 0.3 else {}
    return made if "cleave" in chosen and precision == "autocast" else {**made, **chosen}


def _groups(module: nn.Module, draw: random.Random) -> Any:
    """Returns nothing, all parameters, or two groups; biases do not decay."""
    trained = [p for p in module.parameters() if p.requires_grad]
    way = draw.choice(["none", "all", "groups", "some"])
    if way == "some":
        trained = [p for p in trained if draw.random() < 0.8] or trained
    if way != "groups":
        return None if way == "none" else trained
    matrices, others = ([p for p in trained if (p.dim() > 1) == which] for which in (True, False))
    return [group for group in ({"params": matrices}, {"params": others, "weight_decay": 0.0, "lr": 3e-3}) if group["params"]]


def _random_script(seed: int) -> Script:
    def run(engine_run: bool) -> None:
        draw = random.Random(f"compare {seed}")
        config = _config(draw)
        half = config.get("bf16") or config.get("fp16")
        loss_of: Any = None
        if "torch_autocast" in config:  # not all operations of the others have an autocast
            module: Any = models.seeded(
                draw.choice([models.Mlp, models.Odd, models.Skipping, lambda: models.Blocks("non-reentrant")]), seed
            )
        elif draw.random() < 0.5:
            module = models.seeded(models.Random, seed, seed)
        else:
            module = models.seeded(drawn_cases.Drawn, seed, seed)
            once = module.twice or any(way == "reentrant" for _, way, _ in module.order) or half or "torch_autocast" in config
            choices: list[Any] = [chains.mean, chains.inside]
            loss_of = draw.choice(choices if once else [*choices, chains.twice, chains.penalty, chains.kept_graph])
        engine = deepspeed.initialize(model=module, model_parameters=_groups(module, draw), config=config)[0]
        # The script calls the backward itself, if the loss begins at outputs of the engine.
        scaled = config.get("fp16") or config.get("torch_autocast", {}).get("dtype") == "float16"
        own = draw.random() < 0.2 and not scaled and loss_of in (None, chains.mean, chains.inside)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(next((k for k in ("bf16", "fp16") if config.get(k)), ""), torch.float32)
        for p in module.parameters():
            p.data = p.data if p.numel() else p.data.to(dtype)  # engines leave empty parameters as they are
        for step in range(STEPS):
            for micro in range(engine.gradient_accumulation_steps()):
                x, y = models.batch(step, micro, engine.global_rank)
                x = F.dropout(x, 0.2).to(dtype)
                loss = F.cross_entropy(engine(x).float(), y) if loss_of is None else loss_of(engine, engine.module, x, True).float()
                loss.backward() if own else engine.backward(loss)
                engine.step()
            if draw.random() < 0.3:
                with torch.no_grad():
                    engine(x)

    return run


def random_modules(role: str, folder: str, first: int, last: int) -> bool:
    """Runs random modules in one role."""
    return run_roles(role, folder, {str(seed): _random_script(seed) for seed in range(first, last)})


# ---- scripts of compared_cases.py ----

_SCRIPTS = (
    "a_boundary_set_by_hand_at_stage_1 accumulates_in_no_sync_at_stage_1 activations_computed_again_at_stage_3 built_sharded_at_stage_3 "
    "clipped_by_hand_without_zero frozen_in_mid_training_without_zero losses_divided_by_the_script_at_stage_2 predivided_without_zero "
    "samples_of_a_loader_at_stage_1 several_losses_at_stage_1 two_engines_train_each_other two_groups_and_a_schedule_of_torchs_at_stage_3 "
    "fp16_overflows_with_hysteresis_at_stage_3 unused_parameters_at_stage_3"
)


def scripts(role: str, folder: str, every: bool) -> bool:
    """Runs scripts that were compared with DeepSpeed."""
    names = [name for name in compared_cases.CASES if name != "resumed_at_stage_2"] if every else _SCRIPTS.split()

    def run(name: str) -> Script:
        def of_engine(here: bool) -> None:
            compared_cases.CASES[name](deepspeed)

        return of_engine

    return run_roles(role, folder, {name: run(name) for name in names})


# ---- planted differences ----


class Net(nn.Module):
    """A small module; `way` selects a mistake in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.way = ""
        self.first, self.norm, self.drop = nn.Linear(8, 12), nn.LayerNorm(12), nn.Dropout(0.0)
        self.twice, self.frozen, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12, bias=False)
        self.out = nn.Linear(12, models.CLASSES)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.norm(F.linear(x, self.first.weight, self.first.bias.detach() if self.way == "detached" else self.first.bias)))
        h = torch.tanh(self.twice(h))
        second = self.twice.weight.detach() if self.way == "lost use" else self.twice.weight
        h = self.frozen(torch.tanh(F.linear(h, second)))
        return self.out(self.head(self.norm(h) if self.way == "call" else h))


def _net(way: str = "", rate: float = 0.0) -> Net:
    net = models.seeded(Net)
    assert isinstance(net, Net)
    net.way, net.drop.p = way, rate
    return net


def _sgd(**more: Any) -> dict[str, Any]:
    made = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}}
    return {**made, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, **more}


def _adam(**params: Any) -> dict[str, Any]:
    return _sgd(optimizer={"type": "AdamW", "params": {"lr": 0.01, "betas": [0.8, 0.9], "weight_decay": 0.1, **params}})


def _train(
    net: Net, config: dict[str, Any], *, data: Any = None, loss: Any = None, made: Any = None, gas: bool = True, **given: Any
) -> None:
    engine = deepspeed.initialize(model=net, config=config, **given)[0]
    if made:
        made(engine)
    for step in range(STEPS):
        for micro in range(engine.gradient_accumulation_steps()):
            x, y = models.batch(step, micro, engine.global_rank if data is None else data(engine.global_rank))
            engine.backward((loss or F.cross_entropy)(engine(x), y), scale_wrt_gas=gas)
            engine.step()
            engine.monitor.write_events([("Eval/loss", 1.0, engine.global_samples)])


class _Schedule:
    """Called within `engine.step` after the update, so it can change the results of the engine."""

    def __init__(self, change: Callable[[int], None]) -> None:
        self.change, self.count = change, 0

    def step(self) -> None:
        self.count += 1
        self.change(self.count)


def _hooked(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Net:
    net = _net()
    net.get_parameter(name).register_hook(change)
    return net


def _groups_of(net: Net, *, bias_decay: float = 0.0, bias_rate: float = 3e-3, leaves_out: str = "") -> Any:
    named = [(n, p) for n, p in net.named_parameters() if p.requires_grad and n != leaves_out]
    matrices, others = ([p for _, p in named if (p.dim() > 1) == which] for which in (True, False))
    return [{"params": matrices}, {"params": others, "weight_decay": bias_decay, "lr": bias_rate}]


def _grouped(**changes: Any) -> Script:
    """A script whose groups differ in the engine's run."""

    def run(here: bool) -> None:
        net = _net()
        _train(net, _adam(), model_parameters=_groups_of(net, **(changes if here else {})))

    return run


def _moved(name: str, at: int, back: bool) -> Script:
    """A script that changes a parameter within a step in the engine's run: back to its value before, or by a number."""

    def run(here: bool) -> None:
        net, kept = _net(), list[Any]()

        def change(count: int) -> None:
            if here and count == at:
                engine = kept[0]
                engine.set_parameter(name, kept[1] if back else engine.parameters_of(name) + 0.01)

        def made(engine: Any) -> None:
            kept.extend([engine, engine.parameters_of(name)])

        _train(net, _sgd(), lr_scheduler=_Schedule(change), made=made)

    return run


def _scheduled(late: int) -> Script:
    def run(here: bool) -> None:
        net = _net()
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)

        def rate(count: int) -> None:
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + max(0, count - (late if here else 0)))

        _train(net, _sgd(), optimizer=optimizer, lr_scheduler=_Schedule(rate))

    return run


def _tied(here: bool) -> None:
    net = _net()
    net.head.weight = nn.Parameter(net.twice.weight.detach().clone()) if here else net.twice.weight
    _train(net, _sgd())


def _started(here: bool) -> None:
    net = _net()
    if here and os.environ["RANK"] == "1":
        net.head.weight.data[3, 4] += 0.5
    _train(net, _sgd())


def _stale(here: bool) -> None:
    net = _net()
    weight, kept = net.twice.weight, net.twice.weight.detach().clone()
    if here:
        net.twice.forward = lambda h: F.linear(h, weight + (kept - weight).detach(), net.twice.bias)  # type: ignore[method-assign]
    _train(net, _sgd())


def _losing(here: bool) -> None:
    """One rank drops the gradient of a parameter in one micro-batch, in the engine."""

    def made(engine: Any) -> None:
        give, calls = engine._native.give, [0]

        def drops(unit: int, gradients: list[tuple[int, int, int]]) -> None:
            calls[0] += unit == 0
            lost = 0 if unit == 0 and calls[0] == 2 else None
            give(unit, [gradient for gradient in gradients if gradient[0] != lost])

        if engine.global_rank == 1:
            engine._native.give = drops

    _train(_net(), _sgd(), made=made if here else None)


def _misstating(here: bool) -> None:
    """The engine returns a wrong norm in the second step."""

    def made(engine: Any) -> None:
        finish, calls = engine._native.finish_step, [0]

        def finished(*given: Any) -> Any:
            result = finish(*given)
            calls[0] += 1
            result.grad_norm *= 1.001 if calls[0] == 2 else 1.0
            return result

        engine._native.finish_step = finished

    _train(_net(), _sgd(), made=made if here else None)


def _overflowing(here: bool) -> None:
    net, calls = _net().half(), [0]

    def change(gradient: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return gradient * float("inf") if here and calls[0] == 3 else gradient

    net.out.bias.register_hook(change)
    config = _sgd(fp16={"enabled": True, "initial_scale_power": 8})
    engine = deepspeed.initialize(model=net, config=config)[0]
    for step in range(STEPS):
        for micro in range(2):
            x, y = models.batch(step, micro, engine.global_rank)
            engine.backward(F.cross_entropy(engine(x.half()).float(), y))
            engine.step()


def _clipped_by_hand(here: bool) -> None:
    """The script calls two backwards itself, and clips the gradients that it reads."""
    net = _net()
    engine = deepspeed.initialize(model=net, config=_sgd(zero_optimization={"stage": 1}))[0]
    for step in range(STEPS):
        for micro in range(2):
            x, y = models.batch(step, micro, engine.global_rank)
            F.cross_entropy(engine(x), y).backward()
            engine(x * 2).square().mean().backward()
            if engine.is_gradient_accumulation_boundary():
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            engine.step()


def _set_by_hand(here: bool) -> None:
    """The script reads weights and gradients, and overwrites a gradient; a weight is not contiguous."""
    net = _net()
    head = net.get_submodule("head")
    head.weight = nn.Parameter(torch.randn(head.weight.shape[::-1]).t())  # type: ignore[assignment]
    engine = deepspeed.initialize(model=net, config=_sgd(zero_optimization={"stage": 2}, gradient_clipping=0.5))[0]
    engine.register_loader(torch.utils.data.DataLoader([1, 2]), "numbers")
    for step in range(STEPS):
        for micro in range(2):
            x, y = models.batch(step, micro, engine.global_rank)
            engine.backward(F.cross_entropy(engine(x), y))
            if engine.is_gradient_accumulation_boundary():
                assert torch.equal(utils.safe_get_full_fp32_param(head.weight), head.weight)
                assert dict(engine.whole_weights()).keys() == dict(net.named_parameters()).keys()
                utils.safe_set_full_grad(head.weight, utils.safe_get_full_grad(head.weight) * 0.5)
            engine.step()


class Odd(nn.Module):
    """Odd sizes, so that weights of the engine are not aligned; products of one row depend on the alignment."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.memory, self.head = nn.Parameter(torch.ones(3)), nn.GRU(111, 57, batch_first=True), nn.Linear(57, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(x * self.scale.view(3, 1))[0])


def _unaligned(stage: int) -> Script:
    def run(here: bool) -> None:
        config = _sgd(train_micro_batch_size_per_gpu=1, zero_optimization={"stage": stage, "stage3_param_persistence_threshold": 0})
        engine = deepspeed.initialize(model=models.seeded(Odd), config=config)[0]
        for _ in range(2 * STEPS):
            engine.backward(engine(torch.randn(1, 3, 111)).square().mean())
            engine.step()

    return run


PLANTED: dict[str, Script] = {
    "nothing, clipped by hand": _clipped_by_hand,
    "nothing, gradients set by hand": _set_by_hand,
    "nothing, unaligned at stage 1": _unaligned(1),
    "nothing, unaligned at stage 3": _unaligned(3),
    "nothing": lambda here: _train(_net(rate=0.1), _adam()),
    "a lost gradient": lambda here: _train(_hooked("twice.bias", lambda g: g * 0) if here else _net(), _sgd()),
    "a lost second use": lambda here: _train(_net("lost use" if here else ""), _sgd()),
    "a wrong divisor": lambda here: _train(_net(), _sgd(), gas=not here),
    "a frozen layer that moves": _moved("frozen.weight", 2, back=False),
    "a parameter that does not move": _moved("norm.weight", 1, back=True),
    "a rate of another group": _grouped(bias_rate=0.01),
    "weight decay of a bias": _grouped(bias_decay=0.1),
    "a parameter outside the optimizer": _grouped(leaves_out="head.weight"),
    "clipping left out": lambda here: _train(_net(), _sgd(gradient_clipping=0.0 if here else 0.1)),
    "a missing micro-batch": lambda here: _train(_net(), _sgd(gradient_accumulation_steps=1 if here else 2)),
    "a rank with other data": lambda here: _train(_net(), _sgd(), data=lambda rank: 5 if here and rank == 1 else rank),
    "another eps": lambda here: _train(_net(), _adam(eps=1e-6 if here else 1e-8)),
    "betas swapped": lambda here: _train(_net(), _adam(betas=[0.9, 0.8] if here else [0.8, 0.9])),
    "dropout in one run": lambda here: _train(_net(rate=0.1 if here else 0.0), _sgd()),
    "a detached branch": lambda here: _train(_net("detached" if here else ""), _sgd()),
    "a wrong sign": lambda here: _train(_hooked("head.weight", lambda g: -g) if here else _net(), _sgd()),
    "a stale weight": _stale,
    "a tied weight untied": _tied,
    "a schedule one step late": _scheduled(1),
    "a wrong initial value on one rank": _started,
    "a change of 1e-4 in one gradient": lambda here: _train(_hooked("norm.bias", lambda g: g * 1.0001) if here else _net(), _sgd()),
    "a change of 1e-4 in one element": lambda here: _train(
        _hooked("first.weight", lambda g: torch.cat([g[:3], g[3:4] * 1.0001, g[4:]])) if here else _net(), _sgd()
    ),
    "another loss": lambda here: _train(_net(), _sgd(), loss=lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1 if here else 0.0)),
    "another call": lambda here: _train(_net("call" if here else ""), _sgd()),
    "a skipped step": _overflowing,
    "a gradient that one rank drops": _losing,
    "a wrong norm": _misstating,
}


def planted(role: str, folder: str) -> bool:
    """Runs the scripts with planted differences in one role."""
    return run_roles(role, folder, PLANTED)
