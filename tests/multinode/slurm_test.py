#!/usr/bin/env python3
"""A job on several hosts with a real SLURM, which slurm.py starts on the hosts of hosts.py.
Usage: slurm_test.py CLEAVE
"""
import os
import re
import signal
import sys
import time
import unittest

import hosts
import slurm
from on_hosts import CLEAVE, DEEPSPEED, ROOT, OnHosts


class OnSlurm(OnHosts):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slurm = slurm.Slurm(cls.hosts, slots=2)
        cls.slurm.__enter__()
        cls.addClassCleanup(cls.slurm.__exit__)

    def setUp(self):
        super().setUp()
        self.env |= self.slurm.environment

    def clean(self):
        self.slurm.run("scancel", "--user", "root")
        super().clean()

    def test_ranks_train_as_on_one_host(self):
        losses = self.losses_of_one_host()
        train = self.training()
        once, each = ["srun", "-N2", "--ntasks-per-node", "1"], ["srun", "-n", "4"]
        ways = {"deepspeed alone": [DEEPSPEED, "-H", self.hostfile, "--launcher", "slurm", *train],
                "deepspeed in an allocation": ["salloc", "-Q", "-N2", DEEPSPEED, "-H", self.hostfile, "--launcher", "slurm", *train],
                "a launcher on each host": [*once, DEEPSPEED, "--num_gpus", "2", *train],
                "a launcher for each rank": [*each, DEEPSPEED, *train],
                "srun": [*each, CLEAVE, *train[1:]],
                "srun with PMI": ["srun", "--mpi=pmi2", "-n", "4", CLEAVE, *train[1:]]}
        if slurm.has_pmix():
            ways["srun with PMIx"] = ["srun", "--mpi=pmix", "-n", "4", CLEAVE, *train[1:]]
        for name, words in ways.items():
            metrics = self.dir / f"{name}.jsonl"
            with self.subTest(name):
                out, err = self.end(self.on_first(*words, "--metrics", metrics), 0)
                self.assertIn("gloo over TCP, 4 ranks on 2 hosts", out)
                launched_by_us = name.startswith("deepspeed")
                self.assertEqual((out + err).count("the job has no secret"), 0 if launched_by_us or "PMI" in name else 1)
                self.assertEqual(self.losses_of(metrics), losses)
                self.nothing_left()

    def test_ranks_know_their_place(self):
        out, _ = self.end(self.on_first("srun", "-n", "4", "--label", CLEAVE, "report", "--env"), 0)
        said = dict(re.findall(r"^(\d): a rank: +(.*), master node-a:\d+, attempt 0: SLURM, srun", out, re.MULTILINE))
        self.assertEqual(said, {str(rank): f"rank {rank} of 4, local rank {rank % 2} of 2, node {rank // 2} of 2" for rank in range(4)})
        names = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURMD_NODENAME"]
        (self.dir / "place.py").write_text(f"import os; print(*[os.environ[name] for name in {names}])\n")
        for words in [["srun", "-N2", "--ntasks-per-node", "1", DEEPSPEED, "--num_gpus", "2"], [DEEPSPEED, "-H", self.hostfile, "--launcher", "slurm"]]:
            out, _ = self.end(self.on_first(*words, "place.py"), 0)
            self.assertEqual(sorted(re.findall(r"\[(\d)\] (.*)", out)),
                             [(str(r), f"{r} {r % 2} {r // 2} 4 node-{'ab'[r // 2]}") for r in range(4)])

    def test_hosts_have_their_order_and_slots_of_the_hostfile(self):
        self.hostfile.write_text("node-b slots=1\nnode-a slots=3\n")
        (self.dir / "place.py").write_text("import os; print(os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['SLURMD_NODENAME'])\n")
        out, _ = self.end(self.start("place.py", launcher="slurm"), 0)
        self.assertEqual(sorted(re.findall(r"\[\d\] (.*)", out)), ["0 0 node-b", "1 0 node-a", "2 1 node-a", "3 2 node-a"])

    def test_long_lines_of_several_hosts_stay_whole(self):
        (self.dir / "long.py").write_text("import os\nfor _ in range(300):\n  print(os.environ['RANK'] * 5000, flush=True)\n")
        out, _ = self.end(self.start("long.py", launcher="slurm"), 0)
        self.assertEqual(sorted(out.split("\n")[:-1]), [f"[{rank}] {str(rank) * 5000}" for rank in range(4) for _ in range(300)])

    def test_signals_reach_all_hosts(self):
        self.signals_reach_all_hosts("slurm")

    def test_a_killed_rank_is_named(self):
        p, pids = self.running(launcher="slurm")
        os.kill(pids[3], signal.SIGKILL)
        out, err = self.end(p, 137)
        self.assertIn("error: rank 3 on node-b was killed by signal 9 (Killed)", err)
        self.assertIn("[0] asked", out)
        self.nothing_left()

    def test_nothing_is_left_of_a_killed_launcher(self):
        p, _ = self.running(launcher="slurm")
        p.kill()
        self.end(p, -signal.SIGKILL)
        self.nothing_left()

    def test_nothing_is_left_of_a_killed_srun(self):
        p, _ = self.running(launcher="slurm")
        for pid, command in self.hosts.processes("node-a").items():
            if command.startswith("srun "):
                os.kill(pid, signal.SIGKILL)
        _, err = self.end(p, 6)
        self.assertIn("error: slurm is unreachable or was lost: the launcher ended with signal 9", err)
        self.nothing_left(seconds=10 + 5)  # without a message

    def test_slurm_rejects_an_unknown_host(self):
        self.hostfile.write_text("node-a slots=2\nnode-z slots=2\n")
        _, err = self.end(self.start("wait.py", launcher="slurm"), 6)
        self.assertRegex(err, "error: slurm is unreachable or was lost: the launcher ended with exit code 1: srun: error: .*node")
        self.nothing_left()

    def test_the_example_saves_on_a_signal_is_requeued_and_resumes(self):
        train = {"CLEAVE": CLEAVE, "DS_CONFIG": self.config(), "DATA": self.text, "OUTPUT": self.dir / "out", "SEQ_LEN": "32", "STEPS": "100000"}
        self.env |= {name: str(value) for name, value in train.items()}
        out, _ = self.end(self.on_first("sbatch", "--parsable", "--ntasks-per-node", "2", "--cpus-per-task", "1", "--output", "log",
                                        ROOT / "examples/slurm/train.sbatch"), 0)
        job, metrics = out.strip(), self.dir / "out.jsonl"
        self.until(lambda: metrics.exists() and len(self.losses_of(metrics)) > 3)
        # SLURM sends it in this way for --signal=USR1@300.
        self.assertEqual(self.slurm.run("scancel", "--signal", "USR1", job).returncode, 0)
        self.until(lambda: f"the training was saved; job {job} is queued again" in self.log())
        saved = int(re.search(r"global_step(\d+)", (self.dir / "out" / "latest").read_text())[1])
        # SLURM delays a requeued job by two minutes; the test starts it earlier.
        self.until(lambda: self.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2seconds").returncode == 0)
        self.until(lambda: f"at step {saved}" in self.log())
        self.slurm.run("scancel", job)  # ends the ranks within SLURM's time
        self.nothing_left(seconds=40)

    def until(self, done, seconds=40):
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                self.fail(self.log() + self.slurm.run("scontrol", "show", "job").stdout + self.slurm.logs())
            time.sleep(0.1)

    def log(self):
        return (self.dir / "log").read_text() if (self.dir / "log").exists() else ""


if __name__ == "__main__":
    if reason := slurm.why_not() or hosts.why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
