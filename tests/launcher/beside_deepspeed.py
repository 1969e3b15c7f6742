#!/usr/bin/env python3
"""Asks DeepSpeed's launcher for the processes that it would start: 200 generated command lines and hostfiles, with environment and command
of every process. tests/app/beside_deepspeed_test.py compares these with Cleave. Nothing is started. Needs DeepSpeed (PyPI); run by hand:

    python tests/launcher/beside_deepspeed.py tests/fixtures/deepspeed/launches.json
"""
import contextlib
import io
import json
import os
import pathlib
import random
import re
import shlex
import sys
import tempfile
from unittest import mock

os.environ["DS_ACCELERATOR"] = "cpu"
NAMES = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
         "NCCL_DEBUG", "UCX_TLS", "MLFLOW_RUN_ID", "FROM_FILE", "NOT_SENT"]
ENVIRONMENTS = [{}, {"UCX_TLS": "tcp", "NOT_SENT": "x"}, {"MLFLOW_RUN_ID": "run 1"}, {"NCCL_DEBUG": "INFO", "UCX_TLS": "a,b"}]


def hostfile(rng):
    count = rng.choice([1, 1, 2, 2, 3, 4, 5])
    lines = []
    for n in range(count):
        if rng.random() < 0.15:
            lines.append(rng.choice(["", "# a comment", "   "]))
        lines.append(f"{rng.choice(['', '', '  '])}worker-{n}{rng.choice([' ', '  ', chr(9)])}slots={rng.choice([1, 2, 2, 3, 4, 8])}"
                     + rng.choice(["", "", " max_slots=9"]))
    fault = rng.random()
    if fault < 0.04:
        lines.append("worker-0 slots=2")
    elif fault < 0.08:
        lines.append("worker-x")
    elif fault < 0.1:
        lines = ["# nobody"]
    return "\n".join(lines) + "\n"


def some_filter(rng, hosts):
    parts = []
    for host, slots in rng.sample(sorted(hosts.items()), rng.randint(1, len(hosts))):
        slot = sorted(rng.sample(range(slots), rng.randint(1, slots)), reverse=rng.random() < 0.3)
        parts.append(host if rng.random() < 0.4 else host + ":" + ",".join(map(str, slot)))
    if rng.random() < 0.08:
        parts.append(rng.choice(["nobody", "worker-0:77"]))
    return "@".join(parts)


def case(rng):
    text = hostfile(rng)
    hosts = {m[1]: int(m[2]) for m in re.finditer(r"(?m)^\s*(worker-\d+)\s+slots=(\d+)", text)} or {"worker-0": 1}
    args = ["--hostfile", "hosts", "--no_ssh_check", "--master_addr", rng.choice(["10.0.0.4", "head"])]
    if rng.random() < 0.5:
        args += rng.choice([["--master_port", "6105"], ["--master_port=29511"]])
    kind = rng.random()
    if kind < 0.3:
        args += [rng.choice(["-i", "--include"]), some_filter(rng, hosts)]
    elif kind < 0.5:
        args += [rng.choice(["-e", "--exclude"]), some_filter(rng, hosts)]
    elif kind < 0.75:
        if rng.random() < 0.6:
            args += ["--num_nodes", str(rng.randint(1, len(hosts)))]
        if rng.random() < 0.6:
            args += [rng.choice(["--num_gpus", "--num_accelerators"]), str(rng.randint(1, min(hosts.values())))]
    if rng.random() < 0.05:
        args += ["--num_nodes", "1", "--include", "worker-0"]
    if rng.random() < 0.15:
        args += ["--no_ssh", "--node_rank", str(rng.randint(0, len(hosts) - 1))]
    elif rng.random() < 0.15:
        args.append("--force_multi")
    for option, share in [("--no_local_rank", 0.2), ("--no_python", 0.2), ("--module", 0.1)]:
        if rng.random() < share:
            args.append(option)
    if rng.random() < 0.1:
        args.append(rng.choice(["-q", "--log_level=warning", "--quiet"]))
    rng.shuffle(script := [["--deepspeed_config", "ds config.json"], ["--num_gpus", "3"], ["--x=it is"], ["-i", "y"]])
    args += [rng.choice(["train.py", "pack.train"])] + sum(script[:rng.randint(0, 4)], [])
    return {"hostfile": text, "args": args, "env": rng.choice(ENVIRONMENTS), "file": rng.choice(["", "", "FROM_FILE=1\n", "FROM_FILE=a b\n"])}


