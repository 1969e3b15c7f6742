"""Failures of ranks for checkpoint_test.py."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import cleave as deepspeed
import models
import plain
import torch


class Wide(torch.nn.Module):
    """Weights that take a while to write."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = torch.nn.Linear(8, 200_000), torch.nn.Linear(200_000, models.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.wide(x))


def _engine(make: Any = models.Mlp, stage: int = 2, **more: Any) -> Any:
    module = models.seeded(make)
    made = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, **more}
    return deepspeed.initialize(model=module, optimizer=torch.optim.AdamW(module.parameters(), lr=1e-2), config=made)[0]


def _step(engine: Any, number: int) -> float:
    engine.backward(models.loss(engine, models.batch(number, 0, engine.global_rank)))
    engine.step()
    return float(engine.last_result.loss)


def waits(met: bool) -> None:
    """One rank stays away for longer than the ds_config's deadline, which is set before or after the ranks meet."""
    if met:
        deepspeed.init_distributed()
    engine = _engine(cleave={"comm_timeout_s": 3})
    _step(engine, 0)
    if engine.global_rank == 1:
        time.sleep(8)
    _step(engine, 1)


def survives(folder: str) -> dict[str, Any]:
    """One rank has no space for a save, and a checkpoint is truncated; training continues after each failure."""
    engine = _engine()
    _step(engine, 0)
    engine.save_checkpoint(folder, "whole")
    _step(engine, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if engine.global_rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    no_space = plain.said_of(lambda: engine.save_checkpoint(folder, "no space"))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    engine._job.barrier()  # the first rank removes the files of all
    left = sorted(p.name for p in Path(folder).iterdir())
    engine._job.barrier()  # and begins the next save
    engine.save_checkpoint(folder, "cut")
    if engine.global_rank == 0:
        [first, *_] = sorted(Path(folder, "cut").glob("*.safetensors"))
        os.truncate(first, first.stat().st_size - 100)
    engine._job.barrier()
    before = _step(engine, 2)
    cut = plain.said_of(lambda: engine.load_checkpoint(folder, "cut"))
    damaged = {fault: _said_of_damaged(engine, folder, fault) for fault in ("flipped", "missing", "manifest", "escapes")}
    engine.load_checkpoint(folder, "whole")
    _step(engine, 1)
    return {"no space": no_space, "left": left, "cut": cut, "before": before, "again": _step(engine, 2), "damaged": damaged}


def _said_of_damaged(engine: Any, folder: str, fault: str) -> str:
    """Returns the error of loading a checkpoint with a fault."""
    tag = Path(folder, f"damaged-{fault}")
    if engine.global_rank == 0:
        shutil.copytree(Path(folder, "whole"), tag)
        [first, *_] = sorted(tag.glob("*.safetensors"))
        manifest = tag / "manifest.json"
        if fault == "flipped":
            data = bytearray(first.read_bytes())
            data[-5] ^= 8
            first.write_bytes(data)
        elif fault == "missing":
            first.unlink()
        elif fault == "manifest":
            manifest.write_bytes(manifest.read_bytes()[:-100])
        elif fault == "escapes":
            manifest.write_bytes(b'{"\x1b[31mred\x07": ' + manifest.read_bytes()[1:])
    engine._job.barrier()
    said = plain.said_of(lambda: engine.load_checkpoint(folder, tag.name))
    engine._job.barrier()
    if engine.global_rank == 0:
        shutil.rmtree(tag)
    return said


def saves_behind_its_end(folder: str) -> None:
    """A script with a background save in its last line."""
    engine = _engine(Wide, 1, checkpoint={"async": True})
    _step(engine, 0)
    engine.save_checkpoint(folder, "last")


def loads(folder: str, tag: str) -> None:
    """Raises an uncaught error."""
    _engine().load_checkpoint(folder, tag)


def is_killed(folder: str) -> None:
    """A rank is killed between a save and the next step."""
    engine = _engine(stage=3)
    _step(engine, 0)
    engine.save_checkpoint(folder, "before")
    if engine.global_rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for number in range(1, 1000):
        _step(engine, number)


def differs(what: str) -> None:
    """Starts rank 1 with other inputs than rank 0."""
    what = what if os.environ["RANK"] == "1" else "nothing"
    module = models.seeded(models.Conv if what == "model" else models.Mlp, 1 if what == "values" else 0)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3 if what == "config" else 1}}
    if what == "parameters":
        module.layers[3] = torch.nn.Linear(models.WIDTH, models.WIDTH, bias=False)
        module.layers[0].to(torch.bfloat16)
        module.head.bias.requires_grad_(False)
    if what == "values":  # all ranks have the values of the first, which alone writes this file
        config["tensorboard"] = {"enabled": True, "output_path": "elsewhere"}
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-2 if what == "config" else 1e-2)
    engine = deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0]
    _step(engine, 0)
    if what == "rates":  # as from a schedule that depends on this rank's loss
        engine.optimizer.param_groups[0]["lr"] = 0.5
    _step(engine, 1)
