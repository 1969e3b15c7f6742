"""Common parts of tests with several hosts: the hosts, a job that waits on them, and its end."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "app"))
from app_test import ROOT, AppTest, CLEAVE  # noqa: E402, F401
from hosts import Hosts  # noqa: E402

DEEPSPEED = str(pathlib.Path(CLEAVE).parent / "deepspeed")
KILLS = int(os.environ.get("CLEAVE_TEST_KILLS", "0"))
SCRIPT = """import os, signal, subprocess, sys, time
def say(text):  # in one piece, since mpirun mixes those of several ranks
    os.write(1, (text + chr(10)).encode())
signal.signal(signal.SIGTERM, lambda *_: (say('asked'), sys.exit(75)))
signal.signal(signal.SIGUSR1, lambda *_: say('save now'))
subprocess.Popen(['sleep', '77'])
say(f"ready {os.environ['RANK']} {os.getpid()}")
while True:
    time.sleep(0.02)
    if 'talk' in sys.argv:
        say('x' * 10000)
"""


class OnHosts(AppTest):
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
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(self.dir), "PDSH_SSH_ARGS_APPEND": self.hosts.ssh_options,
                    "HYDRA_LAUNCHER_EXTRA_ARGS": self.hosts.ssh_options}

    def clean(self):
        """Cleans up, so that a failed test does not affect the next one."""
        for name in self.hosts.names:
            self.hosts.plug_cable(name)
            self.hosts.kill_all(name)

    def start(self, *args, launcher="ssh", hostfile=None, ssh_options=""):
        own = ["--master_addr", self.hosts.address(self.hosts.names[0])]
        if launcher == "openmpi":
            own += ["--launcher_args", f"--allow-run-as-root --mca plm_rsh_args '{self.hosts.ssh_options}' --mca oob_tcp_if_include eth0"]
        if launcher == "ssh":
            own = ["--launcher_args", f"{self.hosts.ssh_options} {ssh_options}"]  # also used to ask the first host for its address
        return self.on_first(DEEPSPEED, "-H", hostfile or self.hostfile, "--force_multi", "--launcher", launcher, *own, *args,
                             inside=self.hosts.named if launcher in ("mpich", "slurm") else self.hosts.inside)

    def on_first(self, *command, inside=None):
        """Starts a command on the first host, which knows all names unless `inside` says otherwise."""
        return subprocess.Popen((inside or self.hosts.named)(self.hosts.names[0], *command), cwd=self.dir, env=self.env, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def end(self, p, code, timeout=40):
        try:
            out, err = p.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            self.fail(f"the launcher has not ended\n{out[-3000:]}\n{err[-3000:]}")
        self.assertIn(p.returncode, code if isinstance(code, tuple) else (code,), f"{out[-3000:]}\n{err[-3000:]}")
        return out, err

    def running(self, *args, ranks=None, **kwargs):
        """Starts a job with running ranks, each with a child process; returns the rank processes by rank."""
        p = self.start("wait.py", *args, **kwargs)
        pids = {}
        while len(pids) < (ranks or self.ranks):
            line = p.stdout.readline()
            self.assertTrue(line, "the launcher ended before all ranks ran")
            if m := re.search(r"ready (\d+) (\d+)", line):
                pids[int(m[1])] = int(m[2])
        return p, pids

    def training(self):
        """Returns a short training as words of a command."""
        return ["cleave", "train", "--deepspeed_config", self.config(zero_optimization={"stage": 2}), "--model", "tiny", "--data", self.text,
                "--seq_len", 32, "--steps", 3]

    def losses_of(self, metrics):
        return [json.loads(line)["loss"] for line in metrics.read_text().splitlines() if '"loss":' in line]

    def losses_of_one_host(self):
        metrics = self.dir / "one.jsonl"
        subprocess.run([CLEAVE, "launch", "-n", str(self.ranks), "--", *map(str, self.training()[1:]), "--metrics", metrics], check=True,
                       capture_output=True, env=self.env)
        losses = self.losses_of(metrics)
        self.assertEqual(len(losses), 3)
        return losses

    def wait_for(self, p, word, count):
        while count:
            line = p.stdout.readline()
            self.assertTrue(line, f"the launcher ended before '{word}'")
            count -= word in line

    def signals_reach_all_hosts(self, launcher):
        p, _ = self.running(launcher=launcher)
        p.send_signal(signal.SIGUSR1)
        self.wait_for(p, "save now", self.ranks)
        p.send_signal(signal.SIGTERM)
        self.wait_for(p, "asked", self.ranks)
        self.end(p, 75)
        self.nothing_left()

    def nothing_left(self, seconds=5, besides=()):
        """Checks that no process remains on a host, except sshd: its processes of a cut connection stay until TCP gives up."""
        until = time.monotonic() + seconds
        while True:
            left = {(name, pid): command for name in self.hosts.names for pid, command in self.hosts.processes(name).items()
                    if not (name in besides and command.startswith("sshd: "))}
            if not left:
                return
            self.assertLess(time.monotonic(), until, f"left after {seconds} s: {left}")
            time.sleep(0.05)
