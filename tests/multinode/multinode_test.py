#!/usr/bin/env python3
"""A job on several hosts, through real ssh, pdsh and Open MPI where they are installed: hosts.py makes the hosts.
CLEAVE_TEST_KILLS=60 adds so many kills at random moments.
Usage: multinode_test.py CLEAVE"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "app"))
from app_test import AppTest, CLEAVE  # noqa: E402
from hosts import Hosts, why_not  # noqa: E402

DEEPSPEED = str(pathlib.Path(CLEAVE).parent / "deepspeed")
KILLS = int(os.environ.get("CLEAVE_TEST_KILLS", "0"))
LOST = 12 + 4.5  # seconds until ssh gives a host up, and then until the other ranks have been ended
SCRIPT = """import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit(75)))
signal.signal(signal.SIGUSR1, lambda *_: print('save now', flush=True))
subprocess.Popen(['sleep', '77'])
print('ready', os.getpid(), flush=True)
while True:
    time.sleep(0.02)
    if 'talk' in sys.argv:
        print('x' * 10000, flush=True)
"""


class Multinode(AppTest):
    @classmethod
    def setUpClass(cls):
        cls.hosts = Hosts(2 if not KILLS else 4)
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.__exit__)

    def setUp(self):
        super().setUp()
        self.addCleanup(self.clean)
        self.hostfile = self.dir / "hostfile"
        self.hostfile.write_text("".join(f"{name} slots=2\n" for name in self.hosts.names))
        self.ranks = 2 * len(self.hosts.names)
        (self.dir / "wait.py").write_text(SCRIPT)
        (self.dir / ".deepspeed_env").write_text("OMP_NUM_THREADS=1\n")
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(self.dir), "PDSH_SSH_ARGS_APPEND": self.hosts.ssh_options}

    def clean(self):
        """So that a test that failed leaves nothing to the next one."""
        for name in self.hosts.names:
            self.hosts.plug_cable(name)
            self.hosts.kill_all(name)

    def start(self, *args, launcher="ssh", hostfile=None, ssh_options=""):
        own = ["--master_addr", self.hosts.address(self.hosts.names[0])]
        if launcher == "openmpi":
            own += ["--launcher_args", f"--allow-run-as-root --mca plm_rsh_args '{self.hosts.ssh_options}' --mca oob_tcp_if_include eth0"]
        if launcher == "ssh":
            own = ["--launcher_args", f"{self.hosts.ssh_options} {ssh_options}"]  # which also ask the first host for its address
        return subprocess.Popen(self.hosts.inside(self.hosts.names[0], DEEPSPEED, "-H", hostfile or self.hostfile, "--force_multi",
                                                  "--launcher", launcher, *own, *args),
                                cwd=self.dir, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)

    def end(self, p, code, timeout=40):
        try:
            out, err = p.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            self.fail(f"the launcher has not ended\n{out[-3000:]}\n{err[-3000:]}")
        self.assertEqual(p.returncode, code, f"{out[-3000:]}\n{err[-3000:]}")
        return out, err

    def running(self, *args, ranks=None, **kwargs):
        """A job whose ranks run, each with a child of its own, and its ranks' processes by rank."""
        p = self.start("wait.py", *args, **kwargs)
        pids = {}
        while len(pids) < (ranks or self.ranks):
            line = p.stdout.readline()
            self.assertTrue(line, "the launcher ended before all ranks ran")
            if m := re.search(r"\[(\d+)\] ready (\d+)", line):
                pids[int(m[1])] = int(m[2])
        return p, pids

    def wait_for(self, p, word, count):
        while count:
            line = p.stdout.readline()
            self.assertTrue(line, f"the launcher ended before '{word}'")
            count -= word in line

    def nothing_left(self, seconds=5, besides=()):
        """On any host but sshd, whose processes of a connection that was cut stay until TCP gives it up."""
        until = time.monotonic() + seconds
        while True:
            left = {(name, pid): command for name in self.hosts.names for pid, command in self.hosts.processes(name).items()
                    if not (name in besides and command.startswith("sshd: "))}
            if not left:
                return
            self.assertLess(time.monotonic(), until, f"left after {seconds} s: {left}")
            time.sleep(0.05)

    def test_hosts_train_as_one_host_does(self):
        train = ["cleave", "train", "--deepspeed_config", self.config(zero_optimization={"stage": 2}), "--model", "tiny", "--data", self.text,
                 "--seq_len", 32, "--steps", 3]
        losses = {}
        kinds = ["ssh"] + [kind for kind, program in {"pdsh": "pdsh", "openmpi": "mpirun"}.items() if shutil.which(program)]
        for kind in ["one", *kinds]:
            metrics = self.dir / f"{kind}.jsonl"
            if kind == "one":
                subprocess.run([CLEAVE, "launch", "-n", str(self.ranks), "--", *map(str, train[1:]), "--metrics", metrics], check=True,
                               capture_output=True, env=self.env)
            else:
                out, _ = self.end(self.start(*train, "--metrics", metrics, launcher=kind), 0)
                self.assertIn(f"gloo over TCP, {self.ranks} ranks on {len(self.hosts.names)} hosts", out)
                self.nothing_left()
            losses[kind] = [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if '"loss":' in line]
        self.assertEqual(len(losses["one"]), 3)
        for kind in kinds:
            self.assertEqual(losses[kind], losses["one"], kind)

    def test_a_rank_and_a_connection_that_die_elsewhere_are_named(self):
        """In two jobs at a time, of which neither disturbs the other."""
        cut, _ = self.running()
        connection = self.connections("node-b")
        rank, pids = self.running()
        os.kill(pids[3], signal.SIGKILL)
        os.kill(min(connection), signal.SIGKILL)
        out, err = self.end(rank, 137)
        self.assertIn("error: rank 3 on node-b was killed by signal 9 (Killed)", err)
        self.assertIn("[0] asked", out)
        _, err = self.end(cut, 6)
        self.assertIn("error: node-b was not reached or was lost: ssh ended with exit code 255", err)
        self.nothing_left()

    def test_signals_reach_all_hosts(self):
        p, _ = self.running()
        p.send_signal(signal.SIGUSR1)
        self.wait_for(p, "save now", self.ranks)
        p.send_signal(signal.SIGTERM)
        self.wait_for(p, "asked", self.ranks)
        self.end(p, 75)
        self.nothing_left()

    def test_nothing_is_left_of_a_killed_launcher(self):
        for launcher in ["ssh"] + (["pdsh"] if shutil.which("pdsh") else []):
            p, _ = self.running(launcher=launcher)
            p.kill()  # `ip netns exec` became it
            self.end(p, -signal.SIGKILL)
            self.nothing_left()

    def connections(self, name):
        """The processes of a host's sshd that serve one."""
        served = [pid for pid, command in self.hosts.processes(name).items() if command.startswith("sshd: ")]
        self.assertTrue(served)
        return served

    def test_a_pulled_cable_is_named_and_ends_the_ranks_behind_it(self):
        (self.dir / "first").write_text("node-a slots=1\n")
        stopped, _ = self.running(ranks=1, hostfile=self.dir / "first")
        stopped.send_signal(signal.SIGSTOP)
        p, _ = self.running("talk", ssh_options="-o ServerAliveInterval=1")  # the lost host's launcher must not wait for its output to be taken
        self.hosts.pull_cable("node-b")
        start = time.monotonic()
        _, err = self.end(p, 6)
        self.assertIn("error: node-b was not reached or was lost: ssh ended with exit code 255: Timeout, server", err)
        while any(not command.startswith("sshd: ") for command in self.hosts.processes("node-b").values()):
            self.assertLess(time.monotonic() - start, 10 + 1.5 + 5)  # without a word, to ask, to kill; and a slow machine
            time.sleep(0.1)
        # A launcher that stands still is not one that is gone.
        self.assertGreater(time.monotonic() - start, 9)
        time.sleep(2)
        stopped.send_signal(signal.SIGCONT)
        stopped.send_signal(signal.SIGTERM)
        self.end(stopped, 75)
        self.nothing_left(besides=["node-b"])

    @unittest.skipUnless(KILLS, "CLEAVE_TEST_KILLS says how many")
    def test_kills_at_random_moments(self):
        """Before the ranks run, while they do, in the middle of output."""
        seed = int(os.environ.get("CLEAVE_TEST_SEED", str(time.time_ns() % 10**6)))
        rng = random.Random(seed)
        for n in range(KILLS):
            what = rng.choice(["rank", "launcher", "connection", "cable"])
            with self.subTest(n=n, what=what, seed=seed):
                start = time.monotonic()
                p = self.start("wait.py", *rng.choice([[], ["talk"]]))
                time.sleep(rng.uniform(0, 1.5))
                self.one_kill(p, what, rng)
                print(f"kill {n} {what}: {p.returncode}, {time.monotonic() - start:.1f} s", flush=True)
            self.clean()

    def one_kill(self, p, what, rng):
        host = rng.choice(self.hosts.names[1:])
        found = {"rank": "wait.py", "connection": "sshd: "}.get(what, "")
        while what in ("rank", "connection"):
            pids = [pid for pid, command in self.hosts.processes(host).items() if found in command and "--launcher" not in command]
            if pids:
                break
            self.assertIsNone(p.poll())
        if what == "cable":
            self.hosts.pull_cable(host)
        else:
            os.kill(p.pid if what == "launcher" else rng.choice(pids), signal.SIGKILL)
        out, err = p.communicate(timeout=LOST + 15)
        error = err.splitlines()[-1] if err.strip() else ""
        self.assertEqual(p.returncode, {"rank": 137, "launcher": -9}.get(what, 6), f"{out[-1000:]}\n{err}")
        if what == "rank":
            self.assertRegex(error, rf"error: rank \d on {host} was killed by signal 9")
        elif what != "launcher":
            self.assertRegex(error, rf"error: {host} was not reached or was lost: ssh ended with exit code 255")
        self.nothing_left(besides=[host] if what == "cable" else [])


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
