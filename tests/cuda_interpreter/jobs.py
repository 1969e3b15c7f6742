#!/usr/bin/env python3
"""Devices of jobs in the interpreter: GPUs that launchers show to ranks, and machines on which a job cannot run.

usage: jobs.py BUILD [--only WORD]

BUILD is the folder of the preset `interpreter`. Each case starts the ranks of a script without a launcher, each with its own environment,
and compares exit codes and messages; `program` cases start `cleave train`. torch.cuda is a stub. Exits with 1 after a failure. Needs a
Python with torch (tests/python/with_torch.py).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
import with_torch  # noqa: E402

LIMIT_S = 120
SCRIPT = """
import os, torch
torch.__version__ = os.environ.get("STUB_TORCH", "2.15.0")
torch.version.cuda = os.environ.get("STUB_CUDA", "13.0") or None
torch.cuda.device_count = lambda: int(os.environ.get("STUB_GPUS", "8"))
torch.cuda.is_available = lambda: torch.cuda.device_count() > 0
from cleave import job
facts = job.current().facts()
print("device", facts["device"], "rank", facts["rank"], facts.get("transport"), flush=True)
"""
TORCHRUN = {
    "RANK": "{r}",
    "LOCAL_RANK": "{r}",
    "WORLD_SIZE": "{n}",
    "LOCAL_WORLD_SIZE": "{n}",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "{port}",
}
DEEPSPEED = {**TORCHRUN, "LOCAL_SIZE": "{n}", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "{r}",
    "SLURM_LOCALID": "{r}",
    "SLURM_STEP_NUM_TASKS": "{n}",
    "SLURM_NTASKS": "{n}",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "{n}",
    "MASTER_PORT": "{port}",
}
AZURE_MPI = {
    "OMPI_COMM_WORLD_RANK": "{r}",
    "OMPI_COMM_WORLD_SIZE": "{n}",
    "OMPI_COMM_WORLD_LOCAL_RANK": "{r}",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "{n}",
    "AZUREML_RUN_ID": "j",
    "AZ_BATCH_MASTER_NODE": "127.0.0.1:{port}",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "{port}",
}


class Job(NamedTuple):
    """A job with one environment per rank, and its end."""

    name: str
    ranks: list[dict[str, str]]
    says: list[str]  # texts that every rank prints, or rank 0 if `first`
    launcher: dict[str, str] = TORCHRUN
    code: int = 2
    gpus: int = 4
    first: bool = False
    program: bool = False


def seen(*lists: str) -> list[dict[str, str]]:
    """Returns environments with a CUDA_VISIBLE_DEVICES per rank."""
    return [{"CUDA_VISIBLE_DEVICES": each} for each in lists]


GOOD, OLD, SMALL = {}, {"CUDA_INTERPRETER_DRIVER": "12040"}, {"CUDA_INTERPRETER_CAPABILITY": "75"}
WORKS = {"code": 0}
OLD_TEXT = "the NVIDIA driver is for CUDA 12.4 and this build needs"
JOBS = [
    Job("torchrun", [GOOD] * 4, ["device cuda:{r} rank {r}"], **WORKS),
    Job("deepspeed", seen(*["3,1"] * 2), ["device cuda:{r} rank {r}"], DEEPSPEED, **WORKS),
    Job("SLURM shows every GPU", [GOOD] * 4, ["device cuda:{r} rank {r}"], SLURM, **WORKS),
    Job("SLURM with --gpus-per-task=1", seen("0", "1", "2", "3"), ["device cuda:0 rank {r}"], SLURM, **WORKS),
    Job("SLURM with --gpus-per-task=2", seen("0,1", "0,1", "2,3", "2,3"), ["device cuda:"], SLURM, **WORKS),
    Job("one GPU per rank by a script's CUDA_VISIBLE_DEVICES", seen("2", "0"), ["device cuda:0 rank {r}"], **WORKS),
    Job("Azure ML with MPI", [GOOD] * 2, ["device cuda:{r} rank {r}"], AZURE_MPI, **WORKS),
    Job("identities", seen(*["GPU-interpreted-3,GPU-interpreted-1"] * 2), ["device cuda:{r} rank {r}"], **WORKS),
    Job(
        "a slice per rank",
        seen("MIG-interpreted-0", "MIG-interpreted-1"),
        ["device cuda:0 rank {r}", "through pinned host memory"],
        **WORKS,
    ),
    Job(
        "slices for all ranks",
        seen(*["MIG-interpreted-0,MIG-interpreted-1"] * 2),
        ["a process can use only the first", "give each process one slice"],
    ),
    Job("an unknown identity", seen(*["GPU-interpreted-0,GPU-1234"] * 2), ["not 'GPU-1234'; nvidia-smi -L lists them"]),
    Job(
        "more ranks than GPUs",
        [GOOD] * 3,
        ["GPUs: ranks 0 and 2 have the same one (got 3 ranks on 2 GPUs of their host); start 2 there"],
        gpus=2,
    ),
    Job(
        "the same GPU for each rank", seen("1", "1"), ["GPUs: ranks 0 and 1 have the same one (got 2 ranks on 1 GPU", "CLEAVE_SHARE_GPU=1"]
    ),
    Job("a shared GPU by consent", [{"CLEAVE_SHARE_GPU": "1"}] * 2, ["device cuda:0 rank {r}"], gpus=1, **WORKS),
    Job("hidden GPUs", [{"CUDA_VISIBLE_DEVICES": "", "STUB_GPUS": "0"}] * 2, ["device cpu rank {r}"], **WORKS),
    Job("hidden GPUs and an old driver", [{"CUDA_VISIBLE_DEVICES": "-1", "STUB_GPUS": "0", **OLD}] * 2, ["device cpu rank {r}"], **WORKS),
    Job(
        "a rank without a GPU",
        [GOOD, *seen("")],
        ["--device: rank 1 computes on the CPU (CUDA_VISIBLE_DEVICES is ''", "and rank 0 on a GPU"],
    ),
    Job(
        "a host without a driver",
        [{"CUDA_INTERPRETER_DRIVER": "0"}, GOOD],
        ["rank 0 computes on the CPU (no NVIDIA driver found; install one for CUDA"],
    ),
    Job(
        "no driver", [{"CUDA_INTERPRETER_DRIVER": "0", "STUB_GPUS": "0"}] * 2, ["device: cpu (no NVIDIA driver found"], first=True, **WORKS
    ),
    Job("an old driver", [OLD] * 2, [OLD_TEXT, "install a newer driver"]),
    Job("an old driver on one host", [GOOD, OLD, GOOD], ["--device auto: " + OLD_TEXT, "install a newer driver"]),
    Job("an old driver on one host, the program", [OLD, GOOD], [OLD_TEXT], program=True, first=True),
    Job("an old GPU", [SMALL] * 2, ["cuda:0 (an interpreter of PTX): not supported (got compute capability 7.5, expected 8.0 or newer)"]),
    Job("an old GPU on one host", [GOOD, SMALL], ["cuda:1 (an interpreter of PTX): not supported (got compute capability 7.5"]),
    Job("an old GPU alone", [SMALL], ["got compute capability 7.5"]),
    Job(
        "different GPUs",
        [GOOD, {"CUDA_INTERPRETER_CAPABILITY": "80"}],
        [
            "warning: GPUs: ranks differ (rank 0: an interpreter of PTX, compute capability 9.0, "
            "8 GiB, rank 1: an interpreter of PTX, compute capability 8.0, 8 GiB)",
            "use equal GPUs",
        ],
        first=True,
        **WORKS,
    ),
    Job(
        "two versions of NCCL",
        [{"CLEAVE_GPU_TRANSPORT": "nccl"}, {"CLEAVE_GPU_TRANSPORT": "nccl", "CUDA_INTERPRETER_NCCL_VERSION": "22705"}],
        ["NCCL: versions differ (rank 0 has", "rank 1 has 2.27.5); install the same version on all hosts"],
    ),
    Job(
        "an old NCCL",
        [{"CLEAVE_GPU_TRANSPORT": "nccl", "CUDA_INTERPRETER_NCCL_VERSION": "21200"}] * 2,
        ["NCCL: unsupported version (got 2.12.0, expected 2.26.0 or newer", "pip install"],
    ),
    Job(
        "two versions of torch",
        [GOOD, {"STUB_TORCH": "2.14.0"}],
        ["torch (install one version on all hosts): ranks differ (rank 0: 2.15.0, rank 1: 2.14.0)"],
    ),
    Job(
        "a torch without CUDA",
        [{"STUB_CUDA": ""}] * 2,
        ["torch: built without CUDA (got 2.15.0), but the engine computes on cuda:{r}; install a torch with"],
    ),
    Job(
        "a torch that finds no GPU",
        [{"STUB_GPUS": "0"}] * 2,
        ["torch: finds 0 GPUs (built for CUDA 13.0), but the engine computes on cuda:{r}"],
    ),
    Job(
        "a torch for another CUDA",
        [{"STUB_CUDA": "12.6"}] * 2,
        ["warning: torch: built for CUDA 12.6, this build of cleave for CUDA"],
        first=True,
        **WORKS,
    ),
]


def commands(build: pathlib.Path, python: str, job: Job, folder: pathlib.Path) -> list[str]:
    """Returns the command of a rank."""
    if not job.program:
        return [python, "-c", SCRIPT]
    (folder / "ds_config.json").write_text('{"train_batch_size": 2}')
    (folder / "text.txt").write_text("text " * 1000)
    options = ["--deepspeed_config", "ds_config.json", "--model", "tiny", "--data", "text.txt", "--seq_len", "16", "--steps", "1"]
    return [str(build / "bin/cleave"), "train", *options]


def run(build: pathlib.Path, python: str, job: Job) -> list[str]:
    """Runs a job and returns what differs from its expected end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    left_out = ("SLURM", "OMPI", "CUDA_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    path = {"PYTHONPATH": str(ROOT / "python"), "CLEAVE_LIBRARY": str(build / "lib/libcleave_c.so"), "OMP_NUM_THREADS": "1"}
    nccl = {"CLEAVE_NCCL": str(build / f"lib/libnccl_standin{'' if job.program else '_c'}.so"), "CUDA_INTERPRETER_GPUS": str(job.gpus)}
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank, own in enumerate(job.ranks):
            place = {key: value.format(r=rank, n=len(job.ranks), port=port) for key, value in job.launcher.items()}
            env = {**clean, **path, **nccl, **place, **own}
            command = commands(build, python, job, pathlib.Path(folder))
            started.append(subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        until, wrong = time.monotonic() + LIMIT_S, []
        for rank, process in enumerate(started):
            try:
                output = process.communicate(timeout=max(1, until - time.monotonic()))[0]
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0] + f"\nnot done after {LIMIT_S} s"
            texts = [text.format(r=rank) for text in job.says] if rank == 0 or not job.first else []
            missing = [text for text in texts if text not in output]
            if missing or process.returncode != job.code:
                wrong.append(f"rank {rank} ended with {process.returncode}, missing {missing}:\n{output[-3000:]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="jobs with this word in their name")
    options = parser.parse_args()
    python = next(filter(with_torch.has_torch, with_torch.pythons()), None)
    if python is None:
        print("skipped: no Python here has torch")
        return 0
    failed = 0
    for job in JOBS:
        if options.only in job.name:
            begin = time.monotonic()
            wrong = run(options.build.resolve(), python, job)
            failed += bool(wrong)
            print(f"{'FAILED' if wrong else 'passed'} {time.monotonic() - begin:4.0f} s  {job.name}", *wrong, sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
