#!/usr/bin/env python3
"""The launcher on several hosts: ssh, pdsh, SLURM and MPI start the same ranks, and nothing remains after a failure.
Usage: other_hosts_test.py CLEAVE
"""
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from app_test import CLEAVE
from launched import DEEPSPEED, PLACE, LaunchTest

# ssh at far/ssh: its standard input ends if there is a file "cut"; its output continues.
CUT_SSH = """#!/usr/bin/env python3
import os, pathlib, select, subprocess, sys
child = subprocess.Popen([str(pathlib.Path(sys.argv[0]).parent / "far" / "ssh"), *sys.argv[1:]], stdin=subprocess.PIPE)
cut = pathlib.Path(os.environ["FAKE_LOG"]).with_name("cut")
while child.poll() is None:
    if cut.exists() and child.stdin:
        child.stdin.close()
        child.stdin = None
    if child.stdin and select.select([0], [], [], 0.05)[0]:
        child.stdin.write(os.read(0, 65536))
        child.stdin.flush()
sys.exit(child.returncode)
"""

# Replaces mpirun: starts the processes here, in the order of the hosts, with the variables of each kind.
MPI = """#!/usr/bin/env python3
import os, subprocess, sys
a = sys.argv[1:]
world = int(a[a.index("-n") + 1])
at = next(i for i, word in enumerate(a) if word.endswith("/cleave"))
children = []
for rank in range(world):
    env = {**os.environ, "%(rank)s": str(rank), "%(size)s": str(world)}
    children.append(subprocess.Popen(a[at:], env=env))
sys.exit(max(c.wait() for c in children))
"""

# Replaces srun: one task per host; all tasks read this standard input.
SRUN = """#!/usr/bin/env python3
import os, subprocess, sys
a = sys.argv[1:]
at = next(i for i, word in enumerate(a) if word.endswith("/cleave"))
children = []
for n, name in enumerate(a[a.index("--nodelist") + 1].split(",")):
    env = {**os.environ, "SLURMD_NODENAME": name, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(n)}
    children.append(subprocess.Popen(a[at:], env=env, stdin=subprocess.PIPE))
while (words := os.read(0, 65536)):
    for c in children:
        try:
            os.write(c.stdin.fileno(), words)
        except BrokenPipeError:
            pass  # it has ended
    if all(c.poll() is not None for c in children):
        break
sys.exit(max(c.wait() for c in children))
"""


def processes_with(mark):
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if mark.encode() in pathlib.Path(path).read_bytes():
                found.append(int(path.split("/")[2]))
        except OSError:
            pass
    return found


