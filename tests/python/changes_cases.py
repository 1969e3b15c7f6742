"""Cases of changes_test.py for ranks: changes of a module that its engine cannot follow; each returns JSON."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
from collections.abc import Callable
from typing import Any

import cleave as deepspeed
import models
import plain
import torch
from engine_cases import config, steps

PLACES = ("data", "data of one element", "element", "element of data", "one element", "tied", "conversion", "read", "gathered")


def engine_of(stage: int, **more: Any) -> Any:
    """Returns an engine after one step, at stage 3 with all parameters sharded."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    engine = deepspeed.initialize(model=models.seeded(models.Gpt), config=config(stage, zero_optimization=zero, **more))[0]
    steps(engine, 1)
    return engine


@torch.no_grad()
def _write(module: Any, place: str) -> None:
    weight, gain = module.blocks[0].linear1.weight, module.gain
    if place == "data":
        weight.data = torch.ones_like(weight)
    elif place == "data of one element":
        gain.data = torch.tensor(2.0, dtype=gain.dtype)
    elif place == "element":
        weight[0, 0] = 500.0
    elif place == "element of data":
        weight.data[0, 0] = 500.0
    elif place == "one element":
        gain.add_(1)
    elif place == "tied":
        module.head.weight.data = torch.zeros_like(module.head.weight)
    elif place == "conversion":
        weight.data = weight.data.clone()
    elif place == "read":
        (weight.detach().sum(), copy.copy(weight))
    elif place == "gathered":
        with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
            weight.mul_(0.5)
            weight.data = weight.data + 1


def _call(engine: Any, call: str) -> None:
    batch = models.batch(1, 0, engine.global_rank)
    if call == "step":
        steps(engine, 1, 1)
    elif call == "evaluation":
        with torch.no_grad():
            engine(batch[0])
    elif call == "evaluation of the module":
        with torch.no_grad():
            engine.module(batch[0])
    elif call == "gather":
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            pass


def written(more: dict[str, Any]) -> dict[str, Any]:
    """Returns, by change and next call, the errors of that call, and whether the engine trains as one without the changes."""
    engine, other = engine_of(3, **more), engine_of(3, **more)
    said = {}
    for place in PLACES:
        for call in ("step", "evaluation", "evaluation of the module", "gather"):
            _write(engine.module, place)
            if place == "gathered":
                _write(other.module, place)
            said[f"{place}, {call}"] = error = plain.said_of(functools.partial(_call, engine, call))
            if error == "nothing":
                _call(other, call)
    steps(engine, 1, 2)
    steps(other, 1, 2)
    names = ("gain", "embed.weight", "blocks.0.linear1.weight")
    same = all(torch.equal(engine.parameters_of(name), other.parameters_of(name)) for name in names)
    return {"said": said, "same": same}


def written_within_steps(folder: str) -> dict[str, str]:
    """Returns the errors of a backward and of a save after a change."""
    out = {}
    for place in ("data", "element", "element of data"):
        for call in ("engine.backward", "loss.backward", "save"):
            engine = engine_of(3, gradient_accumulation_steps=1)
            loss = models.loss(engine, models.batch(1, 0, engine.global_rank))
            _write(engine.module, place)
            calls: dict[str, Callable[[], Any]] = {
                "engine.backward": functools.partial(engine.backward, loss),
                "loss.backward": loss.backward,
                "save": functools.partial(engine.save_checkpoint, folder),
            }
            out[f"{place}, {call}"] = plain.said_of(calls[call])
            engine.destroy()
    return out


def changed_in_place() -> None:
    """Ends with the error of torch about a parameter that this rank has only a part of."""
    engine = engine_of(3)
    with torch.no_grad():
        engine.module.embed.weight.add_(1)


def _act(engine: Any, call: str, folder: str) -> None:
    steps(engine, 1, 1) if call == "step" else engine.save_checkpoint(folder)


