"""Training scripts that run on DeepSpeed and on the engine from the same source: each case receives the module to use as deepspeed.

compared_test.py compares the results with those on DeepSpeed (tests/fixtures/make_deepspeed_fixtures.py).
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import models
import plain
import torch
from torch import nn
from torch.nn import functional as F

STEPS = 6
Losses = Callable[[Any, plain.Batch], torch.Tensor]

CASES: dict[str, Callable[[Any], dict[str, Any]]] = {}


def case(function: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


# ---- common parts of the scripts ----


def config(stage: int, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.1}},
        **more,
    }
    if stage == 3:
        made["zero_optimization"].setdefault("stage3_param_persistence_threshold", 20)
    return made


def offloaded(stage: int, *parts: str) -> dict[str, Any]:
    return {"stage": stage, **{f"offload_{part}": {"device": "cpu"} for part in parts}}


def stated(engine: Any, losses: list[float]) -> dict[str, Any]:
    """Returns the values that a script reads from an engine after a step."""
    norm = engine.get_global_grad_norm()
    loss = torch.tensor([sum(losses) / len(losses) / engine.dp_world_size], dtype=torch.float64)
    torch.distributed.all_reduce(loss)
    return {
        "loss": loss.item(),
        "lr": [float(rate) for rate in engine.get_lr()],
        "norm": None if norm is None else float(norm),  # DeepSpeed without ZeRO has no norm in fp32
        "scale": float(getattr(engine.optimizer, "loss_scale", 1.0)),
        "skipped": int(engine.skipped_steps),
        "steps": int(engine.global_steps),
        "samples": int(engine.global_samples),
    }


def steps(engine: Any, count: int = STEPS, first: int = 0, loss: Losses = models.loss) -> list[dict[str, Any]]:
    out = []
    for step in range(first, first + count):
        losses = []
        for micro in range(engine.gradient_accumulation_steps()):
            value = loss(engine, models.batch(step, micro, engine.global_rank))
            engine.backward(value)
            engine.step()
            losses.append(value.item())
        out.append(stated(engine, losses))
    return out


def weights(deepspeed: Any, engine: Any) -> dict[str, list[float]]:
    """Returns the norm of each parameter, and its product with a fixed vector."""
    out = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            flat = parameter.detach().double().flatten()
        out[name] = [flat.norm().item(), (flat @ torch.arange(flat.numel(), dtype=torch.float64).cos()).item()]
    return out


def trained(deepspeed: Any, model: nn.Module, made: dict[str, Any], *, loss: Losses = models.loss, **given: Any) -> dict[str, Any]:
    parameters = None if "optimizer" in given else [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=made, **given)
    return {"steps": steps(engine, loss=loss), "weights": weights(deepspeed, engine)}


# ---- modules of these scripts ----


class Attention(nn.Module):
    """Self-attention without bias for the keys, because its gradient would be rounding noise."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList([nn.LayerNorm(models.WIDTH) for _ in range(2)])
        self.qkv = nn.Linear(models.WIDTH, 3 * models.WIDTH, bias=False)
        self.out = nn.Linear(models.WIDTH, models.WIDTH)
        self.mlp = nn.Sequential(nn.Linear(models.WIDTH, 4 * models.WIDTH), nn.GELU(), nn.Linear(4 * models.WIDTH, models.WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        batch, length, width = h.shape
        parts = self.qkv(self.norms[0](h)).view(batch, length, 3, 3, width // 3).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        h = h + self.out(mixed.transpose(1, 2).reshape(h.shape))
        return h + self.mlp(self.norms[1](h))


class Language(nn.Module):
    """GPT, or BERT without `causal`: positions, two blocks, and a head that may be tied to the embedding."""

    def __init__(self, causal: bool = True, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(models.CLASSES, models.WIDTH), nn.Parameter(torch.randn(8, models.WIDTH) * 0.1)
        self.dropout = nn.Dropout(0.0)
        self.blocks = nn.ModuleList([Attention(causal) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(models.WIDTH), nn.Linear(models.WIDTH, models.CLASSES, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dropout(self.embed((x.abs() * 7).long() % models.CLASSES) + self.positions)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)).mean(1)


class Frozen(models.Mlp):
    """An MLP with some frozen layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].requires_grad_(False)
        self.head.bias.requires_grad_(False)


class Unused(models.Mlp):
    """An MLP with a layer outside of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(3, 3)


class Rotated(models.Mlp):
    """An MLP with a buffer of angles, which fp16 would round by up to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", 4000 + torch.arange(8) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x * self.angles.cos()).to(x.dtype))


class TwoHeads(models.Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(models.WIDTH, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        h = self.layers(x)
        return self.head(h), self.other(h)


def heads_apart(model: nn.Module) -> list[dict[str, Any]]:
    head = [p for n, p in model.named_parameters() if n.startswith("head")]
    body = [p for n, p in model.named_parameters() if not n.startswith("head")]
    return [{"params": body, "lr": 1e-2, "weight_decay": 0.1}, {"params": head, "lr": 3e-3, "weight_decay": 0.0}]


def fresh(kind: Any, *args: Any) -> nn.Module:
    return models.seeded(kind, 0, *args)


def add(name: str, made: dict[str, Any], kind: Any, *args: Any, losses: Callable[[], Losses] = lambda: models.loss) -> None:
    """Adds a case that trains one module by one ds_config."""
    CASES[name] = lambda deepspeed: trained(deepspeed, fresh(kind, *args), made, loss=losses())


# ---- the scripts ----

# 16-bit scripts come first: DeepSpeed's stage 3 leaves a replaced linear function that rounds differently from torch's.

FP16 = {"enabled": True, "initial_scale_power": 12, "loss_scale_window": 100}


def spikes(at: set[int]) -> Losses:
    """Returns a loss that is so large in some steps that its gradients overflow."""
    count = -1

    def loss(engine: Any, batch: plain.Batch) -> torch.Tensor:
        nonlocal count
        count += 1
        return models.loss(engine, batch) * (1e6 if count in at else 1)

    return loss


add("fp16_overflows_at_stage_2", config(2, fp16={**FP16, "hysteresis": 1}), Language, losses=lambda: spikes({1, 4}))
add("fp16_with_a_fixed_scale_at_stage_1", config(1, fp16={"enabled": True, "loss_scale": 128}, gradient_clipping=0.5), models.Mlp)
add("bf16_at_stage_1", config(1, bf16={"enabled": True}, gradient_accumulation_steps=2), Language)
add("fp16_beside_a_buffer_in_fp32_at_stage_2", config(2, fp16={"enabled": True, "loss_scale": 128}), Rotated)
add("bf16_offloaded_at_stage_2", config(2, bf16={"enabled": True}, zero_optimization=offloaded(2, "optimizer")), Language)
add("mlp_without_zero", config(0), models.Mlp)
add("clipped_without_zero", config(0, gradient_clipping=0.05, gradient_accumulation_steps=2), models.Mlp)
SGD = {"type": "SGD", "params": {"lr": 5e-2, "momentum": 0.9, "weight_decay": 0.01}}
add("conv_net_by_sgd_at_stage_1", config(1, optimizer=SGD, zero_allow_untested_optimizer=True), models.Conv)
add("gpt_accumulates_4_micro_batches_at_stage_2", config(2, gradient_accumulation_steps=4, gradient_clipping=0.5), Language)
add("gpt_at_stage_3", config(3, gradient_accumulation_steps=2, gradient_clipping=0.3), Language)
WARMUP = {"warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 3, "total_num_steps": 6}
add("bert_warms_up_and_decays_at_stage_2", config(2, scheduler={"type": "WarmupDecayLR", "params": WARMUP}), Language, False)
add("tied_at_stage_1", config(1), Language, True, True)
add("tied_at_stage_3", config(3), Language, True, True)
add("frozen_at_stage_2", config(2), Frozen)
add("frozen_at_stage_3", config(3), Frozen)
add("unused_parameters_at_stage_2", config(2), Unused)
add("unused_parameters_at_stage_3", config(3), Unused)


@case
def two_groups_at_stage_1(deepspeed: Any) -> dict[str, Any]:
    model = fresh(models.Mlp)
    optimizer = torch.optim.AdamW(heads_apart(model), betas=(0.9, 0.99), eps=1e-6)
    without = {k: v for k, v in config(1).items() if k != "optimizer"}
    return trained(deepspeed, model, without, optimizer=optimizer)


@case
def two_groups_and_a_schedule_of_torchs_at_stage_3(deepspeed: Any) -> dict[str, Any]:
    model = fresh(models.Mlp)
    optimizer = torch.optim.AdamW(heads_apart(model), betas=(0.9, 0.99), eps=1e-6)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    without = {k: v for k, v in config(3).items() if k != "optimizer"}
    return trained(deepspeed, model, without, optimizer=optimizer, lr_scheduler=schedule)


ONE_CYCLE = {"cycle_min_lr": 1e-3, "cycle_max_lr": 2e-2, "cycle_first_step_size": 2, "decay_step_size": 1, "decay_lr_rate": 0.5}
add("one_cycle_at_stage_2", config(2, scheduler={"type": "OneCycle", "params": ONE_CYCLE}), models.Mlp)
ADAM = {"lr": 1e-2, "eps": 1e-6, "weight_decay": 0.1, "adam_w_mode": False}
add("decay_in_the_gradient_at_stage_1", config(1, optimizer={"type": "Adam", "params": ADAM}), models.Mlp)
add("adagrad_at_stage_1", config(1, optimizer={"type": "Adagrad", "params": {"lr": 2e-2, "weight_decay": 0.05}}), models.Mlp)
LION = {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1}
# A module without dead units: at moment 0, DeepSpeed moves by the sign bit, and Cleave does not move (docs/numerics.md).
add(
    "lion_with_its_state_offloaded_at_stage_2",
    config(2, optimizer={"type": "Lion", "params": LION}, zero_optimization=offloaded(2, "optimizer")),
    Language,
)
add(
    "optimizer_offloaded_at_stage_2",
    config(2, zero_optimization=offloaded(2, "optimizer"), gradient_accumulation_steps=2, gradient_clipping=0.4),
    Language,
)
add("all_offloaded_at_stage_3", config(3, zero_optimization=offloaded(3, "optimizer", "param")), Language)
add("predivided_without_zero", config(0, gradient_predivide_factor=2.0, gradient_clipping=0.5), models.Mlp)
add("prescaled_without_zero", config(0, prescale_gradients=True), models.Mlp)


@case
def several_losses_at_stage_1(deepspeed: Any) -> dict[str, Any]:
    def loss(engine: Any, batch: plain.Batch) -> torch.Tensor:
        classes, value = engine(batch[0])
        return F.cross_entropy(classes, batch[1]) + 0.5 * F.mse_loss(value.squeeze(-1), batch[0].mean(-1)) + 0.1 * value.abs().mean()

    return trained(deepspeed, fresh(TwoHeads), config(1, gradient_accumulation_steps=2), loss=loss)


@case
def two_engines_train_each_other(deepspeed: Any) -> dict[str, Any]:
    """Trains a generator and its discriminator; the generator's pass uses the discriminator's module, without training it."""
    maker, *_ = deepspeed.initialize(model=(made := fresh(nn.Linear, 6, 8)), model_parameters=made.parameters(), config=config(1))
    judge, *_ = deepspeed.initialize(model=(judging := fresh(models.Mlp)), model_parameters=judging.parameters(), config=config(2))
    out = []
    for step in range(STEPS):
        x, y = models.batch(step, 0, maker.global_rank)
        with torch.no_grad():
            fake = maker(x[:, :6])
        for engine, sign in ((judge, 1), (maker, -1)):
            judging.requires_grad_(engine is judge)
            value = sign * F.cross_entropy(judge(fake) if engine is judge else judging(maker(x[:, :6])), y)
            engine.backward(value)
            engine.step()
            out.append(stated(engine, [value.item()]))
    return {"steps": out, "weights": {**weights(deepspeed, maker), **weights(deepspeed, judge)}}


def driven(deepspeed: Any, made: dict[str, Any], micros: int, one: Callable[[Any, plain.Batch, int], float]) -> dict[str, Any]:
    """Steps of several micro-batches; `one` is a micro-batch's pass, which ends the step after the last one."""
    model = fresh(models.Mlp)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=made)
    out = []
    for step in range(STEPS):
        out.append(stated(engine, [one(engine, models.batch(step, micro, engine.global_rank), micro) for micro in range(micros)]))
    return {"steps": out, "weights": weights(deepspeed, engine)}


@case
def a_boundary_set_by_hand_at_stage_1(deepspeed: Any) -> dict[str, Any]:
    """Accumulates as accelerate does: the script decides the number of micro-batches per step."""

    def one(engine: Any, batch: plain.Batch, micro: int) -> float:
        engine.set_gradient_accumulation_boundary(micro == 1)
        value = models.loss(engine, batch)
        engine.backward(value)
        if micro == 1:
            engine.step()
        return value.item()

    return driven(deepspeed, config(1, gradient_accumulation_steps=2), 2, one)


@case
def accumulates_in_no_sync_at_stage_1(deepspeed: Any) -> dict[str, Any]:
    """Accumulates as in a torch loop with DistributedDataParallel: gradients are summed over ranks in the last pass only."""

    def one(engine: Any, batch: plain.Batch, micro: int) -> float:
        with engine.no_sync() if micro < 2 else contextlib.nullcontext():
            value = models.loss(engine, batch) / 3
            engine.backward(value)
        if micro == 2:
            engine.step()
        return value.item()

    return driven(deepspeed, config(1), 3, one)


@case
def losses_divided_by_the_script_at_stage_2(deepspeed: Any) -> dict[str, Any]:
    def one(engine: Any, batch: plain.Batch, _: int) -> float:
        value = models.loss(engine, batch) / 2
        engine.backward(value, scale_wrt_gas=False)
        engine.step()
        return value.item()

    return driven(deepspeed, config(2, gradient_accumulation_steps=2), 2, one)


@case
def built_sharded_at_stage_3(deepspeed: Any) -> dict[str, Any]:
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = fresh(models.Mlp)
    return trained(deepspeed, model, config(3))


add("activations_computed_again_at_stage_3", config(3), models.Blocks, "other")


@case
def resumed_at_stage_2(deepspeed: Any) -> dict[str, Any]:
    """Trains three steps, and three more with another engine from a checkpoint."""
    schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 5, "warmup_type": "linear"}}
    made = config(2, scheduler=schedule, gradient_accumulation_steps=2)
    shared: list[Any] = [tempfile.mkdtemp() if os.environ["RANK"] == "0" else None]
    engine, *_ = deepspeed.initialize(model=(model := fresh(Language)), model_parameters=model.parameters(), config=made)
    torch.distributed.broadcast_object_list(shared)
    out = steps(engine, 3)
    engine.save_checkpoint(shared[0], client_state={"seen": 24})
    model = models.seeded(Language, 5)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=made)
    _, client = engine.load_checkpoint(shared[0])
    assert client["seen"] == 24
    return {"steps": out + steps(engine, 3, 3), "weights": weights(deepspeed, engine)}


@case
def samples_of_a_loader_at_stage_1(deepspeed: Any) -> dict[str, Any]:
    model = fresh(models.Mlp)
    draw = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(torch.randn(40, 8, generator=draw), torch.randint(0, models.CLASSES, (40,), generator=draw))
    torch.manual_seed(11)
    engine, _, loader, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=data, config=config(1))
    out = []
    for batch in loader:
        value = models.loss(engine, batch)
        engine.backward(value)
        engine.step()
        out.append(stated(engine, [value.item()]))
    return {"steps": out, "weights": weights(deepspeed, engine)}


