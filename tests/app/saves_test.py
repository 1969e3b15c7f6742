#!/usr/bin/env python3
"""Saves during a run: in the background, on a disk that fills up, into a folder that is removed."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from app_test import AppTest, CLEAVE

ASYNC = {"checkpoint": {"async": True}}


class Saves(AppTest):
    def setUp(self):
        super().setUp()
        self.out = self.dir / "out"

    def saved(self, out=None):
        return sorted(p.name for p in pathlib.Path(out or self.out).iterdir() if p.is_dir() and p.name != "flight")

    @contextlib.contextmanager
    def started(self, *args, out=None, ranks=2, config=None):
        command = [CLEAVE, "launch", "-n", ranks, "--", "train", "--deepspeed_config", config or self.config(), "--model", "tiny",
                   "--data", self.text, "--seq_len", 32, "--steps", 100000, "--output", out or self.out, *args]
        job = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            yield job
        finally:
            if job.poll() is None:
                job.kill()
            job.stdout.close()
            job.wait(60)

    def until(self, job, part):
        said = []
        for line in job.stdout:
            said.append(line)
            if part in line:
                return "".join(said)
        self.fail(f"'{part}' was not said:\n{''.join(said)}")

    def test_background_saves_give_the_losses_and_checkpoints_of_blocking_ones(self):
        for name, config in (("waits", {}), ("behind", ASYNC), ("nebula", {"nebula": {"enabled": True, "num_of_version_in_retention": 3}})):
            out = self.dir / name
            metrics = self.dir / f"{name}.jsonl"
            said = self.train("--output", out, "--save_interval", 2, "--keep_every", 4, "--metrics", metrics, steps=10,
                              config=self.config(zero_optimization={"stage": 2}, **config)).stdout
            losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if "event" not in json.loads(line)]
            digests = {tag: self.run_cleave("digest", out, "--tag", tag).stdout for tag in self.saved(out)}
            if name == "waits":
                want = losses, digests
                self.assertEqual(list(digests), ["global_step10", "global_step4", "global_step8"])
                self.assertNotIn("in the background", said)
                continue
            self.assertEqual(losses, want[0])
            self.assertEqual({tag: digests[tag] for tag in want[1]}, want[1])
            self.assertEqual(said.count("in the background"), 5, said)
            self.assertEqual(sum(" in " in line and "saved " in line for line in said.splitlines()), 5, said)
            self.assertEqual(len(digests), 3 if name == "behind" else 4)  # also of step 6
            self.run_cleave("verify", out)

    def test_the_copy_is_planned_and_an_error_if_it_does_not_fit(self):
        config = self.config(**ASYNC)
        plan = json.loads(self.run_cleave("plan", "--deepspeed_config", config, "--model", "tiny", "--seq_len", 32, "--world_size", 2,
                                          "--json").stdout)
        copies = [rank["memory"]["host"]["checkpoint"] for rank in plan["ranks"] for _ in rank["ranks"]]
        self.assertEqual(sum(copies), 12 * plan["parameters"])
        for command in (["plan", "--world_size", 2], ["train", "--data", self.text]):
            r = self.run_cleave(command[0], "--deepspeed_config", config, "--model", "tiny", "--seq_len", 32, *command[1:],
                                "--host_memory", "3MB", code=3)
            self.assertIn("checkpoint.async false", r.stdout + r.stderr)

    def test_a_failed_background_save_ends_all_ranks_with_the_cause_and_the_last_one_stays(self):
        disk = self.dir / "small disk"
        disk.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk]).returncode:
            self.skipTest("needs to mount a small tmpfs")
        try:
            with self.started("--save_interval", 20, out=disk, config=self.config(**ASYNC)) as job:
                said = self.until(job, "error: ") + job.stdout.read()
                self.assertEqual(job.wait(60), 4, said)
            self.assertIn("No space left on device", said)
            self.assertIn("global_step40: not saved, earlier checkpoints are unchanged:", said)
            self.assertIn("global_step20", (disk / "latest").read_text())
            self.assertEqual(self.saved(disk), ["global_step20"])
            self.run_cleave("verify", disk)
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_a_run_that_diverges_waits_for_the_save_before_it(self):
        diverges = {"optimizer": {"type": "SGD", "params": {"lr": 1e30}}, "gradient_clipping": 1e30}
        self.train("--output", self.out, "--save_interval", 1, "--keep", 0, steps=20, config=self.config(**diverges, **ASYNC), code=5)
        for tag in self.saved():
            self.run_cleave("verify", self.out, "--tag", tag)
        self.assertFalse([name for name in self.saved() if name.startswith(".")])

    def test_a_folder_removed_during_the_run_is_named_and_created_again(self):
        for config in ({}, ASYNC):
            # There are many steps between two saves, so that none is in progress when the folder is removed.
            with self.started("--save_interval", 1000, config=self.config(**config)) as job:
                self.until(job, "saved ")
                moved = self.dir / "moved"
                self.out.rename(moved)
                shutil.rmtree(moved)
                self.until(job, f"{self.out} was removed during this run; the run created it again, and earlier checkpoints")
                self.until(job, "saved ")
                (self.out / "run.lock").unlink()
                self.until(job, "run.lock was removed during this run; the run created it again, and earlier checkpoints")
                self.until(job, "saved ")
                job.send_signal(signal.SIGTERM)
                rest = job.stdout.read()
                self.assertEqual(job.wait(60), 75, rest)
            self.run_cleave("verify", self.out)
            shutil.rmtree(self.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
