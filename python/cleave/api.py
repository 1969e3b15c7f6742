"""initialize(), and what comes before it."""

import argparse
import datetime
from typing import Any

import torch

from . import job as jobs
from .configuration import chosen
from .engine import DeepSpeedEngine
from .errors import NotBuilt, UsageError
from .families import FamilyEngine
from .layers import PipelineModule
from .pipeline import PipelineEngine


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
    """Meets the other ranks, and makes torch's process group of them where there is none. Collective."""
    if dist_init_required is not False:
        jobs.init_torch(dist_backend, timeout)
    jobs.current()


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config."""
    group = parser.add_argument_group("DeepSpeed", "configuration")
    group.add_argument("--deepspeed", action="store_true", help="train with the engine of the ds_config")
    group.add_argument("--deepspeed_config", type=str, default=None, help="the ds_config.json")
    group.add_argument("--deepscale", action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--deepscale_config", type=str, default=None, help=argparse.SUPPRESS)
    return parser


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
    """An engine around a model: (engine, optimizer, data loader, learning-rate schedule). Collective.

    model: any module; its parameters' values become the engine's, those of rank 0 on every rank.
    optimizer: of torch.optim or of this package, or a callable that makes one of parameters; without one, the ds_config's section;
    without that, the engine trains nothing.
    lr_scheduler: an object, or a callable that makes one of an optimizer; it goes before the ds_config's.
    training_data: a Dataset, of which the returned loader gives each rank its share.
    config: a path or a dictionary; or args.deepspeed_config."""
    if model is None:
        raise UsageError("initialize: model is missing; pass one")
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise NotBuilt(f"{name}: not supported; use cleave train for tensor and sequence parallelism")
    configuration = chosen(args, config, config_params)
    wait = configuration.section("cleave").get("comm_timeout_s")
    jobs.current(*([float(wait)] if isinstance(wait, int) and wait > 0 else []))
    init_distributed(dist_init_required=dist_init_required)
    stages = configuration.section("pipeline").get("stages")
    if isinstance(stages, int) and stages > 1 and not configuration.native() and not isinstance(model, PipelineModule):
        raise UsageError(f"pipeline.stages: got {stages} for a {type(model).__name__}; pass a PipelineModule, or set 1")
    kind: Any = FamilyEngine if configuration.native() else PipelineEngine if isinstance(model, PipelineModule) else DeepSpeedEngine
    engine: DeepSpeedEngine = kind(configuration, model, optimizer, model_parameters, lr_scheduler)
    if training_data is not None:
        engine.training_dataloader = engine.deepspeed_io(training_data, collate_fn=collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler
