"""Cases of habits_test.py for ranks: common actions of PyTorch scripts around an engine."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cleave as deepspeed
import models
import torch
from engine_cases import config, steps
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def _engine(stage: int = 2) -> Any:
    return deepspeed.initialize(model=models.seeded(models.Mlp), config=config(stage))[0]


class Samples(torch.utils.data.Dataset[Any]):
    """Samples that contain their index and the process that made them."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return torch.full((8,), float(index)), index % models.CLASSES, os.getpid()


def loads() -> dict[str, Any]:
    """Reads two epochs with torch's sampler and loader, with workers that are forked while the engine has threads, and trains in
    between."""
    engine = _engine()
    sampler = DistributedSampler(Samples(), engine.world_size, engine.global_rank, seed=3)
    loader = DataLoader(Samples(), batch_size=4, sampler=sampler, num_workers=2, pin_memory=True)
    epochs, workers = [], set()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen: list[int] = []
        for x, y, made_by in loader:
            engine.backward(models.loss(engine, (x, y)))
            engine.step()
            seen += x[:, 0].int().tolist()
            workers |= set(made_by.tolist())
        epochs.append(seen)
    return {"epochs": epochs, "workers": len(workers - {os.getpid()}), "here": os.getpid() in workers, "steps": engine.global_steps}


def forks(stage: int) -> dict[str, Any]:
    """Returns what calls of the engine say in a forked child, and the losses afterwards and of an engine without a child."""
    engine, (x, y) = _engine(stage), models.batch(0, 0, 0)

    def infers() -> None:
        with torch.no_grad():
            engine(x)

    def call(what: str, to: Any) -> None:
        try:
            {
                "infers": infers,
                "trains": lambda: models.loss(engine, (x, y)),
                "steps": engine.step,
                "saves": lambda: engine.save_checkpoint("/nowhere"),
            }[what]()
            to.send("nothing")
        except Exception as error:
            to.send(f"{type(error).__name__}: {error}")

    said, context = {}, multiprocessing.get_context("fork")
    for what in ("infers", "trains", "saves"):
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=call, args=(what, there))
        child.start()
        said[what] = here.recv() if here.poll(60) else "no answer"
        child.join(60)
        said[f"{what} ends"] = child.exitcode
    return {"said": said, "losses": [steps(engine, 2), steps(_engine(stage), 2)]}


def first_rank_saves(folder: str) -> dict[str, bool]:
    """Returns, by stage, if the first rank alone can save a state_dict with torch, for a module without an engine to load."""
    out = {}
    for stage in (0, 1, 2):
        engine, path = _engine(stage), Path(folder, f"{stage}.pt")
        steps(engine, 2)
        if engine.global_rank == 0:
            torch.save(engine.module.state_dict(), path)
        torch.distributed.barrier()
        alone = models.Mlp()
        alone.load_state_dict(torch.load(path, weights_only=True))
        x = models.batch(0, 0, 0)[0]
        out[str(stage)] = torch.equal(alone(x), engine(x))
    return out


def placed(launcher: dict[str, str]) -> list[int]:
    """Returns rank, ranks and local rank from a launcher's variables, and the sum of gradients over the ranks."""
    rank = os.environ["RANK"]
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ |= {key: value.format(rank=rank) for key, value in launcher.items()}
    return ends()


def ends() -> list[int]:
    """A script that ends with an open engine, thread and process group."""
    engine = _engine()
    steps(engine, 1)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return [engine.global_rank, engine.world_size, engine.local_rank, torch.distributed.get_world_size()]


def listens() -> dict[str, Any]:
    """Returns the addresses on which torch's store listens, from the kernel, and the job variables of a child process."""
    deepspeed.init_distributed()
    store = torch.distributed.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    lines = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    at = [line.split()[1] for line in lines.splitlines() if f":{store.port:04X} " in line and line.split()[3] == "0A"]
    child = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    given = subprocess.run(["env"], capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    secrets = [name for name in ("CLEAVE_TOKEN", "CLEAVE_MEETING_FD", "CLEAVE_MEETING_PORT") if f"{name}=" in child]
    return {"at": at, "secrets": secrets + ["token of os.environ"] * ("CLEAVE_TOKEN=" in given)}


CELLS = [
    "import torch\nimport cleave as deepspeed",
    "torch.manual_seed(0)\nmodel = torch.nn.Linear(8, 1)\nx = torch.randn(64, 8)\ny = x.sum(1, keepdim=True)",
    "engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)",
    "for step in range(60):\n    loss = torch.nn.functional.mse_loss(engine(x), y)\n    engine.backward(loss)\n    engine.step()",
    "print(loss.item())",
]


def notebook() -> dict[str, Any]:
    """Notebook cells without a launcher; the cells that create the model and train run twice."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    cells: dict[str, Any] = {"CONFIG": config(1, gradient_accumulation_steps=1, optimizer={"type": "Adam", "params": {"lr": 0.05}})}
    losses = []
    for cell in (*CELLS, *CELLS[1:]):
        exec(compile(cell, "<cell>", "exec"), cells)
        if cell.startswith("print"):
            losses.append(cells["loss"].item())
    return {"losses": losses, "world": cells["engine"].world_size}


def trains_on(file: str) -> None:
    """Trains until it is interrupted. Each rank writes a file when it trains."""
    engine = _engine(3)
    for step in range(1_000_000):
        steps(engine, 1, step)
        if step == 5:
            Path(f"{file}{engine.global_rank}").touch()


def is_stopped(folder: str, saves: bool) -> None:
    """Trains until a stop is requested; then the engine or the script saves. The restarted script trains one more step."""
    key = {"cleave": {"save_on_stop": True}} if saves else {}
    engine = deepspeed.initialize(model=models.seeded(models.Mlp), config=config(2, **key))[0]
    path, client = engine.load_checkpoint(folder)
    if path:
        Path(f"{folder}/again{engine.global_rank}").write_text(f"{engine.global_steps} {client}")
        steps(engine, 1)
        return
    engine.save_checkpoint(folder, client_state={"of": "the script"})
    for step in range(1_000_000):
        if not saves and engine.stop_requested():
            engine.save_checkpoint(folder, client_state={"of": "the script"})
            sys.exit(75)
        steps(engine, 1, step)
        if step == 5:
            Path(f"{folder}/at{engine.global_rank}").touch()


def raises(rank: int, code: int) -> None:
    """One rank fails and takes long to exit; a missing handler would wait for minutes."""
    engine = _engine()
    steps(engine, 1)
    if engine.global_rank == rank:
        atexit.register(time.sleep, 300)
        if code == 2:
            raise deepspeed.UsageError("a mistake of the script")
        raise ValueError("a mistake of the script")
    steps(engine, 1000)


if __name__ == "__main__":
    print(f"ended {ends()}")  # one write, because ranks share a stream
