#!/usr/bin/env python3
"""Lost ranks that the launcher replaces while the others continue: same weights as in a run without a loss, each step reported once."""
import json
import os
import pathlib
import random
import signal
import time
import unittest

from launched import LaunchTest
from run_test import RunTest

STEPS = 40


class Replace(RunTest):
    def setUp(self):
        super().setUp()
        self.metrics = self.dir / "metrics.jsonl"
        self.random = random.Random(11)
        self.begun = 0

    def ours(self, changes, ranks):
        return self.config(train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=2,
                           cleave={"copies_in_memory": True, **changes.pop("cleave", {})}, **changes)

    def begin(self, changes, *args, ranks=2, restarts=3, steps=STEPS, out="broken"):
        self.begun += out != "over"
        self.out = self.dir / f"{out}_{self.begun}"
        self.metrics = self.dir / f"{self.out.name}.jsonl"
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

    def evaluations(self):
        lines = [json.loads(line) for line in self.metrics.read_text().splitlines()]
        return [(line["step"], line["validation_loss"]) for line in lines if line.get("event") == "evaluation"]

    def holds_all(self, job):
        """Returns true if the launcher has the state of all ranks, in addition to the board."""
        links = [os.readlink(fd) for fd in pathlib.Path(f"/proc/{job.pid}/fd").iterdir() if fd.is_symlink()]
        return sum("memfd:cleave" in link for link in links) > len(self.pids(job))

    def strike(self, job, ranks, step, how=signal.SIGKILL):
        self.wait_for(lambda: ((self.steps() or [0])[-1] >= step and self.holds_all(job)) or job.poll() is not None)
        pids = self.pids(job)
        time.sleep(self.random.uniform(0, 0.05))
        for rank in ranks:
            os.kill(pids[rank], how)
        if how == signal.SIGKILL:
            self.wait_for(lambda: job.poll() is not None or all(self.pids(job).get(r, pids[r]) != pids[r] for r in ranks))

    def digest(self, out):
        return self.run_cleave("digest", out).stdout.split()[0]

    def unbroken(self, changes, ranks, *args):
        job = self.begin(changes, *args, ranks=ranks, out="whole")
        self.end(job, 0)
        return self.digest(self.out)

    def replaced(self, changes, ranks, strikes, *args, want=None):
        """Kills ranks one after the other, each after a step; compares the result."""
        want = want or self.unbroken(changes, ranks, *args)
        job = self.begin(changes, *args, ranks=ranks, restarts=len(strikes), out="broken")
        for rank, step in strikes:
            self.strike(job, [rank], step)
        said = self.end(job, 0)
        for rank, _ in strikes:
            self.assertIn(f"rank {rank} was killed by signal 9 (Killed); it was replaced, and step", said)
        self.assertNotIn("resumed from", said)
        self.assertEqual(self.digest(self.out), want, said)
        self.assertEqual(self.steps(), list(range(1, STEPS + 1)), said)
        return want

    def test_first_middle_and_last_rank_at_each_stage_with_and_without_offload(self):
        for stage in range(4):
            for offload in ({}, {"offload_optimizer": {"device": "cpu"}}) if stage > 0 else ({},):
                with self.subTest(stage=stage, offload=bool(offload)):
                    changes = {"zero_optimization": {"stage": stage, **offload}, "bf16": {"enabled": stage == 2}}
                    self.replaced(changes, 3, [(0, 5), (1, 15), (2, 25)])

    def test_any_rank_of_two(self):
        changes = {"zero_optimization": {"stage": 1}, "gradient_clipping": 0}
        want = self.replaced(changes, 2, [(1, 5), (1, 15)])
        self.replaced(changes, 2, [(0, 7), (0, 12)], want=want)

    def test_a_single_rank(self):
        self.replaced({}, 1, [(0, 6)])

    def test_stages_of_a_pipeline_and_ranks_of_a_tensor_axis(self):
        for changes in ({"pipeline": {"stages": 2}, "zero_optimization": {"stage": 1}}, {"tensor_parallel": {"autotp_size": 2}},
                        {"sequence_parallel_size": 2}):
            with self.subTest(changes=changes):
                self.replaced(changes, 4, [(0, 5), (3, 15), (2, 25)])

    def test_ranks_that_die_at_the_same_time(self):
        changes = {"zero_optimization": {"stage": 2}}
        want = self.unbroken(changes, 4)
        for ranks in ([0, 1], [1, 2, 3], [0, 1, 2, 3]):
            with self.subTest(ranks=ranks):
                job = self.begin(changes, ranks=4, restarts=8, out=f"together_{len(ranks)}")
                self.strike(job, ranks, 6)
                said = self.end(job, 0)
                for rank in ranks:
                    self.assertIn(f"rank {rank} was killed by signal 9 (Killed)", said)
                self.assertEqual(self.digest(self.out), want, said)
                self.assertEqual(self.steps(), list(range(1, STEPS + 1)), said)

    def test_a_rank_that_a_signal_stopped(self):
        changes = {"cleave": {"comm_timeout_s": 3}}
        want = self.unbroken(changes, 3)
        for rank in (0, 2):
            with self.subTest(rank=rank):
                job = self.begin(changes, ranks=3, out=f"stopped_{rank}")
                self.strike(job, [rank], 6, signal.SIGSTOP)
                said = self.end(job, 0)
                self.assertIn(f"rank {rank} hung and was killed; it was replaced", said)
                self.assertEqual(self.digest(self.out), want, said)
                self.assertEqual(self.steps(), list(range(1, STEPS + 1)), said)

    def test_saves_and_evaluations_are_those_of_an_unbroken_run(self):
        for more in ({}, {"checkpoint": {"async": True}}):
            with self.subTest(more=more):
                changes = {"zero_optimization": {"stage": 1}, **more}
                args = ["--save_interval", 4, "--keep", 0, "--eval_data", self.text, "--eval_interval", 3]
                want = self.unbroken(changes, 2, *args)
                whole, losses = self.saved(), self.evaluations()
                self.replaced(changes, 2, [(0, 4), (1, 12), (0, 20)], *args, want=want)
                self.assertEqual(self.evaluations(), losses)
                if more:  # an interrupted background save is repeated in a later step, which may have a save of its own
                    self.assertIn(len(self.saved()), range(len(whole) - 3, len(whole) + 1))
                    self.assertIn(f"global_step{STEPS}", self.saved())
                else:
                    self.assertEqual(self.saved(), whole)
                for folder in self.saved():
                    self.run_cleave("verify", self.out, "--tag", folder)

    def test_more_losses_than_restarts_end_the_job_which_resumes_from_its_newest_checkpoint(self):
        changes = {"zero_optimization": {"stage": 1}}
        want = self.unbroken(changes, 2)
        job = self.begin(changes, "--save_interval", 4, ranks=2, restarts=1, out="over")
        for rank, step in ((1, 6), (1, 16)):
            self.strike(job, [rank], step)
        said = self.end(job, 137)
        self.assertIn("rank 1 was killed by signal 9 (Killed), and is not replaced: --max_restarts 1 allows no further", said)
        self.assertIn("error: rank 1 was killed by signal 9 (Killed)", said)
        self.end(self.begin(changes, "--save_interval", 4, ranks=2, out="over"), 0)
        self.assertEqual(self.digest(self.out), want)

    def test_a_loss_before_the_first_copy_restarts_the_job(self):
        changes = {"zero_optimization": {"stage": 1}}
        want = self.unbroken(changes, 2)
        job = self.begin(changes, ranks=2, restarts=1, out="early")
        self.wait_for(lambda: 1 in self.pids(job))
        os.kill(self.pids(job)[1], signal.SIGKILL)
        said = self.end(job, 0)
        self.assertIn("launch: restart 1 of 1", said)
        self.assertEqual(self.digest(self.out), want)

    def test_a_stop_request_after_a_replacement_saves(self):
        job = self.begin({}, ranks=2, steps=100000, out="asked")
        self.strike(job, [1], 5)
        self.until(job, "it was replaced")
        job.send_signal(signal.SIGTERM)
        self.assertIn("saved", self.end(job, 75))

    def test_without_a_launcher_that_replaces_ranks_the_key_is_a_warning_and_takes_no_memory(self):
        for ranks, launch in ((1, ()), (2, ())):
            job = self.start(steps=2, config=self.ours({}, ranks), ranks=ranks, launch=launch, out=False)
            self.assertIn("warning: cleave.copies_in_memory: no effect", self.end(job, 0))


class SeveralHosts(LaunchTest):
    def test_on_several_hosts_the_key_is_a_warning(self):
        config = self.config(cleave={"copies_in_memory": True})
        r = self.several("--max_restarts", 1, "cleave", "train", "--deepspeed_config", config, "--model", "tiny", "--data", self.text,
                         "--seq_len", 32, "--steps", 2)
        self.assertIn("warning: cleave.copies_in_memory: no effect, because no launcher replaces ranks", r.stdout + r.stderr)


if __name__ == "__main__":
    unittest.main()
