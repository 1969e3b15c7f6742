#!/usr/bin/env python3
"""Measures how much longer a command takes when every core also runs a busy process.

    benchmarks/shared_cores.py [--repeat 5] -- build/release/bin/cleave generate checkpoints --tokens 100

Runs the command in turns on a quiet machine and with one busy process pinned to each usable core, and prints the medians of the wall time
and their ratio. Two processes that share a core fairly have a ratio of 2.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--repeat", type=int, default=5)
parser.add_argument("command", nargs="+")
args = parser.parse_args()


def seconds():
    begin = time.perf_counter()
    subprocess.run(args.command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def busy(core):
    return subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nparent = os.getppid()\n"
                             "while os.getppid() == parent: sum(range(100000))"])


quiet, shared = [], []
seconds()  # loads the files from the disk
for _ in range(args.repeat):
    quiet.append(seconds())
    neighbours = [busy(core) for core in os.sched_getaffinity(0)]
    try:
        time.sleep(0.2)
        shared.append(seconds())
    finally:
        for n in neighbours:
            n.kill()
            n.wait()
q, s = statistics.median(quiet), statistics.median(shared)
print(f"quiet {q:.2f} s ({min(quiet):.2f} to {max(quiet):.2f}), shared {s:.2f} s ({min(shared):.2f} to {max(shared):.2f}), ratio {s / q:.2f}")
