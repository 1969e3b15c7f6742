"""Runs a script on a rank of a comparison: python -m cleave.compare.script FOLDER ROLE [-m] SCRIPT ARGS."""

import importlib
import json
import os
import pathlib
import random
import runpy
import sys
from typing import Any

import torch
import torch.distributed as dist

from .. import api
from .. import job as jobs
from ..errors import NotBuilt, UsageError
from ..families import FamilyEngine
from ..layers import PipelineModule
from ..pipeline import PipelineEngine
from ..sharded import shard_of
from . import pipelines, plain, torch_ranks
from .follower import Follower
from .layouts import DeepSpeedFollower, EngineFollower, names_of_groups
from .names import alias, is_deepspeed_here
from .observer import Observer, Recorder
from .records import checksum

ROLE = "CLEAVE_COMPARE"  # variable with the role of this run: subject or reference
_ROUNDS = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ModuleNotFoundError:
        return
    numpy.random.seed(seed)


class Run:
    """The observed engines of a script."""

    def __init__(self, folder: pathlib.Path, role: str, settings: dict[str, Any]) -> None:
        self.folder, self.role, self.settings = folder, role, settings
        self.observers: list[Observer] = []
        self.against = settings["against"] if role == "reference" else ""
        self._others = deepspeed_initialize() if self.against == "deepspeed" else api.initialize

    def initialize(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces `cleave.initialize`: returns the engine of this role, and observes it if it trains."""
        bound = plain.SIGNATURE.bind(*args, **kwargs)
        if self.against not in ("", "torch", "deepspeed"):
            bound.arguments.update(config=self.against, config_params=None, args=None)
        model = bound.arguments.get("model")
        if (given := bound.arguments.get("model_parameters")) is not None:
            bound.arguments["model_parameters"] = given = list(given)  # a generator would be empty afterwards
        names: list[list[str]] = []
        if self.against == "deepspeed" and model is not None:
            names = names_of_groups(model, bound.arguments.get("optimizer"), given)
        is_pipeline = isinstance(model, PipelineModule)
        if is_pipeline and self.against not in ("", "torch"):
            raise NotBuilt(f"PipelineModule: not supported with --against {self.against}; use --against torch")
        if is_pipeline and (pieces := getattr(model, "virtual_stages", 1)) > 1:
            raise NotBuilt(f"virtual_stages: not supported by cleave compare (got {pieces}, expected 1)")
        # Each stage has its own first values of shared modules.
        values = {name: checksum(p) for name, p in _whole(model) if not (is_pipeline and name.startswith(pipelines.TIED))}
        if self.against == "torch":
            result = plain.initialize(pipelines.PlainPipeline if is_pipeline else plain.PlainEngine, *bound.args, **bound.kwargs)
        else:
            result = self._others(*bound.args, **bound.kwargs)
        engine = result[0]
        if engine.optimizer is None:
            return result
        if isinstance(engine, FamilyEngine):
            raise NotBuilt("cleave.native: not supported by cleave compare, because the engine computes the model; remove the key")
        if getattr(engine, "mp_world_size", 1) > 1:
            raise NotBuilt(
                "tensor_parallel.autotp_size: not supported by cleave compare, because ranks have parts of the layers; remove the key"
            )
        zero = self.against != "deepspeed" and engine.config.get("zero_optimization")
        if isinstance(zero, dict) and (rounds := [key for key in _ROUNDS if zero.get(key)]):
            raise NotBuilt(f"zero_optimization.{rounds[0]}: not supported by cleave compare, because it rounds on purpose; remove the key")
        self._observe(engine, values, names)
        return result

    def _observe(self, engine: Any, values: dict[str, int], names: list[list[str]]) -> None:
        name = f"engine{len(self.observers) + 1}"
        given = engine, self.folder / name / self.role, None if self.observers else self.end, self.settings["steps"]
        subject = self.folder / name / "subject"
        is_pipeline = isinstance(engine, PipelineEngine)
        if not self.against:
            observer: Observer = (pipelines.PipelineRecorder if is_pipeline else Recorder)(*given)
        elif is_pipeline:
            observer = pipelines.PipelineFollower(*given, subject)
        elif self.against == "deepspeed":
            observer = DeepSpeedFollower(*given, subject, names)
        else:
            observer = (Follower if self.against == "torch" else EngineFollower)(*given, subject)
        self.observers.append(observer)
        observer.events.add("values", 0, of=values)
        observer.begin()

    def end(self) -> None:
        """Ends this process without an error, on all ranks together, whatever the script catches."""
        self.close()
        if dist.is_initialized():
            dist.barrier()
        if jobs.rank() == 0:
            last = self.settings["steps"]
            print(f"compare: the script ends here, inside step {last} of --steps {last}; the rest of it does not run")
        sys.stdout.flush()
        sys.stderr.flush()
        jobs._leave()
        os._exit(0)

    def close(self) -> None:
        """Writes what is recorded."""
        for observer in self.observers:
            observer.close()


def deepspeed_initialize() -> Any:
    """Returns `initialize` of the installed DeepSpeed."""
    if not is_deepspeed_here():
        raise UsageError("--against deepspeed: DeepSpeed is not installed; install it in the Python of the script, or use torch")
    made: Any = importlib.import_module("deepspeed").initialize
    return made


def _whole(model: Any) -> Any:
    """Yields the parameters that have values, with their names."""
    for name, p in model.named_parameters() if isinstance(model, torch.nn.Module) else ():
        if p.numel() and not p.is_meta and shard_of(p) is None and getattr(p, "ds_engine", None) is None:
            yield name, p


def main() -> None:
    """Runs the script as __main__ and ends it after the last step."""
    folder, role, *words = sys.argv[1:]
    settings = json.loads(pathlib.Path(folder, "settings.json").read_text())
    os.environ[ROLE] = role
    run = Run(pathlib.Path(folder), role, settings)
    if run.against == "torch":
        torch_ranks.install(run.folder)
        PipelineModule._build = pipelines.build_every_stage  # type: ignore[method-assign]
    if run.against == "deepspeed":
        vars(importlib.import_module("deepspeed"))["initialize"] = run.initialize
        alias("cleave", "deepspeed")
    elif is_deepspeed_here():
        alias("deepspeed", "cleave")
    api.initialize = run.initialize
    _seed(settings["seed"])
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")
    run.close()
    jobs._leave()


if __name__ == "__main__":
    main()
