#!/usr/bin/env python3
"""Trains in random layouts on CPU ranks and on interpreted GPUs, and compares the results as docs/numerics.md promises.

usage: layouts.py CLEAVE [--cases N] [--seed S] [--ranks MOST] [--nccl] [--show]

A layout is a grid of 2 to MOST ranks (data, pipeline, tensor and sequence axes), a ZeRO stage, homes of state and weights, a type, a model,
a number of micro-batches, recomputation, blocking or background saves, and GPUs with one rank or two. Losses on GPUs equal those on the CPU
within rounding. Over CUDA IPC and host memory they have equal bits, also with another order of streams. One CPU rank resumes with the loss
in a checkpoint of the GPUs. --nccl: also over the NCCL replacement. --show: only prints the layouts. Exits with 1 and the seed of each case
that differs; the same seed repeats it.
"""
import argparse
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

MODELS = ("tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny", "phi-3-tiny", "gemma-2-tiny")
LIMIT, STEPS = 300, 3


def homes(r, stage):
    """Returns the homes of optimizer state and weights that differ from the GPU, if the stage supports them."""
    zero = {}
    if stage and r.random() < 0.5:
        zero["offload_optimizer"] = {"device": r.choice(("cpu", "nvme")), "nvme_path": "state"}
        if stage == 3:
            zero["offload_optimizer"]["ratio"] = r.choice((1.0, 0.5))
    if stage == 3 and r.random() < 0.5:
        zero["offload_param"] = {"device": r.choice(("cpu", "nvme")), "nvme_path": "state"}
    return zero


