"""Cases of pipeline_test.py for ranks; each returns JSON."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import cleave as deepspeed
import plain
import torch
from cleave.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, SEED = 11, 12, 1234


class Embed(nn.Module):
    """Tokens and positions; at its second call, the projection of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.positions = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.3), nn.Parameter(torch.randn(6, WIDTH) * 0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.weight) + self.positions


class Mask(nn.Module):
    """Converts a tensor to a tuple of three: one without a gradient, and one that is not floating point."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x[..., :1].detach().abs(), (x[..., 0] > 0).detach()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x, scale, mask = x
        return x + self.down(F.gelu(self.up(self.norm(x)))) * (0.5 + scale) * (1 + mask[..., None]), scale, mask


def first(x: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return x[0]


def project(embed: Embed, x: torch.Tensor) -> torch.Tensor:
    return x @ embed.weight.T


def layers() -> list[Any]:
    """Returns eight layers; the first and the last are tied, and two have no parameters."""
    blocks = [LayerSpec(Block, width) for width in (24, 8, 8, 8)]
    return [TiedLayerSpec("embed", Embed), LayerSpec(Mask), *blocks, first, TiedLayerSpec("embed", Embed, forward_fn=project)]


def loss_fn(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class Plain(nn.Module):
    """The same layers in one torch module, with the same names and seeds."""

    def __init__(self, specs: list[Any]) -> None:
        super().__init__()
        self.tied_modules, self.functions = nn.ModuleDict(), []
        for i, spec in enumerate(specs):
            torch.manual_seed(SEED + i)
            if isinstance(spec, TiedLayerSpec):
                if spec.key not in self.tied_modules:
                    self.tied_modules[spec.key] = spec.build()
                module = self.tied_modules[spec.key]
                self.functions.append((lambda x, m=module, f=spec.forward_fn: f(m, x)) if spec.forward_fn else module)
            elif isinstance(spec, LayerSpec):
                self.add_module(str(i), module := spec.build())
                self.functions.append(module)
            else:
                self.functions.append(spec)

    def forward(self, x: Any) -> Any:
        for function in self.functions:
            x = function(x)
        return x


def batch(step: int, micro: int, rank: int) -> plain.Batch:
    draw = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randint(0, VOCABULARY, (3, 6), generator=draw), torch.randint(0, VOCABULARY, (3, 6), generator=draw)


def loss(module: nn.Module, sample: plain.Batch) -> torch.Tensor:
    return loss_fn(module(sample[0]), sample[1])


def module(stages: int, **more: Any) -> PipelineModule:
    return PipelineModule(layers(), num_stages=stages, loss_fn=loss_fn, seed_layers=True, base_seed=SEED, **more)


def config(stage: int, micros: int = 3, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": micros,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        **more,
    }
    if stage == 3:
        made["zero_optimization"]["stage3_param_persistence_threshold"] = 20
    return made


def made(stages: int, stage: int, options: dict[str, Any] | None = None, **more: Any) -> Any:
    of = module(stages, **(options or {}))
    return deepspeed.initialize(model=of, model_parameters=of.parameters(), config=config(stage, **more))[0]


def trained(engine: Any, steps: int, first_step: int = 0) -> list[list[float]]:
    out = []
    for step in range(first_step, first_step + steps):
        data = (batch(step, micro, engine.grid.get_data_parallel_rank()) for micro in itertools.count())
        value = engine.train_batch(data)
        out.append([value.item(), engine.get_global_grad_norm()])
    return out


@functools.cache
def reference(ranks: int, micros: int, steps: int, clipping: float) -> tuple[Plain, list[tuple[float, float]]]:
    whole = Plain(layers())
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2, weight_decay=0.1)
    return whole, plain.train(whole, optimizer, batch, loss, steps=steps, micros=micros, ranks=ranks, clipping=clipping)


def far(engine: Any, whole: Plain, got: list[Any], want: list[Any]) -> list[float]:
    """Returns the largest differences of losses and norms, and of weights."""
    return [max(abs(a - b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True)), plain.apart(engine, whole)]


def against_torch(cases: list[Any]) -> dict[str, list[float]]:
    """Returns, by case, the difference from a loop in torch alone after 3 steps."""
    out = {}
    for stages, stage, micros, options, more in cases:
        engine = made(stages, stage, options, micros=micros, **more)
        got = trained(engine, 3)
        whole, want = reference(engine.dp_world_size, micros, 3, engine.gradient_clipping())
        out[f"{stages} stages, ZeRO {stage}, {micros} micro-batches, {options} {more}"] = far(engine, whole, got, want)
        memory = engine.memory()
        assert memory["live"] == memory["planned"], memory
        engine.destroy()
    return out


def flat(step: int, micros: int, rank: int) -> Any:
    """Returns this rank's share of the four micro-batches of a step, which are equal on any number of ranks."""
    return (batch(step, micro * (4 // micros) + rank, 0) for micro in range(micros))


def resumed(folder: str) -> dict[str, Any]:
    """Trains with 2 stages and saves after two steps; returns steps 2 and 3 and an evaluation, also resumed with 4 stages and with 1."""
    out: dict[str, Any] = {}
    for stages, zero, first_step in ((2, 1, 0), (4, 2, 2), (1, 3, 2)):
        engine = made(stages, zero, {"partition_method": "uniform"}, micros=stages)
        if first_step:
            assert engine.load_checkpoint(folder)[1] == {"note": "two"} and engine.global_steps == 2
        losses = []
        for step in range(first_step, 4):
            if step == 2 and not first_step:
                engine.save_checkpoint(folder, client_state={"note": "two"})
            losses.append([engine.train_batch(flat(step, stages, engine.grid.data_parallel_id)).item(), engine.get_global_grad_norm()])
        value, logits = engine.eval_batch(flat(9, stages, engine.grid.data_parallel_id), return_logits=True)
        added = engine.eval_batch(flat(9, stages, engine.grid.data_parallel_id), reduce_output="sum")
        each = engine.eval_batch(flat(9, stages, engine.grid.data_parallel_id), reduce_output=None)
        shapes = [list(logits.shape) if logits is not None else None, len(each) if each is not None else None]
        out[str(stages)] = {"losses": losses[-2:], "eval": value.item(), "sum": added.item(), "last": engine.is_last_stage(), "own": shapes}
        engine.destroy()
    return out


def evaluated() -> float:
    """Evaluates a plain loop's weights after the same four steps."""
    whole = Plain(layers())
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2, weight_decay=0.1)
    plain.train(whole, optimizer, lambda step, micro, rank: batch(step, micro, 0), loss, steps=4, micros=4, ranks=1, clipping=0.5)
    with torch.no_grad():
        return sum(loss(whole, batch(9, k, 0)).item() for k in range(4)) / 4


def squared(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()


def without_loss() -> dict[str, Any]:
    """Returns results of modules without a loss_fn: one with the loss as its last layer compared with a plain loop, and evaluations with
    other outputs."""
    out: dict[str, Any] = {}
    ends: dict[str, list[Any]] = {"loss": [squared], "outputs": [], "tuples": [lambda x: (x, x)]}
    for end, last in ends.items():
        of = PipelineModule([*layers(), *last], num_stages=2, seed_layers=True, base_seed=SEED)
        engine = deepspeed.initialize(model=of, model_parameters=of.parameters(), config=config(1, 2))[0]
        value = engine.eval_batch(batch(9, micro, engine.grid.data_parallel_id) for micro in itertools.count())
        with torch.no_grad():
            want = [Plain([*layers(), *last])(batch(9, micro, rank)[0]) for micro in range(2) for rank in range(2)]
        if end == "loss":
            out["far"] = abs(value.item() - sum(want).item() / 4)
            kept = engine.eval_batch((batch(9, 0, 0) for _ in itertools.count()), bcast_loss=False)
            out["kept"] = (kept is not None) == engine.is_last_stage()
            trained = engine.train_batch(batch(9, micro, engine.grid.data_parallel_id) for micro in itertools.count())
            out["trained"] = abs(trained.item() - sum(want).item() / 4)
        else:
            out[end] = type(value).__name__ if not isinstance(value, list) else [len(each) for each in value]
            if end == "outputs" and value is not None:
                mine = want[engine.grid.data_parallel_id :: 2]
                out["mean"] = (value - sum(mine) / 2).abs().max().item()
        engine.destroy()
    return out


def splits(methods: list[str]) -> list[list[int]]:
    """Returns the boundaries of the eight layers for four stages."""
    return [PipelineModule(layers(), num_stages=4, partition_method=method).parts for method in methods]


def asked() -> dict[str, Any]:
    """Returns values that scripts read from the engine, its grid and topologies."""
    topology = deepspeed.runtime.pipe.topology.PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
    engine = made(2, 0)
    grid, groups = engine.grid, deepspeed.utils.groups
    out = {
        "lists": [topology.get_axis_comm_lists(axis) for axis in ("pipe", "data", "model")],
        "coord": list(topology.get_coord(5)),
        "rank": topology.get_rank(pipe=1, data=0, model=1),
        "repr": topology.get_rank_repr(5),
        "match": topology.filter_match(pipe=0, model=1),
        "dims": [topology.get_dim(axis) for axis in ("pipe", "data", "model", "none")],
        "place": [grid.get_stage_id(), grid.get_data_parallel_rank(), grid.get_pipe_parallel_rank(), grid.get_slice_parallel_rank()],
        "sizes": [grid.get_data_parallel_world_size(), grid.get_model_parallel_world_size(), grid.get_slice_parallel_world_size()],
        "group": torch.distributed.get_process_group_ranks(grid.get_data_parallel_group()),
        "groups": [groups.get_data_parallel_world_size(), groups.get_data_parallel_rank()],
        "engine": [engine.is_first_stage(), engine.is_last_stage(), engine.micro_batches, engine.train_batch_size()],
        "axes": engine.module.topology().get_axis_names(),
    }
    kept: list[int] = []
    engine.module.activation_checkpoint_func = lambda run, *args: kept.append(interval) or run(*args)
    for interval in (0, 2):
        engine.module.set_checkpoint_interval(interval)
        engine.eval_batch(iter([batch(0, micro, grid.get_data_parallel_rank()) for micro in range(3)]))
    out["kept"] = sorted(set(kept))
    engine.destroy()
    return out


def within_init() -> None:
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        module(2)


def mistakes() -> dict[str, str]:
    """Returns the errors for wrong uses."""
    engine = made(4, 0)
    out = {
        "forward": plain.said_of(lambda: engine(torch.zeros(1))),
        "backward": plain.said_of(lambda: engine.backward(torch.zeros(1))),
        "step": plain.said_of(engine.step),
        "by parameter": plain.said_of(lambda: engine.name_of(None)),
        "layers": plain.said_of(lambda: PipelineModule(layers()[:3], num_stages=4)),
        "world": plain.said_of(lambda: module(3)),
        "method": plain.said_of(lambda: module(2, partition_method="profile")),
        "stages": plain.said_of(lambda: made(2, 0, pipeline={"stages": 4})),
        "init": plain.said_of(within_init),
        "schedule": plain.said_of(lambda: made(2, 0, pipeline={"schedule": "zb-h1"})),
    }
    engine.destroy()
    return out


def everything(cases: list[Any], methods: list[str], folder: str) -> dict[str, Any]:
    """Runs these cases in one job."""
    return {
        "splits": splits(methods),
        "mistakes": mistakes(),
        "asked": asked(),
        "far": against_torch(cases),
        "resumed": resumed(folder),
        "evaluated": evaluated(),
        "without loss": without_loss(),
        "other": other_kinds(),
    }


class Noted(nn.Module):
    """Counts in a buffer; its parameters are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.frozen(x))


def other_kinds() -> dict[str, Any]:
    """Trains in 16 bits, with a sample loader, a frozen layer with buffers, and changing lengths; returns their contents in a
    checkpoint."""
    out: dict[str, Any] = {}
    for precision in ("bf16", "fp16"):
        engine = made(4, 1, **{precision: {"enabled": True}})
        out[precision] = trained(engine, 1)[0]
        engine.destroy()
    data = [(torch.full((WIDTH,), float(i)), i % 3) for i in range(24)]
    of = PipelineModule(
        [LayerSpec(nn.Linear, WIDTH, WIDTH), LayerSpec(Noted), nn.ReLU(), LayerSpec(nn.Linear, WIDTH, 3)],
        num_stages=2,
        loss_fn=F.cross_entropy,
        partition_method="uniform",
        dynamic_shape=True,
    )
    engine, _, loader, _ = deepspeed.initialize(model=of, model_parameters=of.parameters(), config=config(2, 2), training_data=data)
    out["order"] = [*loader.data_sampler]
    out["loader"] = [len(loader), engine.train_batch().item() > 0, engine.train_batch().item() > 0, engine.global_samples]
    rows = iter([(torch.ones(rows, WIDTH), torch.zeros(rows, dtype=torch.long)) for rows in (2, 5)])
    out["lengths"] = engine.train_batch(rows).item() > 0
    sample = {"x": torch.ones(2, WIDTH), "y": torch.zeros(2, dtype=torch.long)}
    engine.set_batch_fn(lambda batch: (batch["x"], batch["y"]))
    engine.set_dataloader([sample])
    losses = [engine.eval_batch(iter([sample] * 9)).item(), engine.eval_batch().item()]
    engine.set_dataiterator(iter([sample] * 9))
    out["given"] = [*losses, engine.eval_batch().item()]
    kept = engine._beside(None)
    out["beside"] = [sorted(kept.buffers), kept.frozen]
    engine.destroy()
    return out


class Doubled(nn.Module):
    """Changes the first tensor of a tuple in place."""

    def forward(self, x: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return x[0].mul_(2) + x[1]


def in_place() -> dict[str, Any]:
    """Trains four stages with first layers that work in place, with evaluations between steps; returns the difference from a plain loop."""
    deepspeed.runtime.utils.set_random_seed(SEED)
    every = [nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH), lambda x: (x, x.detach().sin()), Doubled()]
    every += [nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.1, inplace=True), nn.Linear(WIDTH, 3)]
    whole = Plain(copy.deepcopy(every))
    for number, function in enumerate(whole.functions):
        whole.add_module(str(number), function) if isinstance(function, nn.Module) else None
    of = PipelineModule(every, num_stages=4, loss_fn=F.cross_entropy, partition_method="1,3,2,2")
    engine = deepspeed.initialize(model=of, model_parameters=of.parameters(), config=config(1))[0]
    out = {"starts": [of.parts[stage] for stage in range(1, 4)], "losses": 0.0}
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-2, weight_decay=0.1)

    def samples(step: int, micro: int, rank: int) -> plain.Batch:
        draw = torch.Generator().manual_seed(10 * step + micro)
        return torch.randn(3, WIDTH, generator=draw), torch.randint(0, 3, (3,), generator=draw)

    for step in range(3):
        data = [samples(step, micro, 0) for micro in range(3)]
        with torch.no_grad():
            want = sum(F.cross_entropy(whole(x), y).item() for x, y in data) / 3
        out["losses"] = max(
            out["losses"], abs(engine.eval_batch(iter(data)).item() - want), abs(engine.train_batch(iter(data)).item() - want)
        )
        plain.train(
            whole,
            optimizer,
            lambda _, micro, rank, step=step: samples(step, micro, rank),
            lambda module, sample: F.cross_entropy(module(sample[0]), sample[1]),
            steps=1,
            micros=3,
            ranks=1,
            clipping=0.5,
        )
    out["weights"] = plain.apart(engine, whole)
    engine.destroy()
    return out


def ends_early() -> None:
    """Provides data for one of three micro-batches."""
    made(2, 0).train_batch(iter([batch(0, 0, 0)]))
