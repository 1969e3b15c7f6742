"""Cases of init_test.py for ranks: constructors that use the parameters of modules inside them, in zero.Init; each returns JSON."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from cleave import sharded
from engine_cases import config, in_torch, steps, worst
from torch import nn
from torch.nn.utils import parametrizations, prune

WIDTH = models.WIDTH


class Net(nn.Module):
    """Layers with one in the middle that `kind` makes of modules or changes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, models.CLASSES)
        self.middle = KINDS[kind](self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.first(x))))


def _linear(change: Callable[[nn.Linear], Any]) -> Callable[[nn.Module], nn.Module]:
    def made(net: nn.Module) -> nn.Module:
        layer = nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            return change(layer) or layer  # type: ignore[no-any-return]

    return made


def _encoder(net: nn.Module) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 3, 24, dropout=0.0, batch_first=True), 3, enable_nested_tensor=False)


class Derived(nn.Module):
    """Parameters and buffers of other parameters, directly and by a state_dict."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.b.load_state_dict({name: 2 * value for name, value in self.a.state_dict().items()})
        self.bias = nn.Parameter(torch.stack([self.a.bias, self.b.bias]).mean(0).detach())
        self.weight = nn.Parameter(self.a.weight * 2)
        self.register_buffer("scale", self.a.weight.detach().std())
        self.c.weight.data = self.a.weight.data.t().contiguous()
        view = self.c.weight.data[:2]
        self.norm = nn.LayerNorm(WIDTH)
        view.mul_(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.c(self.b(self.a(x)))) @ self.weight + self.bias * self.scale


def _wider(layer: nn.Linear) -> nn.Module:
    layer.weight.data = torch.cat([layer.weight.data, layer.weight.data * 0.5])
    layer.bias.data = layer.bias.data.repeat(2)
    return nn.Sequential(layer, nn.Linear(2 * WIDTH, WIDTH))


def _tiled(layer: nn.Linear) -> nn.Module:
    torch.manual_seed(1)  # other ranks have other numbers
    return deepspeed.zero.TiledLinear(WIDTH, WIDTH, in_splits=5, out_splits=2, init_linear=layer)


KINDS: dict[str, Callable[[Any], nn.Module]] = {
    "encoder": _encoder,
    "derived": lambda net: Derived(),
    "wider": _linear(_wider),
    "copy": _linear(lambda layer: nn.Sequential(layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)))),
    "copy of a copy": _linear(lambda layer: copy.deepcopy(nn.Sequential(copy.deepcopy(layer), layer))),
    "rows": _linear(lambda layer: layer.weight[1].fill_(0.25).isnan().any() or None),
    "index": _linear(lambda layer: layer.weight.__setitem__(0, 0.5)),
    "same memory": _linear(lambda layer: setattr(layer, "weight", nn.Parameter(nn.Linear(WIDTH, WIDTH).weight))),
    "apply": _linear(lambda layer: layer.apply(lambda m: nn.init.orthogonal_(m.weight))),
    "tiled": _linear(_tiled),
    "old weight_norm": _linear(nn.utils.weight_norm),
    "weight_norm": _linear(parametrizations.weight_norm),
    "orthogonal": _linear(parametrizations.orthogonal),
    "pruned": _linear(lambda layer: prune.l1_unstructured(layer, "weight", amount=0.3)),
    "old spectral_norm": _linear(nn.utils.spectral_norm),
    "spectral_norm": _linear(parametrizations.spectral_norm),
}
UNTRAINED = ("old spectral_norm", "spectral_norm")  # each forward changes a buffer


def constructed() -> dict[str, Any]:
    """Returns by kind the names that differ from those outside of zero.Init, whole parameters, and the difference of losses."""
    out = {}
    for kind in KINDS:
        want = models.seeded(Net, 0, kind)
        with deepspeed.zero.Init(config_dict_or_path=config(3)):
            net = models.seeded(Net, int(os.environ["RANK"]), kind)
        whole = [name for name, p in net.named_parameters() if p.ds_status.name != "NOT_AVAILABLE"]
        with deepspeed.zero.GatheredParameters(net):
            have = dict(net.named_parameters())
            other = [name for name, p in want.named_parameters() if not torch.equal(p, have.pop(name))]
            shapes = [name for name, p in net.named_parameters() if p.ds_shape != p.shape or p.ds_numel != p.numel()]
        engine, far = deepspeed.initialize(model=net, config=config(3))[0], 0.0
        buffers = dict(net.named_buffers())
        other += [name for name, b in want.named_buffers() if not torch.equal(b, buffers[name])]
        if kind not in UNTRAINED:
            expected = in_torch(want, torch.optim.AdamW(want.parameters(), lr=1e-2, weight_decay=0.1), engine.world_size, 2)
            far = worst(steps(engine, 2, 0), expected)
        out[kind] = {"other": other, "more": list(have), "whole": whole, "shapes": shapes, "far": far}
    return out


def copied() -> list[bool]:
    """Returns whether a module stays sharded when it is copied, whether the copy has its values, and whether tied modules stay tied."""
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        net = models.seeded(models.Mlp, int(os.environ["RANK"]))
    other, want = copy.deepcopy(net), models.seeded(models.Mlp)
    hidden = all(p.ds_status.name == "NOT_AVAILABLE" for p in net.parameters())
    same = all(torch.equal(p, q) for p, q in zip(other.parameters(), want.parameters(), strict=True))
    tied = copy.deepcopy(nn.ModuleList([net, net]))
    return [hidden, same, tied[0] is tied[1]]


def _swapped(net: nn.Module) -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    net.bfloat16()
    torch.__future__.set_swap_module_params_on_conversion(False)


def _data(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.data = parameter.data.to(torch.float64).to(torch.bfloat16)


class Reader(nn.Module):
    """Has an LSTM, which keeps its parameters also in a list, and one parameter twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.first, self.second = nn.LSTM(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(1))


