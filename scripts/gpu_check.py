#!/usr/bin/env python3
"""Proves the CUDA build on a machine with a GPU in two calls of at most 360 s and 280 s:
  scripts/gpu_check.sh --first    right or wrong: test suites, ranks over each transport, PyTorch scripts, offload, memcheck
  scripts/gpu_check.sh --second   how fast: training rows, FP8, kernels, PyTorch scripts and peers, profiles
Needs the bundle of scripts/gpu_bundle.sh (or a CUDA build), cuBLAS of CUDA 13 in Python's nvidia packages or the toolkit, and python3; no
network and no compiler. Cases (scripts/gpu_calls.py) run in order of their value; each has a limit, and after each one $OUT has an archive of
all results. A table is printed last. An archive of the same call in gpu_bundle/ is resumed: cases that passed do not run again.
Exit codes: 0 nothing failed, 1 something failed, 2 wrong arguments or nothing to run, 77 this machine has no GPU that works."""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gpu_calls
import gpu_suite
import gpu_table

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUNDLE = f"{HERE}/gpu_bundle/cleave-gpu.tar.xz"
NOT_REACHED = {"result": "not reached", "seconds": 0, "note": ""}


class Check:
    """One call. Folders: `logs` has all output and results.json; an archive of it is in $OUT after every case."""

    def __init__(self, programs, call, work):
        self.programs, self.call, self.work = os.path.abspath(programs), call, work
        self.pace = float(os.environ.get("GPU_CHECK_PACE", 1))  # multiplies all limits, for a rehearsal
        self.out = os.environ.get("OUT")
        self.logs = os.path.join(work, "logs")
        os.makedirs(self.logs)
        self.results, self.lock = {}, threading.Lock()
        self.begun = time.monotonic()
        self.end = self.begun + gpu_calls.BUDGET[call] * self.pace

    # ---- time and processes ----

    def path(self, name):
        return os.path.join(self.logs, name)

    def program(self, name):
        return os.path.join(self.programs, name)

    def run(self, name, limit, *command, env=None):
        """Runs a command, with its output in LOGS/name.log; the exit code, or None if the limit struck."""
        with open(self.path(f"{name}.log"), "w") as log:
            return gpu_suite.run([str(c) for c in command], limit, log, env, self.path(f"{name}.stacks"))

    def suite(self, name, limit, command, **more):
        """Runs a GoogleTest program case by case."""
        more |= {key: more.get(key, most) * self.pace for key, most in (("case_seconds", 20), ("start_seconds", 25))}
        return gpu_suite.Suite([str(c) for c in command], name, self.logs, limit, **more).main()

    def read(self, name):
        with contextlib.suppress(OSError), open(self.path(name), errors="replace") as f:
            return f.read()
        return ""

    def log(self, name):
        return self.read(f"{name}.log")

    def write(self, name, value):
        with open(self.path(name), "w") as f:
            f.write(value if isinstance(value, str) else json.dumps(value, indent=1))
        return self.path(name)

    @contextlib.contextmanager
    def memory_watched(self, seen):
        """Appends the first GPU's memory in use, MiB, five times per second."""
        if not shutil.which("nvidia-smi"):
            yield
            return
        query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "200"]
        watch = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True)
        reader = threading.Thread(target=lambda: seen.extend(int(x) for x in watch.stdout if x.strip().isdigit()))
        reader.start()
        try:
            yield
        finally:
            gpu_suite.kill(watch)
            reader.join(5)

    # ---- results ----

    def save(self):
        """results.json, and the archive of everything so far; never half a file."""
        with self.lock:
            self.write("results.json", {"call": self.call, "commit": self.commit(), "results": self.results})
            self.write("table.txt", gpu_table.table(self.call, self.results))
            if not self.out:
                return
            os.makedirs(self.out, exist_ok=True)
            new = os.path.join(self.out, f".{self.call}.new")
            with tarfile.open(new, "w:gz") as tar:
                tar.add(self.logs, "logs")
            os.replace(new, os.path.join(self.out, f"gpu_{self.call}.tar.gz"))

    def commit(self):
        with contextlib.suppress(OSError), open(os.path.join(self.programs, "..", "manifest.txt")) as f:
            return f.readline().strip()
        return "commit unknown"

    def take_over(self, archive):
        """Takes over logs and results of an earlier call with the same list. Cases that passed do not run again."""
        with tarfile.open(archive) as tar:
            earlier = json.load(tar.extractfile("logs/results.json"))
            if earlier["call"] != self.call:
                return
            members = [m for m in tar.getmembers() if m.isfile() and os.path.dirname(m.name) == "logs"]
            for member in members:
                with open(self.path(os.path.basename(member.name)), "wb") as f:
                    f.write(tar.extractfile(member).read())
        self.results = {n: r for n, r in earlier["results"].items() if n != "report" and r["result"] == "passed"}

    def main(self, only):
        """Returns 0 if nothing failed, 1 after a failure, 77 without a usable GPU."""
        cases = [c for c in gpu_calls.CALLS[self.call] if not only or c.name in only]
        for i, case in enumerate(cases):
            if case.name in self.results:
                continue
            later = sum(c.seconds for c in cases[i + 1 :] if c.name not in self.results) * self.pace
            left = self.end - time.monotonic()
            limit = min(max(case.most, case.seconds) * self.pace, max(case.seconds * self.pace, left - later), left)
            begun = time.monotonic()
            if limit < max(2, case.least) * self.pace:
                self.results[case.name] = {**NOT_REACHED, "note": f"{left:.0f} s were left"}
                continue
            self.results[case.name] = {**NOT_REACHED, "note": "the call ended in this case"}
            try:
                self.results[case.name] = case.run(self, case.name, limit)
            except gpu_calls.NoGpu as reason:
                self.results[case.name] = {**NOT_REACHED, "note": str(reason)}
                self.save()
                print(f"gpu_check: no GPU: {reason}\ngpu_check: nothing was tested or measured")
                return 77
            except Exception as error:
                self.results[case.name] = {"result": "failed", "note": f"{type(error).__name__}: {error}"}
            result = self.results[case.name]
            result["seconds"] = round(time.monotonic() - begun, 1)
            print(f"{time.monotonic() - self.begun:5.0f} s  {case.name}: {result['result']}  {result['note'][:200]}", flush=True)
            self.save()
        self.save()
        print(gpu_table.table(self.call, self.results))
        return 1 if gpu_table.bad(self.results) else 0


