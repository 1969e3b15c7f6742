"""Memory plan of a module before there is a job. The engine's own setup computes it without allocating."""

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
from .declared import Declared
from .errors import CleaveError, UsageError
from .layers import PipelineModule
from .views import TORCH_TYPES


class Plan(SimpleNamespace):
    """Result of `plan`: bytes by rank, memory kind and category, as `cleave_plan` returns them (cleave_c.h). `str()` is a table.

    `activations` is None without a trace.
    """

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def __str__(self) -> str:
        return str(self.table)


def plan(
    model: Any, config: Any, world_size: int = 1, ranks_per_host: int = 8, device_memory: int = 0, host_memory: int = 0, trace: Any = None
) -> Plan:
    """Plans the memory of each rank for training a module.

    Args:
        model: a module, or a function that returns one and is called on torch's meta device, which allocates no memory.
        config: a ds_config as in `initialize`, with its optimizer.
        world_size: number of ranks.
        ranks_per_host: number of ranks that share the host memory.
        device_memory: limit in bytes per rank (0: none).
        host_memory: limit of host memory in bytes per rank (0: none).
        trace: inputs of one micro-batch, or a function that receives the module and computes its loss; adds the tensors that autograd
            saves. Nothing is computed on the meta device. Not supported for pipelines.

    Raises:
        OutOfMemory: a rank needs more than a limit.
        UsageError: invalid configuration or argument.
    """
    first, given = _made(model, 0, world_size), configuration_of(config)
    stages = first.num_stages if isinstance(first, PipelineModule) else 1
    if trace is not None and stages > 1:
        raise UsageError("trace: not supported for pipelines, where a rank keeps several micro-batches; leave it out")
    modules = [first, *(_made(model, stage * world_size // stages, world_size) for stage in range(1, stages))]
    every = [Declared(m.configured(given) if isinstance(m, PipelineModule) else given, m, None) for m in modules]
    declared, units = every[0], [each.units.declared() for each in every]
    if trace is not None and declared.partition:
        raise UsageError("trace: not supported with tensor parallelism, because a rank keeps parts of the activations; leave it out")
    kept = -1 if trace is None else _kept(first, trace, TORCH_TYPES[declared.config.precision()])
    states = declared.outside.kinds if declared.outside else None
    options = {"device_bytes": device_memory, "host_bytes": host_memory, **declared.options()}
    return Plan(**native.plan(*declared.of_engine()[:3], units, states, options, world_size, ranks_per_host, kept))


def _made(model: Any, rank: int, world: int) -> torch.nn.Module:
    """Returns the module, or the one that a function creates for a rank."""
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
    """Returns the bytes that autograd saves during a call. Each storage counts once; those of the module do not count."""
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
    """Runs `cleave plan FILE.py:NAME`."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.argv = [path]  # a file that reads arguments gets none
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