def draw(seed, most):
    """Returns the configuration, the number of ranks and the rest of a case; not every case is a valid layout."""
    r = random.Random(seed)
    ranks = 0
    while not 2 <= ranks <= most:
        pipe, tensor, sequence, data = (r.choice(sizes) for sizes in ((1, 1, 2), (1, 1, 2), (1, 1, 2), (1, 2, 2, 3, 4)))
        ranks = pipe * tensor * sequence * data
    stage, micro, accumulation = r.choice((0, 1, 2, 3)), r.choice((1, 2)), r.choice((1, 2, 4) if pipe == 1 else (2, 4))
    away = homes(r, stage)
    config = {
        "train_batch_size": data * micro * accumulation,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_clipping": r.choice((0.0, 0.5)),
        "optimizer": {"type": r.choice(("AdamW", "AdamW", "Lion", "SGD")), "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage, "overlap_comm": r.random() < 0.7, **away},
        "checkpoint": {"async": r.random() < 0.5},
        "cleave": {"tune_products": False},  # for equal bits
    }
    if stage == 3:
        config["zero_optimization"]["stage3_prefetch_bucket_size"] = r.choice((0, 100_000))
    if not away:
        config["cleave"]["cuda_graphs"] = r.choice(("auto", "on", "off"))
    elif "offload_optimizer" in away:
        config["cleave"]["offload_update"] = r.choice(("host", "device"))
    if pipe > 1:
        config["pipeline"] = {"stages": pipe, "schedule": r.choice(("1f1b", "zb-h1", "interleaved"))}
        if config["pipeline"]["schedule"] == "interleaved":
            config["pipeline"]["virtual_stages"] = 2
    if tensor > 1:
        config["tensor_parallel"] = {"autotp_size": tensor}
    if sequence > 1:
        config["sequence_parallel_size"] = sequence
    if r.random() < 0.4:
        again = {"number_checkpoints": 2}
        config["activation_checkpointing"] = r.choice((again, {"policy": "selective"}, {**again, "cpu_checkpointing": True}))
    precision = r.choice(("fp32", "fp32", "bf16", "fp16"))
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if precision == "fp16":
        config[precision]["initial_scale_power"] = 10
    gpus = ranks if r.random() < 0.7 or ranks % 2 else ranks // 2
    return {"seed": seed, "ranks": ranks, "gpus": gpus, "model": r.choice(MODELS), "precision": precision, "config": config}


class Trainings:
    def __init__(self, cleave, case):
        self.cleave, self.case = os.path.abspath(cleave), case
        self.kept = tempfile.TemporaryDirectory(prefix="cleave layouts ")  # during the life of this object
        self.folder = pathlib.Path(self.kept.name)
        (self.folder / "ds_config.json").write_text(json.dumps(case["config"]))
        (self.folder / "corpus.txt").write_text("The place of a rank does not change the training. " * 400)

    def call(self, *words, **interpreter):
        gpus = {"GPUS": self.case["gpus"], "WAITS": 1, **interpreter}
        process = subprocess.Popen(
            [self.cleave, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **{"CUDA_INTERPRETER_" + name: str(value) for name, value in gpus.items()}},
            cwd=self.folder,
            start_new_session=True,
        )
        try:
            said = process.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        return process.returncode, said

    def can_be(self):
        plan = ["plan", "--deepspeed_config", "ds_config.json", "--seq_len", 32]
        return self.call(*plan, "--model", self.case["model"], "-n", self.case["ranks"])[0] == 0

    def train(self, ranks, *options, steps=STEPS, **interpreter):
        """Returns the losses of the steps, or an Exception with the output after a failure."""
        metrics = self.folder / f"{time.monotonic_ns()}.jsonl"
        command = ["launch", "-n", ranks, "--", "train", "--deepspeed_config", "ds_config.json", "--model", self.case["model"]]
        about = ["--data", "corpus.txt", "--seq_len", 32, "--steps", steps, "--metrics", metrics]
        code, said = self.call(*command, *about, *options, **interpreter)
        if code != 0:
            raise RuntimeError(f"{' '.join(options)}: {'did not end' if code is None else f'exit code {code}'}\n{said[-1500:]}")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [line["loss"] for line in lines if "event" not in line]

    def resumed(self):
        """Returns the losses of one CPU rank that resumes from the last checkpoint."""
        config = dict(self.case["config"])
        for key in ("pipeline", "tensor_parallel", "sequence_parallel_size"):
            config.pop(key, None)
        config["zero_optimization"] = {"stage": 0}
        config.get("cleave", {}).pop("offload_update", None)
        (self.folder / "ds_config.json").write_text(json.dumps(config))
        return self.train(1, "--device", "cpu", "--output", "out", "--resume", "required", steps=STEPS + 1)


def problem(trainings, case, routes):
    """Returns the difference from the promises; "" if there is none."""
    near = 1e-3 if case["precision"] == "fp32" else 2e-2
    seed, found = case["seed"], {}
    shared = ["--share_gpu"] if case["gpus"] < case["ranks"] else []
    try:
        want = trainings.train(case["ranks"], "--device", "cpu")
        for at, route in enumerate(routes):
            if route == "nccl" and shared:
                continue  # not a supported layout
            options = ["--device", "cuda", "--gpu_transport", route, *shared, *(["--output", "out"] if at == 0 else [])]
            found[route] = trainings.train(case["ranks"], *options, SEED=seed + 1000 * at, PRODUCTS=seed)
            if len(found[route]) != STEPS or not all(math.isclose(a, b, abs_tol=near) for a, b in zip(found[route], want, strict=True)):
                return f"over {route} {found[route]}, on the CPU {want}"
        if found["ipc"] != found["host"]:
            return f"over CUDA IPC {found['ipc']}, over host memory {found['host']}"
        trainings.resumed()
    except RuntimeError as error:
        return str(error)
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cleave")
    parser.add_argument("--cases", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    done, failed, seed = 0, [], options.seed
    while done < options.cases:
        case = draw(seed, options.ranks)
        trainings, begin = Trainings(options.cleave, case), time.monotonic()
        if trainings.can_be():
            done += 1
            print(json.dumps(case), flush=True)
            wrong = "" if options.show else problem(trainings, case, ["ipc", "host"] + (["nccl"] if options.nccl else []))
            if wrong:
                failed.append(seed)
                print(f"seed {seed}: {wrong}", flush=True)
            elif not options.show:
                print(f"seed {seed}: as promised, {time.monotonic() - begin:.0f} s", flush=True)
        seed += 1
    if failed:
        sys.exit(f"{len(failed)} of {done} layouts differ: seeds {failed}")
    print(f"{done} layouts")


if __name__ == "__main__":
    main()