CONVERSIONS: dict[str, Callable[[nn.Module], Any]] = {
    "to another device": lambda net: net.to("cpu:0"),  # tensors on "cpu" are copied
    "bfloat16": lambda net: net.bfloat16(),
    "half and float": lambda net: net.half().float(),
    "swapped": _swapped,
    "data": _data,
}


def converted() -> dict[str, Any]:
    """Returns by conversion of a sharded module the names and types that differ from those of a whole one, and the bytes of a parameter."""
    out = {}
    for kind, convert in CONVERSIONS.items():
        want = models.seeded(Reader)
        with deepspeed.zero.Init(config_dict_or_path=config(3)):
            net = models.seeded(Reader, int(os.environ["RANK"]))
        optimizer = torch.optim.SGD(net.parameters())  # keeps the parameters
        for module in (want, net):
            convert(module)
        nbytes = net.first.weight.untyped_storage().nbytes()
        with deepspeed.zero.GatheredParameters(net):
            have = dict(net.named_parameters())
            other = [name for name, p in want.named_parameters() if p.dtype != have[name].dtype or not torch.equal(p, have[name])]
        engine = deepspeed.initialize(model=net, optimizer=optimizer, config={"train_batch_size": 2, "zero_optimization": {"stage": 3}})[0]
        held = [name for name, p in want.named_parameters() if not torch.equal(p.float(), engine.parameters_of(name).float())]
        out[kind] = {"other": other, "held": held, "names": [*have], "buffer": str(net.scale.dtype), "bytes": nbytes}
        engine.destroy()
    return out


class Stack(nn.Module):
    """Copies of a layer; remembers how many parameters are whole after each copy."""

    def __init__(self) -> None:
        super().__init__()
        first, self.layers, self.counts = _encoder(self), nn.ModuleList(), list[int]()
        for _ in range(4):
            self.layers.append(copy.deepcopy(first))
            self.counts.append(sum(p.ds_status.name == "AVAILABLE" for m in (first, self) for p in m.parameters()))


