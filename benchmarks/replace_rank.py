#!/usr/bin/env python3
"""Measures cleave.copies_in_memory: steps with and without the copies in turns, and the time from the loss of a rank to the end of the next
step.

  replace_rank.py CLEAVE [--model gpt2] [--ranks 2] [--steps 8] [--rounds 3]

Prints a Markdown table: median, lowest and highest. Other work on the machine moves wall times, so the table also has the CPU times of all ranks.
"""
import argparse
import json
import pathlib
import random
import re
import resource
import signal
import statistics
import subprocess
import tempfile


def shown(values, unit, digits=2):
    values = sorted(values)
    return f"{statistics.median(values):.{digits}f} {unit} | {values[0]:.{digits}f} to {values[-1]:.{digits}f}"


class Bench:
    def __init__(self, options, folder):
        self.o, self.dir = options, pathlib.Path(folder)
        rng = random.Random(1)
        (self.dir / "text.txt").write_text(" ".join(rng.choice(["light", "water", "earth", "heaven"]) for _ in range(400_000)))

    def start(self, copies, steps):
        (self.dir / "metrics.jsonl").unlink(missing_ok=True)
        path = self.dir / "ds_config.json"
        config = {"train_micro_batch_size_per_gpu": self.o.micro, "gradient_accumulation_steps": self.o.accumulation, "gradient_clipping": 1.0,
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": 1}, "steps_per_print": 1,
                  "cleave": {"copies_in_memory": copies}}
        path.write_text(json.dumps(config))
        command = [self.o.cleave, "launch", "-n", self.o.ranks, "--max_restarts", 100, "--", "train", "--deepspeed_config", path, "--model",
                   self.o.model, "--init", "random", "--data", self.dir / "text.txt", "--seq_len", self.o.seq_len, "--steps", steps,
                   "--metrics", self.dir / "metrics.jsonl"]
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def steps(self, copies):
        """Returns the seconds of each step but the first two, and the CPU seconds of all ranks per step."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        job = self.start(copies, self.o.steps)
        said = job.communicate()[0]
        if job.returncode:
            raise SystemExit(said)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rows = map(json.loads, (self.dir / "metrics.jsonl").read_text().splitlines())
        return [row["step_ms"] / 1e3 for row in rows if "step_ms" in row][2:], cpu / self.o.steps

    def pid_of(self, job, rank):
        for task in pathlib.Path(f"/proc/{job.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if f"RANK={rank}".encode() in pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    return int(child)
        raise SystemExit(f"rank {rank} does not run")

    def recoveries(self):
        """Kills the ranks in turn, each after a step, and returns the seconds until the end of the next step."""
        job, found, rank = self.start(True, 4 * self.o.kills + 4), [], 0
        for line in job.stdout:
            step = re.search(r"step=(\d+)", line)
            if step and int(step[1]) % 4 == 3 and len(found) < self.o.kills:
                subprocess.run(["kill", f"-{int(signal.SIGKILL)}", str(self.pid_of(job, rank % self.o.ranks))], check=True)
                rank += 1
            if match := re.search(r"ended ([\d.]+) s after the loss", line):
                found.append(float(match[1]))
        if job.wait():
            raise SystemExit("the job of the losses failed")
        return found

    def table(self):
        walls, cpus = {False: [], True: []}, {False: [], True: []}
        for _ in range(self.o.rounds):
            for copies in (False, True):
                wall, cpu = self.steps(copies)
                walls[copies] += wall
                cpus[copies].append(cpu)
        lost = self.recoveries()
        share = 100 * (statistics.median(walls[True]) / statistics.median(walls[False]) - 1)
        cpu_share = 100 * (statistics.median(cpus[True]) / statistics.median(cpus[False]) - 1)
        print("| quantity | median | lowest to highest |\n|---|---|---|")
        print(f"| step without copies | {shown(walls[False], 's')} |")
        print(f"| step with copies | {shown(walls[True], 's')} |")
        print(f"| added to a step | {share:.1f} % | |")
        print(f"| CPU time of all ranks per step, without copies | {shown(cpus[False], 's')} |")
        print(f"| with copies | {shown(cpus[True], 's')} |")
        print(f"| added CPU time | {cpu_share:.1f} % | |")
        print(f"| loss of a rank to the end of the next step, {len(lost)} losses | {shown(lost, 's', 1)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave")
    parser.add_argument("--model", default="gpt2")
    for name, value in (("ranks", 2), ("steps", 8), ("rounds", 3), ("kills", 4), ("micro", 4), ("accumulation", 4), ("seq_len", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    with tempfile.TemporaryDirectory() as folder:
        Bench(parser.parse_args(), folder).table()


if __name__ == "__main__":
    main()
