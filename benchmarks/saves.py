#!/usr/bin/env python3
"""What saving and loading a large state costs, beside what the disk and the memory of this machine do in the same minutes.

  saves.py CLEAVE FOLDER [--model gpt2] [--steps 12]

FOLDER is on the disk that is measured; it is made and removed, and needs room for three states. Prints a table in Markdown."""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import time

PIECE = 8 << 20


def disk_rates(path, size):
    """GB/s of writing a file in pieces with a sync at the end, and of reading it when it is not in memory."""
    piece = os.urandom(PIECE)
    begin = time.monotonic()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for _ in range(size // PIECE):
        os.write(fd, piece)
    os.fsync(fd)
    written = time.monotonic() - begin
    os.close(fd)
    forget(path)
    begin = time.monotonic()
    fd = os.open(path, os.O_RDONLY)
    while os.read(fd, PIECE):
        pass
    read = time.monotonic() - begin
    os.close(fd)
    path.unlink()
    return size / written / 1e9, size / read / 1e9


def forget(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def copy_rate(size):
    """GB/s of copying memory that both sides have touched."""
    size = min(size, 1 << 30)
    a, b = bytearray(os.urandom(1 << 20)) * (size >> 20), bytearray(size)
    b[:] = a
    begin = time.monotonic()
    memoryview(b)[:] = memoryview(a)
    return size / (time.monotonic() - begin) / 1e9


class Bench:
    def __init__(self, options):
        self.o, self.dir = options, pathlib.Path(options.folder)
        self.dir.mkdir()
        rng = random.Random(1)
        (self.dir / "text.txt").write_text(" ".join(rng.choice(["light", "water", "earth", "heaven"]) for _ in range(50000)))

    def run(self, out, config={}, *args, steps=None):
        """Seconds since the start when each line came."""
        path = self.dir / "ds_config.json"
        path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "steps_per_print": 1, "gradient_clipping": 1.0,
                                    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, **config}))
        command = [self.o.cleave, "train", "--deepspeed_config", path, "--model", self.o.model, "--data", self.dir / "text.txt",
                   "--seq_len", 128, "--steps", steps or self.o.steps, "--keep", 1, *(["--output", self.dir / out] if out else []), *args]
        begin, lines = time.monotonic(), []
        job = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in job.stdout:
            lines.append((time.monotonic() - begin, line.strip()))
        if job.wait():
            raise SystemExit("\n".join(line for _, line in lines))
        return lines

    def from_step(self, lines, first, last):
        at = {int(m[1]): t for t, line in lines if (m := re.match(r"step=(\d+),", line))}
        return at[last] - at[first]

    def when(self, lines, part):
        return next(t for t, line in lines if part in line)

    def table(self):
        o, interval = self.o, self.o.steps // 2
        span = (2, o.steps)  # one save lies between them
        check = ("--resume_check", "off")
        rows, steps = [], o.steps - 2
        none = self.from_step(self.run(None), *span)
        sync = self.from_step(self.run("sync", {}, "--save_interval", interval, *check), *span)
        folder = self.dir / "sync" / f"global_step{o.steps}"
        size = sum(p.stat().st_size for p in folder.iterdir())
        write, read = disk_rates(self.dir / "raw", size)
        copies = copy_rate(size)
        behind = self.run("async", {"checkpoint": {"async": True}}, "--save_interval", interval, *check)
        checked = self.from_step(self.run("checked", {}, "--save_interval", interval), *span)
        again = self.from_step(self.run(None), *span)
        plain = min(none, again)
        rows += [("state", f"{size / 1e9:.2f} GB"), ("disk: written and synced", f"{write:.2f} GB/s"), ("disk: read", f"{read:.2f} GB/s"),
                 ("memory: copied by one core", f"{copies:.1f} GB/s"),
                 (f"{steps} steps without a save", f"{none:.2f} s, and {again:.2f} s at the end"),
                 ("a save that waits adds", f"{sync - plain:.2f} s: {size / 1e9 / (sync - plain):.2f} GB/s"),
                 ("with the loss of the next step", f"{checked - plain:.2f} s"),
                 ("a save behind the training adds", f"{self.from_step(behind, *span) - plain:.2f} s to the same steps; the copy alone "
                  f"would take {size / 1e9 / copies:.2f} s"),
                 ("it was written in", re.search(r"in ([\d.]+ s)", next(line for _, line in behind if re.search(r"saved .* in ", line)))[1])]
        for threads in (1, 2):
            begin = time.monotonic()
            subprocess.run([o.cleave, "verify", self.dir / "sync", "--threads", str(threads)], check=True, capture_output=True)
            rows.append((f"verified from memory, {threads} threads", f"{size / 1e9 / (time.monotonic() - begin):.2f} GB/s"))
        for p in folder.iterdir():
            forget(p)
        lines = self.run("sync", {}, *check)
        fresh = self.run("fresh", {}, *check, steps=0)
        seconds = self.when(lines, "resumed from") - self.when(fresh, "model:")
        rows.append(("loaded, not in memory before", f"{seconds:.2f} s: {size / 1e9 / seconds:.2f} GB/s"))
        print("| what | measured |\n|---|---|")
        for name, value in rows:
            print(f"| {name} | {value} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cleave")
    parser.add_argument("folder")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    bench = Bench(options)
    try:
        bench.table()
    finally:
        shutil.rmtree(bench.dir)


if __name__ == "__main__":
    main()