@case
def clipped_by_hand_without_zero(deepspeed: Any) -> dict[str, Any]:
    """Clips the gradients of the parameters as a torch loop does."""

    def one(engine: Any, batch: plain.Batch, _: int) -> float:
        value = models.loss(engine, batch)
        engine.backward(value)
        nn.utils.clip_grad_norm_(engine.module.parameters(), 0.05)
        engine.step()
        return value.item()

    return driven(deepspeed, config(0, gradient_clipping=0.0, optimizer=SGD), 1, one)


@case
def frozen_in_mid_training_without_zero(deepspeed: Any) -> dict[str, Any]:
    """By SGD, because Adam of DeepSpeed counts the steps of a group, and that of torch the steps of a parameter."""
    made = config(0, optimizer=SGD)
    engine, *_ = deepspeed.initialize(model=(model := fresh(models.Mlp)), model_parameters=model.parameters(), config=made)
    out = []
    for step in range(STEPS):
        model.layers.requires_grad_(step not in (2, 3))
        out += steps(engine, 1, step)
    return {"steps": out, "weights": weights(deepspeed, engine)}


def folder_of_rank_0() -> str:
    shared: list[Any] = [tempfile.mkdtemp() if os.environ["RANK"] == "0" else None]
    torch.distributed.broadcast_object_list(shared)
    return str(shared[0])


