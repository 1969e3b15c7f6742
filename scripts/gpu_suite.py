"""Runs the cases of a GoogleTest program so that one bad case costs little. Cases run in one process until one fails, crashes or hangs; the
rest run in a new process, because a kernel error stays with its CUDA context. A case that crashed or failed with a CUDA error runs again
under compute-sanitizer's memcheck.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

MOST_MEMCHECKS = 3
CUDA_ERROR = re.compile(r"CUDA|cuda[A-Z]|illegal (memory|instruction)|misaligned|launch failure")
RESULTS = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def kill(process):
    """Kills the process and its children; abandons a process that the driver blocks."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def run(command, seconds, log, env=None, stacks_of_hang=None):
    """Runs a command with its output in an open file; the exit code, or None after the limit, with the stacks in a file if one is named."""
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                               env={**os.environ, **(env or {})})  # fmt: skip
    try:
        return process.wait(max(0.1, seconds))
    except subprocess.TimeoutExpired:
        if stacks_of_hang:
            stacks(process, stacks_of_hang)
        return None
    finally:
        kill(process)


def stacks(process, log):
    """Appends the stacks of a hung process and its children to a log, before they are killed. Takes at most 10 s."""
    group = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[2:3] == [str(process.pid)]]
    with open(log, "a") as out:
        for pid in group:
            out.write(f"\nprocess {pid}: {_read(f'/proc/{pid}/cmdline')[:120]!r}\n")
            for at in sorted(glob.glob(f"/proc/{pid}/task/*")):
                out.write(f"  {os.path.basename(at)} {_read(at + '/comm').strip()}: {_read(at + '/wchan')} {_read(at + '/syscall').split(' ')[0].strip()}\n")
        out.flush()
        debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
        for pid in group[-2:] if debugger else ():
            run([debugger, "-batch", "-p", pid, "-ex", "thread apply all bt 16"], 5, out)


def _read(path):
    with contextlib.suppress(OSError), open(path, errors="replace") as f:
        return f.read()
    return ""


