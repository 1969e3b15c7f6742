#!/usr/bin/env python3
"""The launcher as users type it: scripts, programs and cleave's training, here and on other hosts. Other hosts are this machine under other
names: an ssh in PATH runs its command through a shell, as sshd does. Usage: launching_test.py CLEAVE
"""
import glob
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from app_test import AppTest, CLEAVE, ROOT

DEEPSPEED = str(pathlib.Path(CLEAVE).parent / "deepspeed")
PLACE = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "NODE_RANK", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR",
         "MASTER_PORT"]
# Each rank prints with one write of less than a page, so that outputs do not mix.
SCRIPT = f"""import json, os, sys
names = {PLACE} + ["NCCL_TEST", "FROM_FILE", "BOTH", "NOT_SENT", "FROM_VENV"]
env = {{n: v for n, v in os.environ.items() if n in names or "CLEAVE_" in n}}
os.write(1, (json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": env}}) + "\\n").encode())
"""

# Replaces ssh: the command is text for a shell, and the environment contains only variables that ssh may send. A host with a name that
# starts with "gone" does not answer. Records its calls.
SSH = """#!/usr/bin/env python3
import json, os, signal, subprocess, sys
arguments = sys.argv[1:]
open(os.environ["FAKE_LOG"], "a").write(json.dumps(arguments) + "\\n")
at = arguments.index("--") if "--" in arguments else len(arguments) - 2
host, command = arguments[at + 1], " ".join(arguments[at + 2:])
if "-G" in arguments:
    print(os.environ.get("FAKE_CONFIG", "hostname " + host))
    sys.exit(0)
if host.startswith("gone"):
    print(f"ssh: connect to host {host} port 22: No route to host", file=sys.stderr)
    sys.exit(255)
if command == "hostname -I":
    print("127.0.0.1 10.0.0.4")
    sys.exit(0)
keep = ["HOME", "PATH", "FAKE_LOG"] + [n for n in os.environ if n.startswith("LC_") or n.startswith("CLEAVE_TEST_MARK")]
env = {n: os.environ[n] for n in keep if n in os.environ}
env["CLEAVE_TEST_HOST"] = host
print("Welcome to", host)
sys.stdout.flush()
# sshd continues after its client is gone; its child sees the end of its input.
child = subprocess.Popen(["sh", "-c", command], env=env, start_new_session=True)
code = child.wait()
sys.exit(code if code >= 0 else 255)
"""

PDSH = """#!/usr/bin/env python3
import os, subprocess, sys
a = sys.argv[1:]
hosts, command = a[a.index("-w") + 1].split(","), a[-1]
append = os.environ["PDSH_SSH_ARGS_APPEND"].split()
send = [o.split("=")[1] for o in append if o.startswith("SendEnv=")]
children = [subprocess.Popen(["ssh", "--", host, command.replace("%n", str(n)).replace("%%", "%")], stdin=subprocess.PIPE)
            for n, host in enumerate(hosts)]
sys.exit(max(c.wait() for c in children))
"""

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


