"""Runs cases on ranks of this machine and collects their results.

Cases that must succeed run on ranks forked from a server that has imported the cases and torch once per test. Cases that fail run like a
user's script, by `cleave launch`, in separate processes.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

BUILD = pathlib.Path(os.environ.get("CLEAVE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build/release"))
CLEAVE = str(BUILD / "bin/cleave")
LIMIT_S = 240.0


class Ended(NamedTuple):
    """End of a job."""

    code: int
    output: str


def run(ranks: int, module: str, case: str, *args: Any, timeout: float = LIMIT_S) -> Ended:
    """Calls case(*args) of a module on every rank of a launched job. Arguments are JSON."""
    command = [CLEAVE, "launch", "-n", str(ranks), "--", sys.executable, __file__, module, case, json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    return Ended(done.returncode, done.stdout + done.stderr)


def answers(ranks: int, module: str, case: str, *args: Any) -> list[Any]:
    """Returns the results of case(*args) of a module by rank, for a job that must succeed. Arguments and results are JSON."""
    server = _server(module)
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps([ranks, case, args, folder]), file=server.stdin, flush=True)
        said = server.stdout.readline()
        if not said:
            raise AssertionError(f"the server of {module} ended; its output is above")
        codes = json.loads(said)
        if any(codes):
            outputs = [f"--- rank {r} ended with {code}\n{_text(folder, r)}" for r, code in enumerate(codes)]
            raise AssertionError(f"{case}{args} on {ranks} ranks:\n" + "\n".join(outputs))
        return [json.loads(pathlib.Path(folder, f"answer{r}").read_text()) for r in range(ranks)]


def free_port() -> int:
    """Returns a free port of this machine for the ranks to meet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _text(folder: str, rank: int) -> str:
    return pathlib.Path(folder, f"output{rank}").read_text(errors="replace")


@functools.cache
def _server(module: str) -> subprocess.Popen[str]:
    """Starts a server, which ends with its standard input, that is, with this process."""
    return subprocess.Popen([sys.executable, __file__, module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve(module: Any) -> None:
    """Forks the ranks of each job on standard input and prints their exit codes."""
    import torch._dynamo  # noqa: F401  optimizers import it at their first step

    gc.freeze()
    for line in sys.stdin:
        ranks, case, args, folder = json.loads(line)
        threads = sorted(pathlib.Path(task, "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir())
        # jemalloc, which pyarrow loads, restarts its thread in a fork.
        assert len(threads) - threads.count("jemalloc_bg_thd") == 1, f"a process with the threads {threads} cannot be forked"
        port, children = free_port(), []
        for rank in range(ranks):
            if (child := os.fork()) == 0:
                _become(rank, ranks, port, folder)
                _interpret()
                answer = getattr(module, case)(*args)
                pathlib.Path(folder, f"answer{rank}").write_text(json.dumps(answer))
                atexit._run_exitfuncs()  # the necessary part of the interpreter's exit; the rest takes a second
                os._exit(0)
            children.append(child)
        print(json.dumps(_wait_for(children)), flush=True)
    os._exit(0)


def _become(rank: int, ranks: int, port: int, folder: str) -> None:
    """Makes this process a rank, with the environment of torchrun and its output in a file."""
    output = os.open(os.path.join(folder, f"output{rank}"), os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in place.items()}}


def _interpret() -> None:
    """Runs the GPU code of this rank in the interpreter if CLEAVE_INTERPRETED is set."""
    if os.environ.get("CLEAVE_INTERPRETED"):
        import interpreted  # imports torch

        interpreted.install()


def _wait_for(children: list[int]) -> list[int]:
    """Returns exit codes. After a failure or a timeout, kills the remaining children."""
    codes: dict[int, int] = {}
    until = time.monotonic() + LIMIT_S
    while len(codes) < len(children):
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            time.sleep(0.01)
        elif child in children:
            codes[child] = os.waitstatus_to_exitcode(status)
            until = min(until, time.monotonic() + 10) if codes[child] else until
        if time.monotonic() > until:
            for left in set(children) - codes.keys():
                os.kill(left, signal.SIGKILL)
    return [codes[child] for child in children]


def main() -> None:
    module, *call = sys.argv[1:]
    if call:
        _interpret()
        getattr(importlib.import_module(module), call[0])(*json.loads(call[1]))
    else:
        _serve(importlib.import_module(module))


if __name__ == "__main__":
    main()
