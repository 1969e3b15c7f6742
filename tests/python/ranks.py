"""Starts cases on ranks of this machine, and collects what they print."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

BUILD = pathlib.Path(os.environ.get("CLEAVE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build/release"))
CLEAVE = str(BUILD / "bin/cleave")


class Ended(NamedTuple):
    """How a job ended."""

    code: int
    answers: list[Any]  # what the case returned, by rank; none where it threw
    output: str


def run(ranks: int, module: str, case: str, *args: Any, timeout: float = 240) -> Ended:
    """Calls case(*args) of a module on every rank. Arguments and answers are JSON."""
    command = [CLEAVE, "launch", "-n", str(ranks), "--", sys.executable, __file__, module, case, json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    answers: dict[int, Any] = {}
    for line in done.stdout.splitlines():
        at = line.find("answer ")
        if at >= 0:
            rank, answer = json.loads(line[at + len("answer ") :])
            answers[rank] = answer
    return Ended(done.returncode, [answers.get(r) for r in range(ranks)], done.stdout + done.stderr)


def answers(ranks: int, module: str, case: str, *args: Any) -> list[Any]:
    """The same of a job that has to end well."""
    ended = run(ranks, module, case, *args)
    if ended.code != 0:
        raise AssertionError(f"{case}{args} on {ranks} ranks ended with {ended.code}:\n{ended.output}")
    return ended.answers


def main() -> None:
    module, case, args = sys.argv[1:]
    answer = getattr(__import__(module), case)(*json.loads(args))
    print("answer " + json.dumps([int(os.environ.get("RANK", "0")), answer]), flush=True)


if __name__ == "__main__":
    main()