def loaded(deepspeed: Any, made: dict[str, Any], after: dict[str, Any], **flags: bool) -> dict[str, Any]:
    """Trains four steps, and three more with another engine that loads a checkpoint with flags."""
    engine, *_ = deepspeed.initialize(model=(model := fresh(models.Mlp)), model_parameters=model.parameters(), config=made)
    folder = folder_of_rank_0()
    out = steps(engine, 4)
    engine.save_checkpoint(folder)
    model = models.seeded(models.Mlp, 5)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=after)
    engine.load_checkpoint(folder, **flags)
    return {"steps": out + steps(engine, 3, 4), "weights": weights(deepspeed, engine)}


# By SGD: a new state of Adam amplifies the rounding of small gradients to full steps.
DECAYS = config(
    1,
    optimizer=SGD,
    zero_allow_untested_optimizer=True,
    scheduler={
        "type": "WarmupDecayLR",
        "params": {"warmup_max_lr": 5e-2, "warmup_num_steps": 3, "total_num_steps": 12, "warmup_type": "linear"},
    },
)
for _name, _flags in (
    ("without_the_schedule", {"load_lr_scheduler_states": False}),
    ("without_the_optimizer", {"load_optimizer_states": False}),
    ("with_the_weights_only", {"load_module_only": True}),
):
    CASES[f"loaded_{_name}"] = lambda deepspeed, flags=_flags: loaded(deepspeed, DECAYS, DECAYS, **flags)  # type: ignore[misc]
CASES["loaded_with_other_accumulation"] = lambda deepspeed: loaded(deepspeed, DECAYS, {**DECAYS, "gradient_accumulation_steps": 2})


add("fp16_overflows_with_hysteresis_at_stage_3", config(3, fp16={**FP16, "hysteresis": 2}), Language, losses=lambda: spikes({0, 2, 3}))
add("bf16_at_stage_3", config(3, bf16={"enabled": True}), Language)

# ---- all scripts ----


def rounded(value: Any) -> Any:
    """Rounds to 9 significant digits, which fp32 needs."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.9g}") if isinstance(value, float) and math.isfinite(value) else value


def run(deepspeed: Any, names: list[str]) -> dict[str, Any]:
    return {name: rounded(CASES[name](deepspeed)) for name in names or CASES}


def here(names: list[str]) -> dict[str, Any]:
    """Runs the cases on the engine."""
    import cleave

    return run(cleave, names)
