#!/usr/bin/env python3
"""Jobs whose hosts change: lost and returning hosts, and hostfiles that change. hosts.py makes the hosts. Usage: elastic_test.py CLEAVE
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

from hosts import Hosts, why_not
from on_hosts import CLEAVE, OnHosts

BATCH = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2}  # over 1, 2, 3 or 6 ranks


class Output:
    """Collects the lines of a launcher while it runs."""

    def __init__(self, p):
        self.p, self.lines = p, []
        self.threads = [threading.Thread(target=self.read, args=(stream,)) for stream in (p.stdout, p.stderr)]
        for thread in self.threads:
            thread.start()

    def read(self, stream):
        for line in stream:
            self.lines.append(line)

    def text(self):
        return "".join(self.lines)

    def wait_for(self, pattern, seconds=60, after=0):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := re.search(pattern, "".join(self.lines[after:])):
                return found
            if self.p.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no '{pattern}' in {seconds} s\n{self.text()[-4000:]}")

    def end(self, seconds=60):
        code = self.p.wait(timeout=seconds)
        for thread in self.threads:
            thread.join()
        return code


class Elastic(OnHosts):
    hosts_wanted = 3

    @classmethod
    def setUpClass(cls):
        cls.hosts = Hosts(cls.hosts_wanted)
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.__exit__)

    def setUp(self):
        super().setUp()
        self.hostfile.write_text("".join(f"{name} slots=1\n" for name in self.hosts.names))
        self.run_folder = self.dir / "run"

    def train(self, *launch, steps=100000):
        config = self.config(**BATCH, gradient_accumulation_steps=None, zero_optimization={"stage": 2},
                             cleave={"exact_sums": True, "comm_timeout_s": 20})
        self.words = ["train", "--deepspeed_config", config, "--model", "tiny", "--data", self.text, "--seq_len", 32]
        return Output(self.start(*launch, "cleave", *self.words, "--steps", steps, "--output", self.run_folder, "--save_interval", 20))

    def lose(self, name):
        """The host no longer answers, and its processes are gone."""
        self.hosts.stop_server(name)
        self.addCleanup(lambda: name in self.hosts.sshds or self.hosts.start_server(name))
        self.hosts.kill_all(name)

    def digest(self, folder):
        return subprocess.run([CLEAVE, "digest", folder], check=True, capture_output=True, text=True, timeout=60).stdout

    def weights_are_those_of_one_rank(self):
        steps = int(re.search(r'"step":\s*(\d+)', (self.run_folder / (self.run_folder / "latest").read_text().strip() / "manifest.json").read_text())[1])
        alone = self.dir / "alone"
        subprocess.run([CLEAVE, *map(str, self.words), "--steps", str(steps), "--output", alone], check=True, capture_output=True, timeout=100)
        self.assertEqual(self.digest(self.run_folder), self.digest(alone))

    def test_a_lost_host_is_left_out_until_it_answers_again(self):
        out = self.train("--elastic_training")
        out.wait_for("3 hosts")
        out.wait_for("saved .*global_step20")
        self.lose("node-c")
        out.wait_for("launch: restart 1 of 100")
        out.wait_for("2 of 3 hosts answer; no answer from node-c")
        out.wait_for("continues on 2 hosts with 2 ranks: node-a, node-b")
        seen = len(out.lines)
        out.wait_for("resumed from", after=seen)
        self.hosts.start_server("node-c")
        out.wait_for("other hosts are available; the ranks save and stop")
        out.wait_for("continues on 3 hosts with 3 ranks: node-a, node-b, node-c")
        seen = len(out.lines)
        out.wait_for("resumed from", after=seen)
        out.wait_for(r"/100000  loss", after=seen)
        out.p.send_signal(signal.SIGTERM)
        self.assertEqual(out.end(), 75, out.text()[-3000:])
        self.assertEqual(out.text().count("launch: restart"), 1)
        self.weights_are_those_of_one_rank()
        self.nothing_left()

    def test_a_request_to_save_is_no_notice_and_restarts_nothing(self):
        """As SLURM sends it before the end of a job."""
        out = self.train("--elastic_training")
        out.wait_for("saved .*global_step20")
        out.p.send_signal(signal.SIGUSR1)
        self.assertEqual(out.end(), 75, out.text()[-3000:])
        self.assertNotIn("restart", out.text())
        self.nothing_left()

    def test_a_restart_reads_the_hostfile_again(self):
        out = self.train("--max_restarts", "2")
        out.wait_for("saved .*global_step20")
        self.hostfile.write_text("node-a slots=1\nnode-b slots=1\n")
        rank = next(pid for pid, command in self.hosts.processes("node-b").items() if " train " in command and "launch" not in command)
        os.kill(rank, signal.SIGKILL)
        out.wait_for("launch: restart 1 of 2")
        out.wait_for("continues on 2 hosts with 2 ranks: node-a, node-b")
        seen = len(out.lines)
        out.wait_for("resumed from", after=seen)
        out.p.send_signal(signal.SIGTERM)
        self.assertEqual(out.end(), 75, out.text()[-3000:])
        self.weights_are_those_of_one_rank()
        self.nothing_left()

    def test_hosts_that_the_batch_does_not_divide_over_are_not_used(self):
        self.hostfile.write_text("node-a slots=3\nnode-b slots=3\nnode-c slots=1\n")
        out = self.train("--elastic_training", "--num_nodes", "1:3", steps=3)
        self.assertEqual(out.end(), 0, out.text()[-3000:])
        self.assertRegex(out.text(), r"uses 2 of 3 hosts, because .* does not divide over 7 ranks")
        self.weights_are_those_of_one_rank()


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
