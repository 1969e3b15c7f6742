#!/usr/bin/env python3
"""A job on several hosts by real ssh, and by pdsh, Open MPI and MPICH if installed; hosts.py makes the hosts.
number of kills at random moments. Usage: multinode_test.py CLEAVE
"""
import os
import pathlib
import random
import shutil
import signal
import sys
import time
import unittest

from hosts import why_not
from on_hosts import KILLS, OnHosts

# pdsh starts Cleave's launchers, the others start each rank.
KINDS = ["ssh"] + [kind for kind, program in {"pdsh": "pdsh", "openmpi": "mpirun.openmpi", "mpich": "mpirun.mpich"}.items() if shutil.which(program)]
LOST = 12 + 4.5  # seconds until ssh gives up a host, and then until the other ranks have ended


class Multinode(OnHosts):
    def test_hosts_train_as_one_host_does(self):
        losses = self.losses_of_one_host()
        for kind in KINDS:
            metrics = self.dir / f"{kind}.jsonl"
            out, _ = self.end(self.start(*self.training(), "--metrics", metrics, launcher=kind), 0)
            self.assertIn(f"gloo over TCP, {self.ranks} ranks on {len(self.hosts.names)} hosts", out)
            self.assertEqual(self.losses_of(metrics), losses, kind)
            self.nothing_left()

    def test_a_rank_and_a_connection_that_die_on_another_host_are_named(self):
        """Runs two jobs at a time, which do not disturb each other."""
        cut, _ = self.running()
        connection = self.connections("node-b")
        rank, pids = self.running()
        os.kill(pids[3], signal.SIGKILL)
        os.kill(min(connection), signal.SIGKILL)
        out, err = self.end(rank, 137)
        self.assertIn("error: rank 3 on node-b was killed by signal 9 (Killed)", err)
        self.assertIn("[0] asked", out)
        _, err = self.end(cut, 6)
        self.assertIn("error: node-b is unreachable or was lost: ssh ended with exit code 255", err)
        self.nothing_left()

    def test_a_rank_that_hangs_ends_the_job_soon_after_the_deadline(self):
        deadline = 4
        config = self.config(cleave={"comm_timeout_s": deadline})
        for which in range(self.ranks):
            p = self.start("cleave", "train", "--deepspeed_config", config, "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 100000)
            self.wait_for(p, "/100000  loss", 1)
            rank = next(pid for name in self.hosts.names for pid in self.hosts.processes(name) if self.rank_of(pid) == str(which))
            begin = time.monotonic()
            os.kill(rank, signal.SIGSTOP)
            _, err = self.end(p, 6)
            self.assertLess(time.monotonic() - begin, 5 * deadline, f"rank {which}\n{err}")
            self.assertRegex(err.splitlines()[-1], rf"error: rank {which} .*stopped|missing: ranks? [0-9, ]*{which}")
            self.nothing_left()

    def rank_of(self, pid):
        """Returns the rank of a training's process."""
        try:
            if b"train" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2]:
                return None
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None
        return next((entry[5:] for entry in environment if entry.startswith("RANK=")), None)

    def test_signals_reach_all_hosts(self):
        self.signals_reach_all_hosts("ssh")

    def test_nothing_is_left_of_a_killed_launcher(self):
        for kind in KINDS:
            p, _ = self.running(launcher=kind)
            p.kill()  # the process that `ip netns exec` became
            self.end(p, -signal.SIGKILL)
            self.nothing_left()

    def test_a_killed_rank_ends_the_job_of_other_launchers(self):
        for kind in KINDS[1:]:
            p, pids = self.running(launcher=kind)
            os.kill(pids[3], signal.SIGKILL)
            # MPICH's mpirun exits with the signal number, or fails because of the end itself.
            _, err = self.end(p, (9, 255) if kind == "mpich" else 137)
            self.assertRegex(err, "error: rank 3 on node-b was killed by signal 9" if kind == "pdsh" else "error: mpirun (was|ended)")
            self.nothing_left()

    def connections(self, name):
        """Returns the sshd processes of a host that serve a connection."""
        served = [pid for pid, command in self.hosts.processes(name).items() if command.startswith("sshd: ")]
        self.assertTrue(served)
        return served

    def test_a_pulled_cable_is_named_and_ends_the_ranks_of_that_host(self):
        (self.dir / "first").write_text("node-a slots=1\n")
        stopped, _ = self.running(ranks=1, hostfile=self.dir / "first")
        stopped.send_signal(signal.SIGSTOP)
        p, _ = self.running("talk", ssh_options="-o ServerAliveInterval=1")  # the lost launcher's output is not read
        self.hosts.pull_cable("node-b")
        start = time.monotonic()
        _, err = self.end(p, 6)
        self.assertIn("error: node-b is unreachable or was lost: ssh ended with exit code 255: Timeout, server", err)
        while any(not command.startswith("sshd: ") for command in self.hosts.processes("node-b").values()):
            self.assertLess(time.monotonic() - start, 2 * (10 + 1.5))  # silence, a request, a kill
            time.sleep(0.1)
        # A suspended launcher is not a lost one.
        self.assertGreater(time.monotonic() - start, 9)
        time.sleep(2)
        stopped.send_signal(signal.SIGCONT)
        stopped.send_signal(signal.SIGTERM)
        self.end(stopped, 75)
        self.nothing_left(besides=["node-b"])

    @unittest.skipUnless(KILLS, "CLEAVE_TEST_KILLS says how many")
    def test_kills_at_random_moments(self):
        """Kills before the ranks run, while they run, and during output."""
        seed = int(os.environ.get("CLEAVE_TEST_SEED", str(time.time_ns() % 10**6)))
        rng = random.Random(seed)
        for n in range(KILLS):
            what = rng.choice(["rank", "launcher", "connection", "cable"])
            kind = rng.choice(KINDS) if what in ("rank", "launcher") else "ssh"
            with self.subTest(n=n, what=what, kind=kind, seed=seed):
                start = time.monotonic()
                # mpirun starts no ranks while its output is not read.
                p = self.start("wait.py", *rng.choice([[], ["talk"]] if kind in ("ssh", "pdsh") else [[]]), launcher=kind)
                time.sleep(rng.uniform(0, 1.5))
                self.one_kill(p, what, kind, rng)
                print(f"kill {n} {what} of {kind}: {p.returncode}, {time.monotonic() - start:.1f} s", flush=True)
            self.clean()

    def one_kill(self, p, what, kind, rng):
        host = rng.choice(self.hosts.names[1:])
        found = {"rank": "wait.py", "connection": "sshd: "}.get(what, "")
        if (what, kind) == ("rank", "mpich"):  # MPICH's mpirun kills only ranks that have started when the first rank ends
            while any(sum("wait.py" in command for command in self.hosts.processes(name).values()) < 2 for name in self.hosts.names):
                self.assertIsNone(p.poll())
                time.sleep(0.05)
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
        code = (9, 255) if (what, kind) == ("rank", "mpich") else ({"rank": 137, "launcher": -9}.get(what, 6),)
        self.assertIn(p.returncode, code, f"{out[-1000:]}\n{err}")
        if what == "rank" and kind in ("openmpi", "mpich"):
            self.assertIn("error: mpirun", error)
        elif what == "rank":
            self.assertRegex(error, rf"error: rank \d on {host} was killed by signal 9")
        elif what != "launcher":
            self.assertRegex(error, rf"error: {host} is unreachable or was lost: ssh ended with exit code 255")
        self.nothing_left(besides=[host] if what == "cable" else [])


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
