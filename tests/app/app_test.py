"""Common parts of the command-line tests: a folder with a text and a configuration, and the program, run like a user does. The first
argument
of every test is the path of the program.
"""
import glob
import json
import os
import pathlib
import pty
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

CLEAVE = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def shared_memory():
    return set(glob.glob("/dev/shm/*cleave*"))


def version_2(manifest):
    """Returns a checkpoint's manifest in format version 2, which has no checksum of its text and can be changed. Its records have one block
    each."""
    rest = {key: value for key, value in manifest.items() if key not in ("block", "shards", "xxh3")}
    return {**rest, "version": 2, "records": [{**r, "xxh3": r["xxh3"][0]} for r in manifest["records"]]}


class AppTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cleave test "))  # a path with a blank
        os.environ["XDG_CACHE_HOME"] = str(self.dir / "cache")
        self.before = shared_memory()
        rng = random.Random(5)
        words = ["light", "water", "earth", "heaven", "and", "the", "was", "upon", "face", "deep"]
        self.text = self.dir / "text.txt"
        self.text.write_text(" ".join(rng.choice(words) for _ in range(4000)) + "\n")

    def tearDown(self):
        self.assertEqual(shared_memory() - self.before, set(), "shared memory remains")
        shutil.rmtree(self.dir)

    def config(self, name="ds_config.json", **changes):
        path = self.dir / name
        path.write_text(json.dumps({**CONFIG, **changes}, indent=1))
        return path

    def run_cleave(self, *args, code=0, env=None, timeout=120):
        r = subprocess.run([CLEAVE, *map(str, args)], capture_output=True, text=True, errors="replace", timeout=timeout,
                           env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})
        self.assertEqual(r.returncode, code, f"{args}\n{r.stdout}\n{r.stderr}")
        return r

    def on_terminal(self, stream, *args, env=None):
        """Runs a command with "stdout" or "stderr" on a terminal; returns its bytes and those of the other stream."""
        terminal, theirs = pty.openpty()
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: theirs}
        with subprocess.Popen([CLEAVE, *args], **streams, env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}) as run:
            os.close(theirs)
            shown = b""
            try:
                while chunk := os.read(terminal, 4096):
                    shown += chunk
            except OSError:  # the other end is closed
                pass
            os.close(terminal)
            other = (run.stdout or run.stderr).read()
        self.assertEqual(run.returncode, 0, other)
        return shown, other

    def times_said(self, part, text):
        """Counts a text in lines of ranks; the launcher's last line repeats the cause."""
        return re.sub(r"(?m)^error: rank \d+ .*ended with exit code.*\n", "", text).count(part)

    def train(self, *args, ranks=2, config=None, steps=3, code=0, env=None, model="tiny"):
        defaults = {"--model": model, "--data": self.text, **({} if "--epochs" in args else {"--steps": steps})}
        command = ["train", "--deepspeed_config", config or self.config(), "--seq_len", 32,
                   *(word for option, value in defaults.items() if option not in args for word in (option, value)), *args]
        if ranks > 1:
            command = ["launch", "-n", ranks, "--", *command]
        return self.run_cleave(*command, code=code, env=env)

    def losses(self, *args, **kwargs):
        metrics = self.dir / f"metrics {time.monotonic_ns()}.jsonl"
        self.train("--metrics", metrics, *args, **kwargs)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual(lines[0]["event"], "start")
        self.assertEqual(lines[-1]["event"], "end")
        return [(line["loss"], line["grad_norm"]) for line in lines if "event" not in line]
