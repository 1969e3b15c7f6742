"""Entry points of a script: `initialize`, `init_distributed` and `add_config_arguments`."""

import argparse
import datetime
from collections.abc import Mapping
from typing import Any

import torch

from . import job as jobs
from . import native
from .configuration import Configuration, chosen
from .engine import DeepSpeedEngine
from .errors import NotBuilt, UsageError
from .families import FamilyEngine
from .layers import PipelineModule
from .pipeline import PipelineEngine
from .utils.leaves import mark_configured

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: datetime.timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Joins the ranks of the job and creates torch's default process group if there is none. Collective.

    A script that calls `initialize` directly does not need it. Later calls have no effect.

    Args:
        dist_backend: torch backend. None, "ccl" and "mpi" select NCCL on GPUs and Gloo on CPUs; "nccl" without a GPU selects Gloo.
        timeout: deadline for the ranks to meet, and timeout of the process group (default: 10 minutes).
        dist_init_required: False joins the job only, without a process group.

    The other arguments are accepted for DeepSpeed scripts and have no effect; ranks and addresses come from the launcher's environment.

    Raises:
        RankLost: a rank did not arrive before the deadline.
    """
    if dist_init_required is not False:
        jobs.init_torch(dist_backend, timeout)
    jobs.current()


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds `--deepspeed` and `--deepspeed_config` to a parser and returns it."""
    group = parser.add_argument_group("DeepSpeed", "configuration")
    group.add_argument("--deepspeed", action="store_true", help="train with the engine of the ds_config")
    group.add_argument("--deepspeed_config", type=str, default=None, help="the ds_config.json")
    group.add_argument("--deepscale", action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--deepscale_config", type=str, default=None, help=argparse.SUPPRESS)
    return parser


_asked: tuple[int, torch.dtype] | None = None  # by tp_model_init


def tp_model_init(model: torch.nn.Module, tp_size: int, dtype: torch.dtype, config: Any = None, **kwargs: Any) -> torch.nn.Module:
    """Sets the tensor-parallel size and the type of the engines that `initialize` creates afterwards, and returns the model unchanged.

    `initialize` splits the layers, by `tensor_parallel` of its ds_config.

    Args:
        model: the module to train.
        tp_size: number of ranks that share each layer.
        dtype: type of the training; float16 and bfloat16 enable fp16 and bf16 of the ds_config. If it enables one, dtype must be equal.
        config: accepted.
        kwargs: accepted; `tp_group` is not supported.

    Raises:
        UsageError: an earlier call has another size or type.
    """
    global _asked
    if kwargs.get("tp_group") is not None:
        raise NotBuilt("tp_model_init: tp_group is not supported, because groups follow from the size; leave it out")
    if _asked not in (None, (tp_size, dtype)):
        raise UsageError(
            f"tp_model_init: differs from an earlier call (got {tp_size} and {dtype}, expected {_asked}); use one size and type"
        )
    _asked = tp_size, dtype
    return model


def _with_asked(configuration: Configuration) -> Configuration:
    """Returns the configuration with the size and the type that tp_model_init set."""
    if _asked is None or configuration.native():
        return configuration
    size, dtype = _asked
    types = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    enabled, wanted = configuration.precision(), types.get(dtype, str(dtype))
    if wanted != enabled and (enabled != "fp32" or wanted not in types.values()):
        raise UsageError(f"tp_model_init: differs from the ds_config (got {wanted}, expected {enabled}); pass the type of the ds_config")
    section = configuration.section("tensor_parallel")
    given = configuration.tensor_ranks()
    if given not in (1, size):
        raise UsageError(f"tensor_parallel.autotp_size: differs from tp_model_init (got {given}, expected {size}); remove it")
    more = {wanted: {**configuration.section(wanted), "enabled": True}} if wanted != enabled else {}
    return configuration.with_sections(tensor_parallel={**section, "autotp_size": size}, **more)


def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, Any, Any, Any]:
    """Creates the engine around a module. Collective.

    Args:
        args: object with `deepspeed_config`, the path of a ds_config; used instead of `config`.
        model: the module to train; a `PipelineModule` trains as a pipeline. The engine takes over its parameters, with the values of rank 0
            on all ranks. If `initialize` fails, create the module again.
        optimizer: a `torch.optim` optimizer, an optimizer of this package, or a callable that receives the parameters and returns one.
            Default: section `optimizer` of the ds_config. Without either, the engine only evaluates.
        model_parameters: parameters or parameter groups to train (default: all with `requires_grad`).
        training_data: a Dataset; the returned loader gives each rank its share, shuffled, or in order for a PipelineModule.
        lr_scheduler: a schedule, or a callable that receives the optimizer and returns one. Replaces section `scheduler` of the ds_config.
        dist_init_required: False leaves torch's process group to the script.
        collate_fn: of the returned loader.
        config: path of a ds_config, its text in base64, or a dictionary. `config_params` is an alias.

    `distributed_port` has no effect. `mpu` and `mesh_param` are not supported.

    Returns:
        The engine, its optimizer (None without one), the loader of `training_data` (or None), and the learning-rate schedule (or None).

    Raises:
        UsageError: invalid configuration or argument; nothing was started.
        NotBuilt: a DeepSpeed option that Cleave does not support.
        OutOfMemory: the plan does not fit in memory; the message contains the memory table.
        RankLost: a rank ended, or did not arrive before the deadline.
    """
    if model is None:
        raise UsageError("initialize: model is missing; pass it by name, model=..., because the first position is args, as in DeepSpeed")
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise NotBuilt(f"{name}: not supported; set tensor_parallel.autotp_size in the ds_config for tensor parallelism")
    kinds = [kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("torch.")]
    if wrapper := next((name for name in kinds if name in _WRAPPERS), None):
        raise UsageError(f"model: got a {wrapper}, which sums gradients as the engine does; pass the module in it")
    configuration = _with_asked(chosen(args, config, config_params))
    wait = configuration.section("cleave").get("comm_timeout_s")
    jobs.current(*([float(wait)] if isinstance(wait, int) and wait > 0 else []))
    init_distributed(dist_init_required=dist_init_required)
    stages = configuration.section("pipeline").get("stages")
    if isinstance(stages, int) and stages > 1 and not configuration.native() and not isinstance(model, PipelineModule):
        raise UsageError(f"pipeline.stages: got {stages} for a {type(model).__name__}; pass a PipelineModule, or set 1")
    kind: Any = FamilyEngine if configuration.native() else PipelineEngine if isinstance(model, PipelineModule) else DeepSpeedEngine
    engine: DeepSpeedEngine = kind(configuration, model, optimizer, model_parameters, lr_scheduler)
    leaves = configuration.section("zero_optimization").get("leaf_module")
    missing = mark_configured(model, leaves) if isinstance(leaves, Mapping) else []
    if missing and jobs.rank() == 0:
        native.warn(f"warning: zero_optimization.leaf_module: {type(model).__name__} contains no {', '.join(missing)}")
    if training_data is not None:
        sampler = engine.sampler_of(training_data)
        engine.training_dataloader = engine.deepspeed_io(training_data, data_sampler=sampler, collate_fn=collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler
