"""What each rank of a job will hold of a module, before there is a job: by the engine's own set-up, which then only counts."""

from __future__ import annotations

import json
import os
import runpy
import sys
from types import SimpleNamespace
from typing import Any

import torch

from . import job as jobs
from . import native
from .configuration import configuration_of
from .errors import CleaveError, UsageError
from .layers import PipelineModule
from .optimizers import Declared
from .residency import TORCH_TYPES


class Plan(SimpleNamespace):
    """What cleave_plan says (cleave_c.h), of bytes by rank, kind and category; activations: None, where nothing was traced."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def __str__(self) -> str:
        return str(self.table)


def plan(
    model: Any, config: Any, world_size: int = 1, ranks_per_host: int = 8, device_memory: int = 0, host_memory: int = 0, trace: Any = None
) -> Plan:
    """Plans a module, or what a function makes of one on torch's device meta, where nothing is allocated.

    config: of a ds_config, with its optimizer. device_memory, host_memory: bytes of a rank, at most; OutOfMemory where it needs more.
    trace: the inputs of one micro-batch, or a function of the module that computes its loss: without computing, where that is on meta.
    """
    first, given = _made(model, 0, world_size), configuration_of(config)
    stages = first.num_stages if isinstance(first, PipelineModule) else 1
    if trace is not None and stages > 1:
        raise UsageError("trace: not supported for pipelines, where a rank keeps several micro-batches; leave it out")
    modules = [first, *(_made(model, stage * world_size // stages, world_size) for stage in range(1, stages))]
    every = [Declared(m.configured(given) if isinstance(m, PipelineModule) else given, m, None) for m in modules]
    declared, units = every[0], [each.units.declared() for each in every]
    kept = -1 if trace is None else _kept(first, trace, TORCH_TYPES[declared.config.precision()])
    states = declared.outside.kinds if declared.outside else None
    options = {"device_bytes": device_memory, "host_bytes": host_memory, **declared.options()}
    return Plan(**native.plan(*declared.of_engine()[:3], units, states, options, world_size, ranks_per_host, kept))


def _made(model: Any, rank: int, world: int) -> torch.nn.Module:
    """The module, or what a function makes of one for a rank."""
    if callable(model) and not isinstance(model, torch.nn.Module):
        jobs.planned = rank, world
        try:
            with torch.device("meta"):
                model = model()
        finally:
            jobs.planned = None
    elif isinstance(model, PipelineModule) and model.num_stages > 1:
        raise UsageError("model: a PipelineModule holds only the stage of its rank; give the plan a function that returns the module")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model: wrong type (got {type(model).__name__}, expected a torch.nn.Module or a function that returns one)")
    return model


def _kept(module: torch.nn.Module, trace: Any, dtype: torch.dtype) -> int:
    """The bytes of what autograd keeps of a call, each storage once, without the module's own."""
    device = next(module.parameters()).device
    if device.type == "meta":
        module.to(dtype)
    kept: list[torch.UntypedStorage] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), device:
        if callable(trace):
            trace(module)
        else:
            module(*(value.to(device) for value in (trace if isinstance(trace, list | tuple) else [trace])))
    own = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers())}
    return sum({s._cdata: s.nbytes() for s in kept if s._cdata not in own}.values())


def _main(path: str, config: str, as_json: str, factory: str, trace: str, *numbers: str) -> int:
    """What `cleave plan FILE.py:NAME` becomes."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    made = runpy.run_path(path)
    try:
        if missing := [name for name in (factory, trace) if name and name not in made]:
            raise UsageError(f"{path}: has no {missing[0]} (expected FILE.py:NAME, with NAME a function that returns the module)")
        planned = plan(*(made[factory], config, *map(int, numbers), made.get(trace)))
    except CleaveError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(planned.to_dict()) if as_json else planned)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