# ---- programs and libraries ----


def find_programs(given, work):
    """The folder of the programs: as given, next to this script in an unpacked bundle, from the bundle, from a build."""
    if given or os.access(f"{HERE}/bin/cleave", os.X_OK):
        return given or f"{HERE}/bin"
    if not os.path.isfile(BUNDLE):
        return f"{HERE}/build/cuda/bin"
    if subprocess.run(["tar", "-xJf", BUNDLE, "-C", work], stderr=subprocess.DEVNULL, check=False).returncode:
        with tarfile.open(BUNDLE) as tar:  # for machines without xz
            tar.extractall(work)
    return f"{work}/cleave-gpu/bin"


def library_folders(programs):
    """Folders of the bundle's libraries, and of CUDA's in Python's packages and in the toolkit."""
    roots = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages(), *sys.path]
    wheels = [folder for root in roots if root for folder in sorted(glob.glob(f"{root}/nvidia/*/lib")) if glob.glob(f"{folder}/lib*.so*")]
    toolkit = ("cuda*/lib64", "cuda*/lib", "cuda*/targets/x86_64-linux/lib", "nvidia/lib64")
    return list(dict.fromkeys([f"{programs}/../lib", *wheels, *(folder for pattern in toolkit for folder in sorted(glob.glob(f"/usr/local/{pattern}")))]))


def main():
    parser = argparse.ArgumentParser(prog="gpu_check", usage="scripts/gpu_check.sh --first|--second [--only CASE]... [--programs DIR] [--earlier ARCHIVE] [--list]",
                                     description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    calls = parser.add_mutually_exclusive_group(required=True)
    for call in gpu_calls.CALLS:
        calls.add_argument(f"--{call}", dest="call", action="store_const", const=call)
    parser.add_argument("--only", action="append", default=[], metavar="CASE")
    parser.add_argument("--programs", metavar="DIR")
    parser.add_argument("--earlier", metavar="ARCHIVE", help="archive of an earlier call; its passed cases do not run again")
    parser.add_argument("--list", action="store_true", help="print the cases with their limits")
    args = parser.parse_args()
    names = [c.name for c in gpu_calls.CALLS[args.call]]
    for name in args.only:
        if name not in names:
            parser.error(f"--only {name}: unknown case (expected one of {', '.join(names)})")
    if args.list:
        for c in gpu_calls.CALLS[args.call]:
            print(f"{c.name:24}{c.seconds:5} s  {c.expect}")
        return 0
    # A call that is stopped still brings back its results.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        programs = find_programs(args.programs, work)
        if not os.access(f"{programs}/cleave", os.X_OK):
            parser.error(f"no programs in {programs}: run scripts/gpu_bundle.sh where nvcc is and bring gpu_bundle/ along")
        os.environ["LD_LIBRARY_PATH"] = ":".join([*library_folders(programs), os.environ.get("LD_LIBRARY_PATH", "")])
        libraries = subprocess.run(["ldd", f"{programs}/cleave"], capture_output=True, text=True, check=False).stdout
        if missing := sorted(set(re.findall(r"(\S+) => not found", libraries))):
            parser.error(f"libraries not found: {' '.join(missing)}")
        check = Check(programs, args.call, work)
        beside = os.path.join(os.path.dirname(BUNDLE), f"gpu_{args.call}.tar.gz")
        if earlier := args.earlier or (beside if programs.startswith(work) and os.path.isfile(beside) else None):
            check.take_over(earlier)
        try:
            return check.main(set(args.only))
        finally:
            check.save()


if __name__ == "__main__":
    sys.exit(main())