def room() -> dict[str, Any]:
    """Returns counts of whole parameters in a constructor, with room for few, and the effects of a read and a write after a constructor."""
    sharded.Reads.ROOM = 4 * 24 * WIDTH
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        counts = Stack().counts
        layer = nn.Linear(WIDTH, WIDTH)
        before = bool(layer.weight.isfinite().all())
        layer.weight.data.zero_()
    with deepspeed.zero.GatheredParameters(layer):
        after = float(layer.weight.abs().sum())
    return {"counts": counts, "before": before, "after": after}


def tiles() -> dict[str, Any]:
    """Returns differences of tiled layers from whole ones, sizes of tiles, and the errors of wrong arguments."""
    whole, x = nn.Linear(7, 5), torch.randn(3, 4, 7)
    tiled = deepspeed.zero.TiledLinear(7, 5, in_splits=3, out_splits=2, init_linear=whole)
    parts = deepspeed.zero.TiledLinear(7, 5, in_splits=3, out_splits=2, init_linear=whole, input_is_already_split=True)
    parts.combine_out_splits = False
    outputs = parts(list(x.tensor_split(tiled.in_parts[1:-1], dim=-1)))

    class Apart(nn.Linear):
        def forward(self, value: torch.Tensor) -> Any:
            return value @ self.weight.t(), self.bias

    apart, bias = deepspeed.zero.TiledLinearReturnBias(7, 5, in_splits=3, out_splits=2, linear_cls=Apart, init_linear=whole)(x)
    tiled(x).sum().backward()
    whole(x).sum().backward()
    rows = [torch.cat([tile.weight.grad for tile in row], dim=1) for row in tiled.linears]
    far = [tiled(x) - whole(x), torch.cat(outputs, dim=-1) - whole(x), apart + bias - whole(x), torch.cat(rows) - whole.weight.grad]
    return {
        "far": max(difference.abs().max().item() for difference in far),
        "sizes": [[list(tile.weight.shape) for tile in row] for row in tiled.linears],
        "splits": plain.said_of(lambda: deepspeed.zero.TiledLinear(2, 2, in_splits=3)),
        "parts": plain.said_of(lambda: parts([x])),
        "layer": plain.said_of(lambda: tiled.copy_params_from(nn.Linear(7, 5, bias=False))),
    }


def names_of_an_engine() -> list[Any]:
    """Returns the results of calls that examples make on an engine, except steps."""
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(3, steps_per_print=7))[0]
    steps(engine, 1)
    kinds = deepspeed.runtime.zero.offload_config
    before = engine.parameters_of("head.weight")
    for owner in (engine, engine.optimizer):
        owner.offload_states(include=[kinds.OffloadStateTypeEnum.optim_states], device=kinds.OffloadDeviceEnum.cpu, non_blocking=True)
        owner.reload_states()
    assert [engine.steps_per_print(), engine.wall_clock_breakdown(), engine.optimizer_name()] == [7, False, "adamw"]
    assert engine.data_parallel_group.size() == 2
    engine.empty_partition_cache()
    engine.tput_timer.update_epoch_count()
    state = engine._consolidated_16bit_state_dict()
    counts = [engine.tput_timer.epoch_count, engine.tput_timer.global_step_count, engine.tput_timer.batch_size]
    return [*counts, bool(torch.equal(before, engine.parameters_of("head.weight"))), None if state is None else len(state)]


def leaves() -> list[str]:
    """Returns the names of modules that a ds_config marks as leaves."""
    made = config(3)
    made["zero_optimization"]["leaf_module"] = {"classes": "GELU", "names": ["layers.3", "nowhere"], "name_suffixes": ["ead"]}
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=made)[0]
    marked = deepspeed.utils.get_z3_leaf_modules(engine.module)
    names = [name for name, module in engine.module.named_modules() if module in marked]
    print("marked", names)
    return names