class Launching(AppTest):
    maxDiff = None

    def setUp(self):
        super().setUp()
        self.tools = self.dir / "tools"
        self.tools.mkdir()
        self.log = self.dir / "calls"
        self.log.touch()
        for name, text in {"ssh": SSH, "pdsh": PDSH}.items():
            self.tool(name, text)
        self.script = self.dir / "train.py"
        self.script.write_text(SCRIPT)
        self.mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
        (self.dir / "home").mkdir()
        self.env = {**{k: v for k, v in os.environ.items() if k not in PLACE}, "PATH": f"{self.tools}:{os.environ['PATH']}",
                    "FAKE_LOG": str(self.log), "CLEAVE_TEST_MARK": self.mark, "HOME": str(self.dir / "home"), "OMP_NUM_THREADS": "1"}
        self.hosts = self.dir / "hosts"
        self.hosts.write_text("node-a slots=2\nnode-b slots=2\n")

    def tool(self, name, text):
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def deepspeed(self, *args, code=0, env=None, program=DEEPSPEED, timeout=60):
        r = subprocess.run([program, *map(str, args)], capture_output=True, text=True, timeout=timeout, cwd=self.dir,
                           env={**self.env, **(env or {})})
        self.assertEqual(r.returncode, code, f"{args}\n{r.stdout}\n{r.stderr}")
        return r

    def places(self, r):
        """Returns the output of the script by rank."""
        found = {}
        for line in r.stdout.splitlines():
            if m := re.match(r"\[(\d+)\] (\{.*)", line):
                found[int(m[1])] = json.loads(m[2])
        return found

    def several(self, *args, **kwargs):
        return self.deepspeed("-H", self.hosts, "--master_addr", "127.0.0.1", *args, **kwargs)

    def test_a_job_in_the_background_of_a_shell_takes_sigint(self):
        """A shell without job control lets its background jobs ignore SIGINT; ranks must not inherit that."""
        script = self.dir / "waits.py"
        script.write_text("import time\nprint('here', flush=True)\ntime.sleep(300)\n")
        shell = f"trap '' INT; exec {shlex.quote(CLEAVE)} launch -n 1 -- {sys.executable} {shlex.quote(str(script))}"
        with subprocess.Popen(["bash", "-c", shell], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
            self.assertIn("here", job.stdout.readline())
            job.send_signal(signal.SIGINT)
            said = job.communicate(timeout=60)[0]
        self.assertEqual(job.returncode, 130, said)

    def test_a_rank_that_is_stopped_before_the_ranks_meet_ends_the_job_without_waiting_for_saves(self):
        """Rank 1 begins with a stop pending. The others leave within the time for a failure, far below the 60 s for saving."""
        command = [CLEAVE, "train", "--deepspeed_config", str(self.config()), "--model", "tiny", "--data", str(self.text), "--seq_len", "8",
                   "--steps", "2"]
        script = self.dir / "early.py"
        script.write_text("import os, signal\nif os.environ['RANK'] == '1':\n"
                          "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
                          "    os.kill(os.getpid(), signal.SIGTERM)\n"
                          f"os.execv({CLEAVE!r}, {command!r})\n")
        r = self.run_cleave("launch", "-n", "2", "--", sys.executable, script, code=75, timeout=50)
        self.assertEqual((r.stdout + r.stderr).count("stopped on request before the training started"), 1)
        self.assertIn("[1] stopped on request", r.stderr)

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*"), "this machine has GPUs, which define the slots")
    def test_a_machine_without_gpus_has_the_named_slots(self):
        for args, ranks in ((["--include", "localhost:0,1"], [0, 1]), (["--include", "localhost:1,3"], [0, 1]), (["--exclude", "localhost:2"], [0, 1]),
                            (["--exclude", "localhost:0"], None), (["--include", "localhost"], [0])):
            r = self.deepspeed(*args, "train.py", code=0 if ranks else 2)
            if ranks:
                self.assertEqual(sorted(self.places(r)), ranks, args)
            else:
                self.assertIn("leaves no slot", r.stderr)

    def test_a_script_starts_as_under_deepspeed(self):
        r = self.deepspeed("--num_gpus", 2, "train.py", "--x", "a b", "--num_gpus", "7")
        ranks = self.places(r)
        self.assertEqual(sorted(ranks), [0, 1])
        for n, rank in ranks.items():
            self.assertEqual(rank["argv"], [f"--local_rank={n}", "--x", "a b", "--num_gpus", "7"])
            env = rank["env"]
            self.assertEqual([env[name] for name in PLACE[:-1]], [str(n), str(n), "2", "2", "2", "0", "0", "1", "127.0.0.1"])
        self.assertEqual(ranks[0]["env"]["MASTER_PORT"], ranks[1]["env"]["MASTER_PORT"])
        self.assertIn("launch: 2 ranks on 1 host: this machine", r.stderr)
        self.assertEqual(self.deepspeed("-q", "train.py").stderr, "")
        self.assertEqual(self.places(self.deepspeed("--no_local_rank", "train.py", "1"))[0]["argv"], ["1"])
        self.assertEqual(self.places(self.deepspeed("--module", "train", "1"))[0]["argv"], ["--local_rank=0", "1"])
        self.assertEqual(self.places(self.deepspeed("--num_g=2", "--master-port", 29511, "train.py"))[1]["env"]["MASTER_PORT"], "29511")

    def test_a_virtual_environment_is_sourced_first(self):
        (self.dir / "activate").write_text("export FROM_VENV='it is'\n")
        self.assertEqual(self.places(self.deepspeed("--venv_script", "activate", "train.py"))[0]["env"]["FROM_VENV"], "it is")
        self.assertIn("--venv_script: nowhere does not exist", self.deepspeed("--venv_script", "nowhere", "train.py", code=2).stderr)

    def test_programs_and_our_own_start_without_python(self):
        self.assertEqual(self.deepspeed("--no_python", "/bin/echo", "x").stdout, "[0] --local_rank=0 x\n")
        self.assertEqual(self.deepspeed("/bin/echo", "x").stdout, "[0] --local_rank=0 x\n")
        for before in [["--num_gpus", "2"], ["--num_gpus", "2", "--no_python"]]:
            r = self.deepspeed(*before, "cleave", "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text,
                               "--seq_len", 32, "--steps", 2)
            self.assertIn("shared memory, 2 ranks", r.stdout)
        # DeepSpeed's launcher starts a program in this way.
        self.run_cleave("--local_rank=1", "report", env={"LOCAL_RANK": "1"})
        self.assertIn("--local_rank: conflicts with LOCAL_RANK (got 0, but LOCAL_RANK is 1",
                      self.run_cleave("--local_rank=0", "report", env={"LOCAL_RANK": "1"}, code=2).stderr)

    def test_bad_input_is_one_error_and_nothing_starts(self):
        def refused(*args, env=None):
            r = self.deepspeed(*args, code=2, env=env)
            self.assertEqual(r.stderr.count("error: "), 1, r.stderr)
            self.assertEqual(r.stdout, "")
            return r.stderr
        twice = self.dir / "twice"
        twice.write_text("a slots=1\na slots=2\n")
        self.assertIn(f"{twice}:2: duplicate host a, also in line", refused("-H", twice, "train.py"))
        twice.write_text("a\n")
        self.assertIn("has no number of slots", refused("-H", twice, "train.py"))
        self.assertIn("nowhere: the hostfile cannot be read: No such file", refused("-H", "nowhere", "train.py"))
        self.assertIn(": unknown host c", refused("-H", self.hosts, "-i", "c", "train.py"))
        self.assertIn("give one kind", refused("-n", 2, "-H", self.hosts, "train.py"))
        self.assertIn("a hostfile (-H) names more", refused("--num_nodes", 2, "train.py"))
        self.assertIn("gone.py: the script does not exist", refused("gone.py"))
        self.assertIn("'trian': neither a command nor a program in PATH; did you mean train?", refused("--", "trian"))
        self.assertIn("--module: conflicts with --no_python; give one of them", refused("--module", "--no_python", "train.py"))
        self.assertIn("--autotuning: not supported", refused("--autotuning", "run", "train.py"))
        for option in (["--elastic_training"], ["--min_elastic_nodes", "1"], ["--max_elastic_nodes", "2"]):
            self.assertIn(f"{option[0]}: not supported, the number of ranks is fixed during a job", refused(*option, "train.py"))
        self.assertIn("unknown option --num_gps; did you mean --num_gpus?", refused("--num_gps", 2, "train.py"))
        self.assertIn(", expected one of ssh, pdsh", refused("--launcher", "rsh", "train.py"))
        self.assertIn("--node_rank: out of range (got -1; there are 2 hosts", refused("-H", self.hosts, "--no_ssh", "--master_addr", "m", "train.py"))
        self.assertIn("launch: no command; write it after the options", refused("--num_gpus", 2))
        (self.dir / "home" / ".deepspeed_env").write_text("A=1\nB\n")
        self.assertIn(".deepspeed_env:2: 'B' is not a variable (expected NAME=VALUE); correct the line", refused("-H", self.hosts, "train.py"))
        (self.dir / "home" / ".deepspeed_env").chmod(0o666)
        self.assertIn("other users can change the variables of the job", refused("-H", self.hosts, "train.py"))
        with socket.socket() as taken:
            taken.bind(("", 0))
            taken.listen()
            port = taken.getsockname()[1]
            r = self.deepspeed("--master_port", port, "train.py", code=2)
            self.assertIn(f"port {port} cannot be used for the rendezvous: ", r.stderr)

    def test_a_dry_run_can_be_pasted(self):
        r = self.deepspeed("--num_gpus", 2, "--dry_run", "train.py", "it's $HOME", "`x`", "")
        lines = [line for line in r.stdout.splitlines() if not line.startswith("#")]
        self.assertEqual(len(lines), 2)
        self.assertEqual(self.places(self.deepspeed("train.py"))[0]["argv"], ["--local_rank=0"])
        pasted = subprocess.run(["sh", "-c", lines[1]], cwd=self.dir, env=self.env, capture_output=True, text=True, check=True)
        rank = json.loads(pasted.stdout)
        self.assertEqual(rank["argv"], ["--local_rank=1", "it's $HOME", "`x`", ""])
        self.assertEqual((rank["env"]["RANK"], rank["env"]["CLEAVE_TOKEN"]), ("1", "masked"))

    def test_a_dry_run_shows_no_secret(self):
        arguments = ["train.py", "--hf_token", "hidden", "--api_key=hidden", "db.password=hidden", "s3://u:hidden@h", "--keep", "2"]
        env = {"NCCL_PASS": "hidden", "PYTHON_KEY": "hidden"}
        adopted = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                   "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
        self.hosts.write_text("node-a slots=1\nnode-b slots=2\n")
        for options, more in (([], {}), (["-H", self.hosts], {}), ([], adopted)):
            r = self.deepspeed(*options, "--master_addr", "127.0.0.1", "--dry_run", *arguments, env={**env, **more})
            self.assertNotIn("hidden", r.stdout + r.stderr)
            self.assertIn("--hf_token masked --api_key=masked db.password=masked s3://u:masked@h --keep 2", r.stdout)

    def test_a_pid_is_not_written_through_a_link(self):
        theirs = self.dir / "theirs"
        theirs.write_text("kept")
        link = f'ln -s "{theirs}" /tmp/$$.deepspeed && exec "$@"'  # exec keeps the process id
        r = subprocess.run(["sh", "-c", link, "sh", DEEPSPEED, "--num_gpus", "1", "--save_pid", "train.py"], cwd=self.dir, env=self.env,
                           capture_output=True, text=True, timeout=120)
        self.assertEqual(r.returncode, 0, r.stderr)
        pid = re.search(r"launcher pid: (\d+)", r.stdout)[1]
        self.assertFalse(os.path.lexists(f"/tmp/{pid}.deepspeed"))
        self.assertEqual(theirs.read_text(), "kept")

    def test_ranks_have_separate_files_and_the_launcher_a_pid(self):
        r = self.deepspeed("--num_gpus", 2, "--enable_each_rank_log", "logs", "--save_pid", "--no_python", "/bin/sh", "-c",
                           "echo out; echo err >&2", code=2)  # --local_rank=N comes first and is unknown to sh
        pid = re.search(r"launcher pid: (\d+)", r.stdout)[1]
        self.assertFalse(os.path.exists(f"/tmp/{pid}.deepspeed"))
        logs = sorted(p.name for p in (self.dir / "logs").iterdir())
        self.assertEqual([re.fullmatch(r"\d{14}_rank(\d)\.log", name)[1] for name in logs], ["0", "1"])
        self.assertIn("Illegal option", (self.dir / "logs" / logs[0]).read_text())
        self.assertRegex(r.stderr, r"error: rank \d ended with exit code 2: ")
        self.assertNotIn("[0]", r.stdout)

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

    def test_failed_jobs_restart(self):
        script = self.dir / "third.py"
        script.write_text("import os, sys\nprint('attempt', os.environ['CLEAVE_ATTEMPT'], flush=True)\n"
                          "sys.exit(0 if os.environ['CLEAVE_ATTEMPT'] == '2' else 1)\n")
        r = self.deepspeed("--max_restarts", 5, "third.py")
        self.assertEqual(re.findall(r"attempt (\d)", r.stdout), ["0", "1", "2"])
        self.assertEqual(r.stderr.count("launch: restart"), 2)
        self.assertEqual(self.deepspeed("--max_restarts", 1, "third.py", code=1).stdout.count("attempt"), 2)
        r = self.several("--max_restarts", 3, "third.py")
        self.assertEqual(r.stdout.count("attempt 2"), 4)
        for code, times in {2: 1, 3: 1, 4: 1, 5: 1, 7: 1, 75: 1, 6: 2, 77: 2}.items():
            script.write_text(f"import sys; print('so often'); sys.exit({code})\n")
            self.assertEqual(self.deepspeed("--max_restarts", 1, "third.py", code=code).stdout.count("so often"), times, code)
        script.write_text("import os; print('so often', flush=True); os.kill(os.getpid(), 9)\n")
        self.assertEqual(self.deepspeed("--max_restarts", 1, "third.py", code=137).stdout.count("so often"), 2)

    def test_a_training_resumes_from_its_newest_checkpoint(self):
        out, metrics = self.dir / "out", self.dir / "metrics.jsonl"
        r = self.deepspeed("--num_gpus", 2, "--max_restarts", 2, "--venv_script", self.dying_once(), "cleave", "train", "--deepspeed_config",
                           self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 100, "--save_interval", 10,
                           "--output", out, "--metrics", metrics, timeout=110)
        self.assertIn("launch: restart 1 of 2", r.stderr)
        self.assertIn("resum", r.stdout + r.stderr)
        steps = [json.loads(line).get("step") for line in metrics.read_text().splitlines() if "event" not in line]
        self.assertEqual(steps[-1], 100)

    def dying_once(self):
        """Writes a file that every rank sources: rank 1 of the first attempt is killed when a checkpoint exists."""
        path = self.dir / "dying"
        path.write_text(f'if [ "$CLEAVE_ATTEMPT$RANK" = 01 ]; then\n  (until ls -d "{self.dir}"/out/*10* >/dev/null 2>&1; do sleep 0.02; done; '
                        'kill -9 $$) >/dev/null 2>&1 &\nfi\n')
        return path

    def test_a_launched_launcher_adopts_its_ranks(self):
        rank = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "m", "MASTER_PORT": "6105", "AZUREML_NODE_COUNT": "2",
                "AZUREML_PROCESS_NAME": "rank_3", "AZUREML_RUN_ID": "r"}
        r = self.deepspeed("train.py", "x", env=rank)
        self.assertEqual(r.stdout.count("argv"), 1)
        said = json.loads(r.stdout)  # without a prefix, because it is the process itself
        self.assertEqual((said["argv"], said["env"]["RANK"], said["env"]["WORLD_SIZE"]), (["--local_rank=1", "x"], "3", "4"))
        mpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        said = json.loads(self.deepspeed("train.py", env=mpi).stdout)
        self.assertEqual([said["env"][n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")], ["1", "2", "1", "127.0.0.1"])
        for option, message in [(["--num_gpus", 4], "--num_gpus: conflicts with the launcher (got 4, but"), (["--num_nodes", 3], "--num_nodes: conflicts with the launcher (got 3, but"),
                                (["-i", "a"], "--include, --exclude: have no effect")]:
            self.assertIn(message, self.deepspeed(*option, "train.py", env=rank, code=2).stderr)

    def test_a_launcher_on_each_node_starts_its_ranks(self):
        env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "6105", "NODE_RANK": "1",
               "AZUREML_NODE_COUNT": "2", "AZUREML_PROCESS_NAME": "rank_1", "AZUREML_RUN_ID": "r",
               "AZUREML_CR_COMPUTE_CONTEXT": '{"run_attempt_count": 3}'}
        r = self.deepspeed("--num_gpus", 2, "train.py", env=env)
        ranks = self.places(r)
        self.assertEqual({n: (x["env"]["LOCAL_RANK"], x["env"]["WORLD_SIZE"], x["env"]["MASTER_ADDR"], x["env"]["MASTER_PORT"],
                              x["env"]["CLEAVE_JOB_ID"], x["env"]["CLEAVE_ATTEMPT"]) for n, x in ranks.items()},
                         {2: ("0", "4", "10.0.0.4", "6105", "r", "3"), 3: ("1", "4", "10.0.0.4", "6105", "r", "3")})
        self.assertIn(" nodes; this is node 1, with 2", r.stderr)
        tf = {"TF_CONFIG": '{"cluster":{"worker":["h0:2222","h1:2222"],"ps":[]},"task":{"type":"worker","index":1}}'}
        self.assertEqual(sorted(self.places(self.deepspeed("--num_gpus", 2, "train.py", env=tf))), [2, 3])
        bad = {"TF_CONFIG": '{"cluster":{"worker":["h0:2222"],"ps":["h1:2222"]},"task":{"type":"ps","index":0}}'}
        self.assertIn("parameter_server_count", self.deepspeed("train.py", env=bad, code=2).stderr)
        self.assertIn("MASTER_ADDR, MASTER_PORT are missing", self.deepspeed("train.py", env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, code=2).stderr)

    def test_report_shows_the_environment(self):
        env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "m", "MASTER_PORT": "6105", "AZUREML_RUN_ID": "r",
               "AZUREML_RUN_TOKEN": "hush", "OTHER": "theirs"}
        r = self.deepspeed("report", "--env", program=CLEAVE, env=env).stdout
        self.assertIn("AZUREML_RUN_ID=r\nAZUREML_RUN_TOKEN=masked, 4 bytes\n", r)
        self.assertIn("a rank:     rank 1 of 2, local rank 1 of 2, node 0 of 1, master m:6105, attempt 0: Azure ML, pytorch", r)
        self.assertIn("a launcher: is a rank and runs the program", r)
        self.assertNotIn("OTHER", r)
        r = json.loads(self.deepspeed("report", "--env", "--json", program=CLEAVE, env={"RANK": "1"}).stdout)
        self.assertIn("error: RANK, WORLD_SIZE", r["rank"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