@dataclass
class Suite:
    """One program. Results are in `LOGS/NAME.suite.json` after every case: {case: {result, seconds, note}}, with result passed, failed,
    hung, skipped or "not reached". Cases that passed in an earlier run with the same logs do not run again."""

    command: list  # the program and its first arguments
    name: str
    logs: str
    seconds: float  # for all cases
    case_seconds: float = 20
    start_seconds: float = 20  # until the first case begins
    filter: str = "*"
    first: tuple = ("*",)  # patterns of cases, most important first; others run last
    sanitizer: str | None = None
    env: dict = field(default_factory=dict)

    def __post_init__(self):
        self.deadline = time.monotonic() + self.seconds
        self.environment = {**os.environ, **self.env}
        self.cases, self.problems = {}, []
        self.memchecks = 0

    def path(self, end):
        return os.path.join(self.logs, self.name + end)

    def left(self):
        return self.deadline - time.monotonic()

    def save(self):
        with open(self.path(".suite.json.new"), "w") as f:
            json.dump({"cases": self.cases, "problems": self.problems}, f, indent=1)
        os.replace(self.path(".suite.json.new"), self.path(".suite.json"))

    def list(self):
        """Returns the names of the cases in execution order."""
        out = subprocess.run(
            [*self.command, "--gtest_list_tests", f"--gtest_filter={self.filter}"],
            capture_output=True, text=True, timeout=max(1, min(self.start_seconds, self.left())), env=self.environment, check=False,
        )  # fmt: skip
        names, suite = [], ""
        for line in out.stdout.splitlines():
            line = line.split("#")[0].rstrip()
            if line and not line.startswith(" "):
                suite = line if line.endswith(".") else ""
            elif line and suite:
                names.append(suite + line.strip())
        rank = lambda n: next((i for i, p in enumerate(self.first) if fnmatch.fnmatchcase(n, p)), len(self.first))
        return sorted(names, key=rank)

    def settle(self, case, result, begun, said):
        lines = [line for line in said if line.strip()]
        notes = [line[6:] for line in lines if line.startswith("note: ")]
        lines = notes if result == "passed" else notes + [line for line in lines if not line.startswith("note: ")][-8:]
        self.cases[case] = {"result": result, "seconds": round(time.monotonic() - begun, 2), "note": " | ".join(lines)[-900:]}
        self.save()
        text = "\n".join(said)
        if result == "failed" and self.sanitizer and self.memchecks < MOST_MEMCHECKS and CUDA_ERROR.search(text) and self.left() > self.case_seconds:
            self.memcheck(case)

    def run(self, names):
        """Runs cases until one does not pass; returns the number of settled cases."""
        flags = self.path(".flags")
        with open(flags, "w") as f:
            f.write(f"--gtest_filter={':'.join(names)}\n--gtest_fail_fast\n--gtest_color=no\n")
        process = subprocess.Popen([*self.command, f"--gtest_flagfile={flags}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                   env=self.environment, text=True, errors="replace")  # fmt: skip
        lines = queue.SimpleQueue()
        threading.Thread(target=lambda: [lines.put(line) for line in itertools.chain(process.stdout, [None])], daemon=True).start()
        current, said, begun, settled, hung, failed = None, [], time.monotonic(), 0, False, False
        with open(self.path(".log"), "a") as log:
            while not failed:
                limit = min(begun + (self.case_seconds if current or settled else self.start_seconds) - time.monotonic(), self.left())
                if hung := limit <= 0:
                    break
                try:
                    line = lines.get(timeout=limit)
                except queue.Empty:
                    continue
                if line is None:
                    break
                log.write(line)
                found = re.match(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^ ,\n]+)", line)
                if not found:
                    said.append(line.rstrip("\n"))
                elif found[1] == "RUN":
                    current, said, begun = found[2], [], time.monotonic()
                elif current == found[2]:
                    self.settle(current, RESULTS[found[1]], begun, said)
                    settled, current, begun = settled + 1, None, time.monotonic()
                    failed = found[1] == "FAILED"  # GoogleTest calls every later case skipped
        if hung and self.left() > 10:
            stacks(process, self.path(".log"))
        if hung or failed:
            kill(process)
        try:
            status = process.wait(5)
        except subprocess.TimeoutExpired:
            kill(process)
            status = "no exit code"
        if current and hung and self.left() <= 0:
            self.settle(current, "not reached", begun, [*said, f"the suite's {self.seconds:.0f} s were over"])
        elif current:
            why = f"hung for {self.case_seconds:.0f} s" if hung else f"the process ended with {status}"
            self.settle(current, "hung" if hung else "failed", begun, [*said, why])
            settled += 1
        elif settled == 0 and self.left() > 0:
            self.problems.append(f"hung before the first case for {self.start_seconds:.0f} s" if hung else
                                 f"ended with {status} before the first case: {' '.join(said[-3:])[:300]}")
        return settled

    def memcheck(self, case):
        self.memchecks += 1
        log = self.path(f".memcheck_{self.memchecks}.log")
        with open(log, "w") as out:
            run([self.sanitizer, "--tool", "memcheck", "--error-exitcode", "9", *self.command, f"--gtest_filter={case}"],
                max(1, min(self.case_seconds, self.left())), out, self.env)  # fmt: skip
        with open(log, errors="replace") as out:
            errors = [line.strip("= \n") for line in out if line.startswith("=========") and line.strip("= \n")]
        found = next((e for e in errors if re.match(r"Invalid|Misaligned|Uninit|Race|Program hit", e)), errors[-1] if errors else "no output")
        self.cases[case]["note"] += f" | memcheck: {found[:200]}"
        self.save()

    def main(self):
        """Runs all cases that the time allows, and returns {"cases", "problems"}."""
        try:
            with open(self.path(".suite.json")) as f:
                earlier = {n: c for n, c in json.load(f)["cases"].items() if c["result"] == "passed"}
        except (OSError, ValueError, KeyError):
            earlier = {}
        try:
            names = self.list()
        except (OSError, subprocess.TimeoutExpired) as error:
            names = []
            self.problems.append(f"cannot list its cases: {error}")
        if not names and not self.problems:
            self.problems.append(f"has no case that matches {self.filter}")
        self.cases = {n: earlier.get(n, {"result": "not reached", "seconds": 0, "note": ""}) for n in names}
        self.save()
        left = [n for n in names if n not in earlier]
        while left and self.left() > 1 and self.run(left):
            left = [n for n in left if self.cases[n]["result"] == "not reached"]
        self.save()
        return {"cases": self.cases, "problems": self.problems}
