#!/usr/bin/env python3
"""Trains small models in random layouts, kills the jobs, resumes them in other layouts and batch sizes, and compares each training with an
unbroken run.

    scripts/random_layouts.py build/release/bin/cleave --draws 300          prints a line for each draw, and the share that agrees
    scripts/random_layouts.py build/release/bin/cleave --seed 17 --draws 1  repeats one draw

A draw is a model, a precision, an optimizer, adapters or frozen layers, and two phases with a global batch each. Its training is a series
of jobs, each in its own layout: ranks, axes, ZeRO stage, offload to host memory and files, recomputation. A job ends at a random step (a
rank or the launcher is killed, or a stop is requested), and the next job resumes from its last checkpoint. The reference runs both phases
unbroken:

    bits       in the layout of all jobs of the draw, or with exact sums on one rank; losses, norms and weights have the same bits
    bound      on one rank; losses and norms agree within the bound of docs/numerics.md for the types of the draw. In 16 or 8 bits a step
               may also differ by four times the difference between the reference and the same training in fp32, because some steps
               amplify rounding

Exits with 1 if a draw does not agree. Takes about ten seconds per draw on two cores.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MODELS = ("tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny", "mistral-tiny", "phi-3-tiny", "gemma-2-tiny", "gemma-3-tiny")
OPTIMIZERS = ({"type": "AdamW", "params": {"lr": 1e-3, "eps": 1e-6, "weight_decay": 0.1}},
              {"type": "Adam", "params": {"lr": 1e-3, "eps": 1e-6}},
              {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9}},
              {"type": "Lamb", "params": {"lr": 3e-3, "eps": 1e-6}})
SCHEDULES = ({}, {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-3, "total_num_steps": 40}}})
# Largest difference of losses and of norms, relative to the reference.
BOUNDS = {"fp32": (2e-5, 2e-4), "bf16": (2e-3, 5e-2), "fp16": (2e-3, 5e-2), "fp8": (1e-2, 2e-1)}
WAIT_S = 600


class Job:
    """The constants of a draw."""

    def __init__(self, rng, folder):
        self.rng, self.folder = rng, folder
        self.model = rng.choice(MODELS)
        self.kind = rng.choice(("bound", "bound", "same layout", "exact sums"))
        self.types = rng.choice(("fp32", "fp32", "bf16", "fp16", "fp8"))
        if self.kind == "exact sums":
            self.types = rng.choice(("fp32", "bf16"))
        self.micro = rng.choice((1, 2))
        self.steps = (rng.randint(3, 10), rng.randint(12, 20))
        self.batches = rng.sample((4, 8, 12, 16), 2) if rng.random() < 0.8 else [8, 8]
        self.base = {"gradient_clipping": rng.choice((0.0, 0.5)), "optimizer": rng.choice(OPTIMIZERS), **rng.choice(SCHEDULES)}
        own = {}
        if self.types in ("bf16", "fp8"):
            self.base["bf16"] = {"enabled": True}
        if self.types == "fp16":
            self.base["fp16"] = {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 1000}
        if self.types == "fp8":
            own["fp8"] = {"scaling": rng.choice(("delayed", "row"))}
        if self.kind == "exact sums":
            own["exact_sums"] = True
            self.base["optimizer"] = rng.choice(OPTIMIZERS[:3])  # Lamb's parameter norms are sums in another order
        trained = rng.choice(("all", "all", "lora", "freeze"))
        if trained == "lora":
            own["lora"] = {"rank": rng.choice((2, 4)), "alpha": 8, "targets": "all-linear"}
        elif trained == "freeze":
            own["freeze"] = rng.choice((["*.0.*"], ["*.mlp.*"], ["*.1.*", "*.2.*"]))
        self.trained = trained
        if own:
            self.base["cleave"] = own

    def name(self):
        batches = " then ".join(map(str, self.batches))
        return f"{self.model} {self.types} {self.trained} {self.base['optimizer']['type']} batch {batches}: {self.kind}"


def draw_layout(job, batch):
    """Returns a number of ranks and the sections of a ds_config, or None if the batch is not divisible."""
    rng = job.rng
    axes = {axis: rng.choice((1, 1, 1, 2)) for axis in ("pipe", "tensor", "sequence")}
    if job.kind == "exact sums":
        axes["tensor"] = axes["sequence"] = 1
    data = rng.choice((1, 2, 2, 4))
    ranks = data * axes["pipe"] * axes["tensor"] * axes["sequence"]
    micro = job.micro if job.kind != "bound" else rng.choice((1, 2, 4))
    if ranks > 8 or batch % (data * micro):
        return None
    zero = {"stage": rng.choice((0, 1, 2, 3, 3)), "overlap_comm": rng.random() < 0.5}
    disk = {"device": "nvme", "nvme_path": str(job.folder / "disk")}
    if zero["stage"] >= 1:
        zero.update(rng.choice(({}, {"offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": disk})))
    if zero["stage"] == 3:
        zero.update(rng.choice(({}, {"offload_param": {"device": "cpu"}},
                                {"offload_param": {**disk, "max_in_cpu": rng.choice((0, 100_000))}})))
        zero.update(rng.choice(({}, {"stage3_max_live_parameters": rng.choice((0, 30_000, 200_000))})))
        zero["stage3_param_persistence_threshold"] = rng.choice((0, 1000))
        if data == 4 and job.kind == "bound" and "offload_param" not in zero:
            zero.update(rng.choice(({}, {"mics_shard_size": 2})))
    config = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro, "zero_optimization": zero, **job.base}
    if axes["pipe"] > 1:
        config["pipeline"] = {"stages": 2, **rng.choice(({}, {"schedule": "gpipe"}, {"schedule": "zb-h1"},
                                                         {"schedule": "interleaved", "virtual_stages": 2}))}
    if axes["tensor"] > 1:
        config["tensor_parallel"] = {"autotp_size": 2, "sequence_parallel": rng.random() < 0.5}
    if axes["sequence"] > 1:
        config["sequence_parallel_size"] = 2
    config.update(rng.choice(({}, {}, {"activation_checkpointing": {"interval": 1}},
                              {"activation_checkpointing": {"policy": "selective"}})))
    if rng.random() < 0.3:
        config["checkpoint"] = {"async": True}
    return ranks, config


class Runner:
    def __init__(self, cleave, job, refusals):
        self.cleave, self.job, self.refusals = cleave, job, refusals
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.commands = []

    def write(self, name, config):
        path = self.job.folder / name
        path.write_text(json.dumps(config))
        return path

    def layout(self, batch):
        """Returns a layout that the program can plan, and counts rejections by their message."""
        while True:
            drawn = draw_layout(self.job, batch)
            if drawn is None:
                continue
            ranks, config = drawn
            path = self.write("drawn.json", config)
            plan = subprocess.run([self.cleave, "plan", "--deepspeed_config", path, "--model", self.job.model, "--seq_len", "32",
                                   "--world_size", str(ranks)], capture_output=True, text=True, env=self.environment)
            if plan.returncode == 0:
                return ranks, config
            said = next((line for line in plan.stderr.splitlines() if line.startswith("error")), plan.stderr[-300:])
            if plan.returncode != 2:
                raise RuntimeError(f"plan ended with {plan.returncode}: {said}\n{json.dumps(config)}")
            self.refusals[said] += 1

    def start(self, out, ranks, config, steps, *args):
        path = self.write(f"{out.name}-{len(self.commands)}.json", config)
        train = ["train", "--deepspeed_config", path, "--model", self.job.model, "--data", self.job.folder / "text.txt", "--seq_len", 32,
                 "--init", "random", "--steps", steps, "--output", out, "--metrics", out.with_suffix(".jsonl"), "--seed", 7, *args]
        launch = ["launch", "-n", ranks, "--"] if ranks > 1 else []
        command = [str(word) for word in [self.cleave, *launch, *train]]
        self.commands.append((command, config))
        with open(out.with_suffix(".log"), "a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, start_new_session=True)

    def whole(self, out, ranks, config, steps, *args):
        job = self.start(out, ranks, config, steps, *args)
        code = job.wait(WAIT_S)
        if code:
            raise RuntimeError(f"a job ended with {code}: {out.with_suffix('.log').read_text()[-2000:]}")

    def broken(self, out, ranks, config, steps, at):
        """Ends the job after step `at` in one of three ways, and returns the way."""
        job = self.start(out, ranks, config, steps, "--save_interval", self.job.rng.choice((1, 2, 3)))
        way = self.job.rng.choice(("rank killed", "launcher killed", "stopped"))
        end = time.monotonic() + WAIT_S
        while job.poll() is None and time.monotonic() < end and last_step(out.with_suffix(".jsonl")) < at:
            time.sleep(0.002)
        if job.poll() is None:
            ranks_of = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                if way == "stopped":
                    job.send_signal(signal.SIGTERM)
                elif way == "launcher killed" or not ranks_of:
                    job.kill()
                else:
                    os.kill(int(self.job.rng.choice(ranks_of)), signal.SIGKILL)
        code = job.wait(WAIT_S)
        wait_for_group(job.pid)
        if code == 0:
            return "ended first"
        if code not in {"rank killed": (6, 137, -9), "launcher killed": (-9,), "stopped": (75, -15)}[way]:  # -15: before main()
            raise RuntimeError(f"{way}, and the job ended with {code}: {out.with_suffix('.log').read_text()[-2000:]}")
        return way

    def digest(self, out):
        return subprocess.run([self.cleave, "digest", out], capture_output=True, text=True, check=True).stdout


def wait_for_group(group):
    """Waits until the ranks of a killed launcher have exited."""
    for _ in range(int(WAIT_S / 0.02)):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise RuntimeError("ranks of a killed launcher still run")


def lines_of(metrics):
    with contextlib.suppress(FileNotFoundError):  # a start creates and removes it to test the folder
        for line in metrics.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # killed while it wrote a line
                yield json.loads(line)


def last_step(metrics):
    return max((line["step"] for line in lines_of(metrics) if "grad_norm" in line), default=0)


def steps_of(metrics):
    """Returns loss and norm of each step; a repeated step has those of its last run."""
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in lines_of(metrics) if "grad_norm" in line}


def differences(job, got, want, exact):
    """Returns true if the steps differ by more than allowed, and the largest difference. `exact` has the steps in fp32, or is empty."""
    if sorted(got) != sorted(want):
        return True, f"steps {sorted(got)}, wanted {sorted(want)}"
    worst, differ = [0.0, 0.0], False
    for step in want:
        for i, bound in enumerate(BOUNDS[job.types] if job.kind == "bound" else (0.0, 0.0)):
            scale = max(abs(want[step][i]), 1e-3)
            difference = abs(got[step][i] - want[step][i]) / scale
            worst[i] = max(worst[i], difference)
            differ |= difference > max(bound, 4 * abs(want[step][i] - exact[step][i]) / scale if exact else 0)
    return differ, f"loss {worst[0]:.1e}, norm {worst[1]:.1e}"


def in_fp32(config):
    own = {key: value for key, value in config.get("cleave", {}).items() if key != "fp8"}
    return {**{key: value for key, value in config.items() if key not in ("bf16", "fp16", "cleave")}, **({"cleave": own} if own else {})}


def one_draw(cleave, seed, keep):
    """Returns true if the draw agrees, a line of text, the rejected layouts, and the number of jobs that ended early."""
    rng, refusals, ways = random.Random(seed), collections.Counter(), []
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"layouts-{seed}-"))
    (folder / "disk").mkdir()
    words = ["light", "water", "earth", "heaven", "and", "the", "was", "upon", "face", "deep"]
    (folder / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(3000)) + "\n")
    job = Job(rng, folder)
    runner = Runner(cleave, job, refusals)
    try:
        fixed = {batch: runner.layout(batch) for batch in sorted(set(job.batches))} if job.kind == "same layout" else {}
        for batch, steps in zip(job.batches, job.steps, strict=True):
            alone = 1, {"train_batch_size": batch, "train_micro_batch_size_per_gpu": job.micro, **job.base}
            runner.whole(folder / "reference", *fixed.get(batch, alone), steps)
            if job.kind == "bound" and job.types != "fp32":
                runner.whole(folder / "exact", 1, in_fp32(alone[1]), steps)
        for batch, steps in zip(job.batches, job.steps, strict=True):
            for _ in range(rng.choice((0, 1, 1, 2))):
                ranks, config = fixed.get(batch) or runner.layout(batch)
                ways.append(f"{runner.broken(folder / 'run', ranks, config, steps, rng.randint(1, steps))} of {ranks}")
            ranks, config = fixed.get(batch) or runner.layout(batch)
            runner.whole(folder / "run", ranks, config, steps)
        differ, said = differences(job, *(steps_of(folder / f"{name}.jsonl") for name in ("run", "reference", "exact")))
        if not differ and job.kind != "bound" and runner.digest(folder / "run") != runner.digest(folder / "reference"):
            differ, said = True, "the weights differ"
    except RuntimeError as error:
        differ, said = True, str(error)
    said = f"seed {seed}: {job.name()}; {', '.join(ways) or 'no kill'}; {said}"
    if differ or keep:
        said += f"\n  {folder}" + "".join(f"\n  {' '.join(command)}\n    {json.dumps(config)}" for command, config in runner.commands)
    else:
        shutil.rmtree(folder)
    return not differ, said, refusals, len(ways)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first draw; each next one has the next number")
    parser.add_argument("--jobs", type=int, default=2, help="draws at a time")
    parser.add_argument("--keep", action="store_true", help="keep the folders of draws that agree, too")
    args = parser.parse_args()
    agreed, kills, refusals = 0, 0, collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        draws = pool.map(lambda seed: one_draw(args.cleave, seed, args.keep), range(args.seed, args.seed + args.draws))
        for same, said, refused, killed in draws:
            agreed, kills = agreed + same, kills + killed
            refusals.update(refused)
            print(f"{'agrees' if same else 'DIFFERS'}  {said}", flush=True)
    print("\nrefused by the plan:")
    for message, times in refusals.most_common():
        print(f"{times:6}  {message}")
    print(f"\n{agreed} of {args.draws} draws agree ({100 * agreed / args.draws:.1f} %), {kills} jobs were ended early")
    sys.exit(agreed != args.draws)


if __name__ == "__main__":
    main()
