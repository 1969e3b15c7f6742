#!/usr/bin/env python3
"""Measures the cost of saving and loading a state during training: steps with a blocking save, with a background save and without one, in
turns. benchmarks/checkpoint compares saves without a training with the disk.

  saves.py CLEAVE FOLDER [--model gpt2] [--steps 16] [--rounds 5]

FOLDER is on the disk to measure; the script creates and removes it. It needs space for two states. Prints a Markdown table: median, lowest
and highest of the rounds.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import time


def forget(path):
    """Drops the cached pages of a file, so that the next read comes from the disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def copy_seconds(size):
    """Returns the seconds that one core needs to copy `size` bytes between touched memory."""
    part = min(size, 1 << 30)
    a, b = bytearray(os.urandom(1 << 20)) * (part >> 20), bytearray(part)
    b[:] = a
    begin = time.monotonic()
    memoryview(b)[:] = memoryview(a)
    return (time.monotonic() - begin) * size / part


def shown(values, unit, digits=2):
    values = sorted(values)
    return f"{statistics.median(values):.{digits}f} {unit} | {values[0]:.{digits}f} to {values[-1]:.{digits}f}"


class Bench:
    def __init__(self, options):
        self.o, self.dir = options, pathlib.Path(options.folder)
        self.dir.mkdir()
        rng = random.Random(1)
        (self.dir / "text.txt").write_text(" ".join(rng.choice(["light", "water", "earth", "heaven"]) for _ in range(50000)))

    def run(self, out, config={}, *args, steps=None):
        """Returns the time of each output line in seconds since the start, and the milliseconds of each step."""
        path, metrics = self.dir / "ds_config.json", self.dir / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "steps_per_print": 1, "gradient_clipping": 1.0,
                                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, **config}))
        command = [self.o.cleave, "train", "--deepspeed_config", path, "--model", self.o.model, "--data", self.dir / "text.txt",
                   "--seq_len", 128, "--steps", steps or self.o.steps, "--keep", 1, "--metrics", metrics, "--resume_check", "off",
                   *(["--output", self.dir / out] if out else []), *args]
        begin, lines = time.monotonic(), []
        job = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in job.stdout:
            lines.append((time.monotonic() - begin, line.strip()))
        if job.wait():
            raise SystemExit("\n".join(line for _, line in lines))
        rows = map(json.loads, metrics.read_text().splitlines())
        return lines, [row["step_ms"] / 1e3 for row in rows if "step_ms" in row]

    def when(self, lines, part):
        return next(t for t, line in lines if part in line)

    def round(self, of):
        """Appends the measurements of a round to the lists in `of`."""
        interval = self.o.steps // 2
        save = ("--save_interval", interval)
        behind = slice(interval, self.o.steps)  # steps after the first save
        _, none = self.run(None)
        lines, late = self.run("async", {"checkpoint": {"async": True}}, *save)
        saved, first = self.when(lines, f"global_step{interval} in"), self.when(lines, f"step={interval},")
        overlapped = sum(first < t <= saved for t, line in lines if line.startswith("step=")) + 1
        waits, _ = self.run("sync", {}, *save)
        folder = self.dir / "sync" / f"global_step{self.o.steps}"
        size = sum(p.stat().st_size for p in folder.iterdir())
        _, again = self.run(None)
        plain = (sum(none[behind]) + sum(again[behind])) / 2
        step = plain / (self.o.steps - interval)
        copy = copy_seconds(size)
        of["state"].append(size / 1e9)
        of["step"].append(step)
        of["without"].append(abs(sum(none[behind]) - sum(again[behind])) / 2)
        of["waits"].append(self.when(waits, f"step={interval + 1},") - self.when(waits, f"step={interval},") - step)
        of["copy"].append(copy)
        of["background"].append(sum(late[behind]) - plain)
        of["overlapped"].append(overlapped)
        of["more"].append(100 * (sum(late[behind]) - plain - copy) / (overlapped * step))
        for p in folder.iterdir():
            forget(p)
        resumed, _ = self.run("sync", {}, steps=self.o.steps + 1)
        fresh, _ = self.run("fresh", {}, steps=1)
        of["load"].append(size / 1e9 / (self.when(resumed, "resumed from") - self.when(fresh, "model:")))
        shutil.rmtree(self.dir / "fresh")
        shutil.rmtree(self.dir / "async")
        shutil.rmtree(self.dir / "sync")

    def table(self):
        of = collections.defaultdict(list)
        for _ in range(self.o.rounds):
            self.round(of)
        print("| quantity | median | lowest to highest |\n|---|---|---|")
        print(f"| state | {of['state'][0]:.2f} GB | |")
        print(f"| step | {shown(of['step'], 's')} |")
        print(f"| difference of two runs without a save | {shown(of['without'], 's')} |")
        print(f"| blocking save | {shown(of['waits'], 's')} |")
        print(f"| memory of that size, copied | {shown(of['copy'], 's')} |")
        print(f"| a background save adds to the steps after it | {shown(of['background'], 's')} |")
        print(f"| steps that it overlaps | {shown(of['overlapped'], '', 0)} |")
        print(f"| addition beyond the copy, as a share of those steps | {shown(of['more'], '%', 1)} |")
        print(f"| loaded, not in memory before | {shown(of['load'], 'GB/s')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave")
    parser.add_argument("folder")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bench = Bench(options)
    try:
        bench.table()
    finally:
        shutil.rmtree(bench.dir)


if __name__ == "__main__":
    main()