def restructured(stage: int, folder: str) -> dict[str, str]:
    """Returns the errors of a step and of a save after changes of the parameters of a module, by change."""
    out = {}

    def replaced(module: Any) -> None:
        module.head.weight = torch.nn.Parameter(torch.ones(models.CLASSES, models.WIDTH))

    def replaced_by_frozen(module: Any) -> None:
        module.norm.bias = torch.nn.Parameter(torch.ones(models.WIDTH), requires_grad=False)

    def replaced_submodule(module: Any) -> None:
        module.norm = torch.nn.LayerNorm(models.WIDTH)

    def added(module: Any) -> None:
        module.norm = torch.nn.Sequential(module.norm, torch.nn.Linear(models.WIDTH, models.WIDTH))

    def added_frozen(module: Any) -> None:
        module.norm = torch.nn.Sequential(module.norm, torch.nn.Linear(models.WIDTH, models.WIDTH).requires_grad_(False))

    def added_frozen_and_replaced(module: Any) -> None:
        added_frozen(module)
        steps(engine, 1, 1)
        module.norm[1].weight = torch.nn.Parameter(torch.ones(models.WIDTH, models.WIDTH), requires_grad=False)

    def added_and_unfrozen(module: Any) -> None:
        added_frozen(module)
        steps(engine, 1, 1)
        module.norm[1].weight.requires_grad_(True)

    def added_to_the_optimizer(module: Any) -> None:
        added(module)
        engine.optimizer.add_param_group({"params": list(module.norm[1].parameters())})

    def removed(module: Any) -> None:
        module.unused = torch.nn.Linear(2, 2).requires_grad_(False)
        del module.unused

    lost = (replaced, replaced_by_frozen, replaced_submodule, added, added_and_unfrozen)
    changes = (*lost, added_frozen, added_frozen_and_replaced, added_to_the_optimizer, removed)
    for change in changes:
        for call in ("step", "save"):
            engine = engine_of(stage)
            change(engine.module)
            out[f"{change.__name__}, {call}"] = plain.said_of(functools.partial(_act, engine, call, folder))
            engine.destroy()
    return out


def state_dicts(stage: int, folder: str) -> dict[str, Any]:
    """Returns the warnings of each way to read whole weights, in this order, and errors of ways to load some."""
    engine, out = engine_of(stage, **({"bf16": {"enabled": True}} if stage == 2 else {})), {}
    every = list(engine.module.parameters())

    def gathered() -> None:
        with deepspeed.zero.GatheredParameters(every):
            assert not any(value.isnan().any() for value in engine.module.state_dict().values())
            copy.deepcopy(engine.module).state_dict()

    def loaded() -> None:
        whole = engine._zero3_consolidated_16bit_state_dict() or models.Gpt().state_dict()
        with deepspeed.zero.GatheredParameters(every, modifier_rank=0):
            engine.module.load_state_dict(whole)

    reads: dict[str, Callable[[], Any]] = {
        "save_checkpoint": lambda: engine.save_checkpoint(folder),
        "save_16bit_model": lambda: engine.save_16bit_model(folder),
        "load_module_state_dict": lambda: engine.load_module_state_dict(models.seeded(models.Gpt, 3).state_dict()),
        "load_checkpoint": lambda: engine.load_checkpoint(folder),
        "whole_weights": lambda: dict(engine.whole_weights()),
        "gathered": gathered,
        "loaded": loaded,
        "keep_vars": lambda: engine.module.state_dict(keep_vars=True),
        "submodule": lambda: engine.module.blocks[1].state_dict(),
        "state_dict": lambda: torch.save(engine.module.state_dict(), io.BytesIO()),
        "module_state_dict": engine.module_state_dict,
    }
    for name, read in reads.items():
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            read()
        out[name] = said.getvalue().count("state_dict:")
    state = models.Gpt().state_dict()
    out["load"] = plain.said_of(lambda: engine.module.load_state_dict(state))
    out["load of a submodule"] = plain.said_of(lambda: engine.module.embed.load_state_dict({"weight": state["embed.weight"]}))
    out["load by assignment"] = plain.said_of(lambda: engine.module.load_state_dict(state, assign=True))
    out["then"] = plain.said_of(lambda: steps(engine, 1, 1))
    return out
