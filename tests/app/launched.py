"""Common parts of the launcher's tests. Other hosts are this machine under other names: an ssh in PATH runs its command through a shell, as
sshd does.
"""
import json
import os
import pathlib
import re
import subprocess
import time

from app_test import AppTest, CLEAVE

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


class ToolTest(AppTest):
    """A test with replacements of programs in PATH, outside of any job."""
    maxDiff = None

    def setUp(self):
        super().setUp()
        self.tools = self.dir / "tools"
        self.tools.mkdir()
        self.env = {**{k: v for k, v in os.environ.items() if k not in PLACE}, "PATH": f"{self.tools}:{os.environ['PATH']}",
                    "OMP_NUM_THREADS": "1"}

    def tool(self, name, text):
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)


class LaunchTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.log = self.dir / "calls"
        self.log.touch()
        for name, text in {"ssh": SSH, "pdsh": PDSH}.items():
            self.tool(name, text)
        self.script = self.dir / "train.py"
        self.script.write_text(SCRIPT)
        self.mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
        (self.dir / "home").mkdir()
        self.env |= {"FAKE_LOG": str(self.log), "CLEAVE_TEST_MARK": self.mark, "HOME": str(self.dir / "home")}
        self.hosts = self.dir / "hosts"
        self.hosts.write_text("node-a slots=2\nnode-b slots=2\n")

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