class OtherHosts(LaunchTest):
    def test_hosts_are_reached_and_their_ranks_counted_on(self):
        self.hosts.write_text("node-a slots=1\nnode-b slots=2\n")
        (self.dir / "home" / ".deepspeed_env").write_text("FROM_FILE=home\nBOTH=home\n")
        (self.dir / ".deepspeed_env").write_text('BOTH="of here"\n')
        nasty = "a 'b' \"c\" $HOME `x` \\ ; & | * ä\nnext"
        r = self.several("train.py", nasty, env={"NCCL_TEST": nasty, "NOT_SENT": "x"})
        ranks = self.places(r)
        self.assertEqual(sorted(ranks), [0, 1, 2])
        for n, (local, node, size) in enumerate([(0, 0, 1), (0, 1, 2), (1, 1, 2)]):
            env = ranks[n]["env"]
            self.assertEqual([env[name] for name in PLACE[:-1]],
                             [str(n), str(local), "3", str(size), str(size), str(node), str(node), "2", "127.0.0.1"])
            self.assertEqual(ranks[n]["argv"], [f"--local_rank={local}", nasty])
            self.assertEqual((env["NCCL_TEST"], env["FROM_FILE"], env["BOTH"], env.get("NOT_SENT")), (nasty, "home", "of here", None))
            self.assertEqual(env["CLEAVE_TEST_HOST"], ["node-a", "node-b"][node])
            self.assertEqual(ranks[n]["cwd"], str(self.dir))
        self.assertEqual(len({rank["env"]["CLEAVE_TOKEN"] for rank in ranks.values()}), 1)
        self.assertNotIn(ranks[0]["env"]["CLEAVE_TOKEN"], self.log.read_text())
        self.assertIn("[node-b] Welcome to node-b", r.stdout)
        self.assertIn("launch: 3 ranks on 2 hosts, by ssh: hostfile", r.stderr)

    def test_the_first_host_is_asked_for_an_address_that_its_name_does_not_give(self):
        r = self.deepspeed("-H", self.hosts, "train.py")
        self.assertEqual({rank["env"]["MASTER_ADDR"] for rank in self.places(r).values()}, {"127.0.0.1"})
        for config, address in {"user me\nhostname 127.0.9.9": "127.0.0.1", "hostname 192.0.2.9": "192.0.2.9",
                                "hostname 192.0.2.9\nproxyjump gate": "127.0.0.1"}.items():
            (self.dir / "hosts").write_text("node-a slots=1\n")
            r = self.deepspeed("-H", self.hosts, "--force_multi", "train.py", env={"FAKE_CONFIG": config})
            self.assertEqual(self.places(r)[0]["env"]["MASTER_ADDR"], address, config)

    def test_hosts_train_together_through_gloo(self):
        if "gloo" not in self.run_cleave("report").stdout:
            self.skipTest("built without Gloo")
        train = ["cleave", "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 2]
        losses = {}
        for name, start in {"one": self.deepspeed, "two": self.several}.items():
            metrics = self.dir / f"{name}.jsonl"
            r = start(*(["--num_gpus", 4] if name == "one" else []), *train, "--metrics", metrics)
            losses[name] = [json.loads(line).get("loss") for line in metrics.read_text().splitlines()]
        self.assertIn("gloo over TCP, 4 ranks on 2 hosts", r.stdout)
        self.assertEqual(losses["one"], losses["two"])

    def test_the_cause_is_named_with_its_host(self):
        script = self.dir / "fail.py"
        script.write_text("import os, sys, time\nif os.environ['RANK'] == '2':\n    sys.exit('no luck')\n"
                          "if os.environ['RANK'] == '3':\n    os.kill(os.getpid(), 9) if 'KILL' in sys.argv else None\ntime.sleep(300)\n")
        start = time.monotonic()
        r = self.several("fail.py", code=1)
        self.assertLess(time.monotonic() - start, 300)  # the sleep of the other ranks
        self.assertIn("error: rank 2 on node-b ended with exit code 1", r.stderr)
        self.assertIn("[2] no luck", r.stderr)
        self.assertEqual(processes_with(self.mark), [])

    def test_a_host_that_does_not_answer_is_named(self):
        self.hosts.write_text("node-a slots=1\ngone-b slots=1\n")
        (self.dir / "wait.py").write_text("import time; time.sleep(60)\n")
        r = self.several("wait.py", code=6)
        self.assertIn("error: gone-b is unreachable or was lost: ssh ended with exit code 255: ssh: connect to host gone-b", r.stderr)
        self.assertEqual(processes_with(self.mark), [])
        self.hosts.write_text("node-a slots=1\nnode-b slots=1\n")
        r = self.several("--no_python", "./nothing", code=2)
        self.assertRegex(r.stderr, r"error: node-[ab] rejected its part of the job: .*./nothing: cannot be started")

    def running(self, *args):
        """Starts a job of four running ranks, each with a child process."""
        (self.dir / "wait.py").write_text(
            "import os, signal, subprocess, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit(75)))\n"
            "signal.signal(signal.SIGUSR1, lambda *_: print('save now', flush=True))\n"
            "subprocess.Popen(['sleep', '61'])\n"
            "print('ready', flush=True)\nwhile True: time.sleep(0.05)\n")
        p = subprocess.Popen([DEEPSPEED, "-H", str(self.hosts), "--master_addr", "127.0.0.1", *args, "wait.py"], cwd=self.dir, env=self.env,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.wait_for(p.stdout, "ready")
        return p

    def wait_for(self, out, word, count=4):
        while count:
            line = out.readline()
            self.assertTrue(line, f"the launcher ended before '{word}'")
            count -= word in line

    def nothing_left(self):
        until = time.monotonic() + 60
        while processes_with(self.mark) and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(processes_with(self.mark), [])

    def test_signals_reach_all_hosts(self):
        p = self.running()
        p.send_signal(signal.SIGUSR1)
        self.wait_for(p.stdout, "save now")
        p.send_signal(signal.SIGTERM)
        self.wait_for(p.stdout, "asked")
        p.communicate(timeout=20)
        self.assertEqual(p.returncode, 75)
        self.nothing_left()

    def test_nothing_is_left_when_the_launcher_is_killed(self):
        for launcher in ("ssh", "pdsh"):
            p = self.running("--launcher", launcher)
            p.kill()
            p.communicate(timeout=20)
            self.nothing_left()

    def test_nothing_is_left_when_a_connection_to_a_host_breaks(self):
        p = self.running()
        ways = [pid for pid in processes_with(self.mark) if b"/ssh\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
        self.assertEqual(len(ways), 2)
        os.kill(max(ways), signal.SIGKILL)
        error = p.communicate(timeout=30)[1]
        self.assertEqual(p.returncode, 6, error)
        self.assertRegex(error, r"error: node-[ab] is unreachable or was lost: ssh ended with signal 9")
        self.nothing_left()

    def test_the_end_of_a_hosts_input_alone_ends_its_ranks(self):
        (self.tools / "far").mkdir()
        (self.tools / "ssh").rename(self.tools / "far" / "ssh")
        self.tool("ssh", CUT_SSH)
        p = self.running()
        start = time.monotonic()
        (self.dir / "cut").touch()
        self.wait_for(p.stdout, "asked")
        self.assertLess(time.monotonic() - start, 10)  # the time until silence is noticed
        p.communicate(timeout=20)
        self.assertEqual(p.returncode, 75)
        self.nothing_left()

    def test_mpirun_starts_ranks(self):
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is not installed")
        train = ["train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 2]
        more = ["--allow-run-as-root", "--oversubscribe"]
        losses = []
        self.hosts.write_text("localhost slots=2\n")
        for n, command in enumerate([[CLEAVE, "launch", "-n", 2, "--"], ["mpirun", "-n", 2, *more, CLEAVE],
                                     ["mpirun", "-n", 2, *more, DEEPSPEED, "cleave"],
                                     [DEEPSPEED, "-H", self.hosts, "--force_multi", "--launcher", "openmpi", "--launcher_args", " ".join(more),
                                      "cleave"]]):
            metrics = self.dir / f"{n}.jsonl"
            r = self.deepspeed(*command[1:], *train, "--metrics", metrics, program=command[0])
            self.assertIn("shared memory, 2 ranks", r.stdout)
            losses.append([json.loads(line)["loss"] for line in metrics.read_text().splitlines() if '"loss":' in line])
        self.assertEqual(len(losses[0]), 2)
        self.assertEqual(losses[1:], 3 * losses[:1])
        (self.dir / "die.py").write_text("import os, sys, time\nsys.exit(5) if os.environ['RANK'] == '1' else time.sleep(60)\n")
        r = self.deepspeed("-H", self.hosts, "--force_multi", "--launcher", "openmpi", "--launcher_args", " ".join(more), "die.py", code=5)
        self.assertIn("error: mpirun ended with exit code 5", r.stderr)

    def test_pdsh_and_mpi_start_the_same_ranks(self):
        kinds = {"pdsh": None, "openmpi": ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), "mpich": ("mpirun", "PMI_RANK", "PMI_SIZE"),
                 "mvapich": ("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"), "slurm": None}
        self.tool("srun", SRUN)
        for kind, names in kinds.items():
            if names:
                self.tool(names[0], MPI % {"rank": names[1], "size": names[2]})
            r = self.several("--launcher", kind, "train.py", "a b")
            lines = [re.sub(r"^\[\d+\] ", "", line) for line in r.stdout.splitlines() if '"argv"' in line]
            ranks = sorted((json.loads(line) for line in lines), key=lambda rank: int(rank["env"]["RANK"]))
            self.assertEqual([(int(x["env"]["RANK"]), int(x["env"]["LOCAL_RANK"]), int(x["env"]["NODE_RANK"]), x["argv"]) for x in ranks],
                             [(0, 0, 0, ["--local_rank=0", "a b"]), (1, 1, 0, ["--local_rank=1", "a b"]),
                              (2, 0, 1, ["--local_rank=0", "a b"]), (3, 1, 1, ["--local_rank=1", "a b"])], kind)
            self.assertTrue(all("LC_CLEAVE_JOB" not in x["env"] for x in ranks), kind)
            self.assertEqual(len({x["env"]["CLEAVE_TOKEN"] for x in ranks}), 1)

    def test_each_host_can_be_started_by_hand(self):
        for node in (0, 1):
            ranks = self.places(self.several("--no_ssh", "--node_rank", node, "train.py"))
            self.assertEqual({n: (r["env"]["LOCAL_RANK"], r["env"]["MASTER_PORT"]) for n, r in ranks.items()},
                             {2 * node: ("0", "29500"), 2 * node + 1: ("1", "29500")})
        info = "eyJhIjogWzAsIDFdLCAiYi0yIjogWzNdfQ=="  # {"a": [0, 1], "b-2": [3]}
        self.assertEqual(list(self.places(self.deepspeed("--world_info", info, "--node_rank", 1, "train.py"))), [2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