class Called(Exception):
    pass


class Process:
    returncode, pid = 0, 1

    def __init__(self, calls, cmd, env):
        calls.append((list(cmd), dict(env)))

    def poll(self):
        return 0

    def wait(self):
        return 0


@contextlib.contextmanager
def watched(module, calls):
    with mock.patch.object(module.subprocess, "Popen", lambda cmd, env=None, **_: Process(calls, cmd, env if env is not None else os.environ)), \
            mock.patch.object(module.time, "sleep", lambda _: None):
        yield


def commands_of_hosts(cmd, runner_env):
    """(node rank, argv, environment) of the launchers that DeepSpeed's runner starts on each host."""
    if cmd[0] != "pdsh":
        rank = next((int(a.split("=")[1]) for a in cmd if a.startswith("--node_rank=")), 0)
        return [(rank, cmd, runner_env)]
    hosts = cmd[cmd.index("-w") + 1].split(",")
    text = " ".join(cmd[cmd.index("-w") + 2:])
    exports = dict(re.findall(r"export (\w+)=(\"[^\"]*\"|[^;]*);", text))
    line = text[text.index("cd "):].split(";", 1)[1]
    found = []
    for n, _ in enumerate(hosts):
        env = {k: "".join(shlex.split(v)) if v else "" for k, v in exports.items()}
        found.append((n, shlex.split(line.replace("%n", str(n))), env))
    return found


def asked(c, runner, launch):
    """Processes that DeepSpeed would start for a case, or its error."""
    from deepspeed.accelerator import get_accelerator
    calls = []
    env = {"PATH": os.environ["PATH"], "HOME": os.getcwd() + "/home", "DS_ACCELERATOR": "cpu", **c["env"]}
    pathlib.Path("hosts").write_text(c["hostfile"])
    pathlib.Path(".deepspeed_env").write_text(c["file"]) if c["file"] else pathlib.Path(".deepspeed_env").unlink(missing_ok=True)
    try:
        with mock.patch.dict(os.environ, env, clear=True), watched(runner, calls), \
                mock.patch.object(runner.PDSHRunner, "backend_exists", lambda _: True), \
                mock.patch.object(get_accelerator(), "export_envs", lambda: ["NCCL"]), \
                contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            runner.main(c["args"])
    except (Exception, SystemExit) as e:
        return {"error": f"{type(e).__name__}: {e}"}
    ranks = []
    for node, command, node_env in commands_of_hosts(*calls[0]):
        started = []
        start = command.index("deepspeed.launcher.launch") + 1
        try:
            with mock.patch.dict(os.environ, node_env, clear=True), watched(launch, started), \
                    mock.patch.object(sys, "argv", ["launch"] + command[start:]), contextlib.redirect_stdout(io.StringIO()):
                launch.main()
        except (Exception, SystemExit) as e:
            return {"error": f"{type(e).__name__}: {e}"}
        for argv, rank_env in started:
            python = argv[0] == sys.executable
            ranks.append({"argv": ["python"] + argv[1:] if python else argv, "env": {n: rank_env[n] for n in NAMES if n in rank_env}})
    argv = {json.dumps([re.sub(r"^--local_rank=\d+$", "--local_rank=N", a) for a in rank["argv"]]) for rank in ranks}
    assert len(argv) == 1, argv
    return {"argv": json.loads(argv.pop()), "ranks": [[rank["env"].get(n) for n in NAMES] for rank in ranks]}


def main():
    from deepspeed.launcher import launch, runner
    from deepspeed import __version__
    rng = random.Random(18)
    cases = [case(rng) for _ in range(200)]
    out = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("home").mkdir()
        for c in cases:
            c["deepspeed"] = asked(c, runner, launch)
    failed = sum("error" in c["deepspeed"] for c in cases)
    print(f"DeepSpeed {__version__}: {len(cases)} cases, {failed} refused, "
          f"{sum(len(c['deepspeed'].get('ranks', [])) for c in cases)} processes")
    text = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    out.write_text(f'{{"version": "{__version__}", "names": {json.dumps(NAMES)}, "cases": [\n{text}\n]}}\n')


if __name__ == "__main__":
    main()
