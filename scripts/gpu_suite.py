#!/usr/bin/env python3
"""Runs the cases of a GoogleTest program that need a GPU so that one bad case costs little: the cases run in one process until one
fails, crashes or hangs, and those behind it in a new process, because an error of a kernel stays with its CUDA context. A case that
failed with an error of CUDA, or crashed, runs again under compute-sanitizer's memcheck at once.

usage: gpu_suite.py PROGRAM LOGS --seconds N [--case-seconds 40] [--filter '*/*cuda'] [--first 'A*:B*'] [--sanitizer FILE]
With --first only cases of these names run; a later call with the same LOGS, without it, runs those that are left, and lists none anew.
Writes LOGS/NAME.log, LOGS/NAME.suite.json after every case, and LOGS/NAME.memcheck_I.log; ends with 1 when a case did not pass."""
import argparse
import fnmatch
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time

MOST_MEMCHECKS = 3
CUDA_ERROR = re.compile(r"CUDA|cuda[A-Z]|illegal (memory|instruction)|misaligned|launch failure")


def kill(process):
    """Ends the process and all that it started; a process that the driver holds is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass


class Suite:
    def __init__(self, args):
        self.args = args
        self.name = os.path.basename(args.program)
        self.log = open(self.path(".log"), "a")
        self.deadline = time.monotonic() + args.seconds
        self.cases, self.notes, self.memchecks = {}, [], []

    def path(self, end):
        return os.path.join(self.args.logs, self.name + end)

    def earlier(self):
        """Names that a call before this one left, when there was one; what it settled and said is kept."""
        try:
            with open(self.path(".suite.json")) as f:
                known = json.load(f)
        except (OSError, ValueError):
            return None
        self.cases, self.memchecks = known["cases"], known["memchecks"]
        self.notes = [n for n in known["notes"] if not n.startswith("out of its")]
        return [n for n, c in self.cases.items() if c["result"] == "not run"]

    def left(self):
        return self.deadline - time.monotonic()

    def save(self):
        with open(self.path(".suite.json.new"), "w") as f:
            json.dump({"name": self.name, "cases": self.cases, "notes": self.notes, "memchecks": self.memchecks}, f, indent=1)
        os.replace(self.path(".suite.json.new"), self.path(".suite.json"))

    def list(self):
        out = subprocess.run([self.args.program, "--gtest_list_tests", f"--gtest_filter={self.args.filter}"], capture_output=True, text=True,
                             timeout=max(1, self.left()))
        names, suite = [], ""
        for line in out.stdout.splitlines():
            line = line.split("#")[0].rstrip()
            if line and not line.startswith(" "):
                suite = line if line.endswith(".") else ""
            elif line and suite:
                names.append(suite + line.strip())
        return names

    def run(self, names):
        """Runs cases until one does not pass; returns how many of them are settled."""
        flags = self.path(".flags")
        with open(flags, "w") as f:
            f.write(f"--gtest_filter={':'.join(names)}\n--gtest_fail_fast\n--gtest_color=no\n")
        process = subprocess.Popen([self.args.program, f"--gtest_flagfile={flags}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        watch = selectors.DefaultSelector()
        watch.register(process.stdout, selectors.EVENT_READ)
        os.set_blocking(process.stdout.fileno(), False)
        current, said, begun, rest = None, [], time.monotonic(), b""
        settled = hung = 0
        while True:
            limit = min(begun + self.args.case_seconds - time.monotonic(), self.left())
            if limit <= 0:
                hung = 1
                break
            if not watch.select(limit):
                continue
            data = process.stdout.read()
            if data is None:
                continue
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in (x.decode(errors="replace") for x in lines):
                self.log.write(line + "\n")
                found = re.match(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^ ,]+)", line)
                if not found:
                    said.append(line)
                elif found[1] == "RUN":
                    current, said, begun = found[2], [], time.monotonic()
                elif current == found[2]:
                    result = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[found[1]]
                    self.settle(current, result, said)
                    settled, current, begun = settled + 1, None, time.monotonic()
        self.log.flush()
        if hung:
            kill(process)
        status = None
        try:
            status = process.wait(5)
        except subprocess.TimeoutExpired:
            kill(process)
        if current and self.left() <= 0:
            self.notes.append(f"out of its {self.args.seconds:.0f} s in {current}")
        elif current:
            why = f"hung for {self.args.case_seconds:.0f} s" if hung else f"ended the process with {status}"
            self.settle(current, "failed", said + [why])
            settled += 1
        elif settled == 0:
            self.notes.append("hung before the first case" if hung else f"ended with {status} before the first case: {' '.join(said[-2:])[:200]}")
        return settled

    def settle(self, case, result, said):
        text = [line for line in said if line.strip()]
        self.cases[case] = {"result": result, "note": " ".join(text[-6:] if result == "failed" else text[-1:])[:400] if result != "passed" else ""}
        self.save()
        if result != "failed" or len(self.memchecks) >= MOST_MEMCHECKS or not self.args.sanitizer or self.left() < 20:
            return
        whole = "\n".join(text)
        if CUDA_ERROR.search(whole) or "ended the process" in whole:
            self.memcheck(case)

    def memcheck(self, case):
        name = f"{self.name}.memcheck_{len(self.memchecks)}.log"
        with open(os.path.join(self.args.logs, name), "w") as log:
            process = subprocess.Popen([self.args.sanitizer, "--tool", "memcheck", "--error-exitcode", "9", self.args.program,
                                        f"--gtest_filter={case}"], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(min(60, self.left()))
            except subprocess.TimeoutExpired:
                kill(process)
                status = 124
        with open(os.path.join(self.args.logs, name), errors="replace") as log:
            errors = [line.strip("= \n") for line in log if line.startswith("=========") and len(line.strip("= \n")) > 0]
        first = next((e for e in errors if re.match(r"Invalid|Misaligned|Uninit|Race|Program hit", e)), errors[-1] if errors else "said nothing")
        self.memchecks.append({"case": case, "status": status, "first": first[:200]})
        self.save()

    def main(self):
        every = self.earlier()
        try:
            every = self.list() if every is None else every
        except (OSError, subprocess.TimeoutExpired) as error:
            self.notes.append(f"cannot be listed: {error}")
            every = []
        if not every and not self.cases and not self.notes:
            self.notes.append(f"has no case that fits {self.args.filter}")
        for case in every:
            self.cases[case] = {"result": "not run", "note": ""}
        self.save()
        first = self.args.first.split(":") if self.args.first else ["*"]
        left = [n for n in every if any(fnmatch.fnmatchcase(n, pattern) for pattern in first)]
        while left and self.left() > 1:
            settled = self.run(left)
            self.save()
            if settled == 0:
                break
            left = [n for n in left if self.cases[n]["result"] == "not run"]
        self.save()
        # Those that are for later are no failure yet.
        results = [c["result"] for n, c in self.cases.items() if c["result"] != "not run" or not self.args.first or n in left]
        print(self.name, {r: results.count(r) for r in sorted(set(results))}, *self.notes)
        return 0 if results and set(results) <= {"passed", "skipped"} and not self.notes else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("logs")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--case-seconds", type=float, default=40)
    parser.add_argument("--filter", default="*/*cuda")
    parser.add_argument("--first")
    parser.add_argument("--sanitizer")
    sys.exit(Suite(parser.parse_args()).main())
