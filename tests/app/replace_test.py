#!/usr/bin/env python3
"""Lost ranks that the launcher replaces while the others continue: same weights as in a run without a loss, each step reported once."""
import json
import os
import pathlib
import random
import signal
import time
import unittest

from run_test import RunTest

STEPS = 40


class Replace(RunTest):
    def setUp(self):
        super().setUp()
        self.metrics = self.dir / "metrics.jsonl"
        self.random = random.Random(11)

    def ours(self, changes, ranks):
        return self.config(train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=2,
                           cleave={"copies_in_memory": True, **changes.pop("cleave", {})}, **changes)

    def begin(self, changes, *args, ranks=2, restarts=3, steps=STEPS, out="broken"):
        self.out = self.dir / out
        self.metrics = self.dir / f"{out}.jsonl"
        command = ["--metrics", self.metrics, *args]
        return self.start(*command, steps=steps, config=self.ours(dict(changes), ranks), ranks=ranks, launch=["--max_restarts", restarts])

    def pids(self, job):
        """Returns the process of each rank."""
        found = {}
        for task in pathlib.Path(f"/proc/{job.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                try:
                    environment = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                rank = [e[5:] for e in environment if e.startswith(b"RANK=")]
                if rank:
                    found[int(rank[0])] = int(child)
        return found

    def steps(self):
        """Returns the reported steps; a line may be incomplete."""
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "loss" in event:
                found.append(event["step"])
        return found

    def strike(self, job, ranks, step, how=signal.SIGKILL):
        self.wait_for(lambda: (self.steps() or [0])[-1] >= step or job.poll() is not None)
        pids = self.pids(job)
        time.sleep(self.random.uniform(0, 0.05))
        for rank in ranks:
            os.kill(pids[rank], how)

    def digest(self, out):
        return self.run_cleave("digest", out).stdout.split()[0]

    def unbroken(self, changes, ranks, *args):
        job = self.begin(changes, *args, ranks=ranks, out="whole")
        self.end(job, 0)
        return self.digest(self.out)

    def replaced(self, changes, ranks, strikes, *args, want=None):
        """Kills ranks one after the other, each after a step; compares the result."""
        want = want or self.unbroken(changes, ranks, *args)
        name = "broken" + "".join(f"_{rank}" for rank, _ in strikes)
        job = self.begin(changes, *args, ranks=ranks, restarts=len(strikes), out=name)
        for rank, step in strikes:
            self.strike(job, [rank], step)
        said = self.end(job, 0)
        for rank, _ in strikes:
            self.assertIn(f"rank {rank} was killed by signal 9 (Killed); it was replaced, and step", said)
        self.assertNotIn("resumed from", said)
        self.assertEqual(self.digest(self.out), want, said)
        self.assertEqual(self.steps(), list(range(1, STEPS + 1)), said)
        return want

    def test_any_rank_of_two_at_stage_1(self):
        want = self.replaced({"zero_optimization": {"stage": 1}}, 2, [(1, 5)])
        self.replaced({"zero_optimization": {"stage": 1}}, 2, [(0, 7)], want=want)


if __name__ == "__main__":
    unittest.main()
