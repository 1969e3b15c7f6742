#!/usr/bin/env python3
"""Measures the start-up time of the launcher: from its start to the first line of `date` on a rank, compared with `date` alone. Runs on
this
machine, or over several hosts by ssh, which are network namespaces (tests/multinode/hosts.py). Usage: launch_overhead.py CLEAVE [--ranks 2]
[--runs 30] [--theirs DEEPSPEED] [--hosts 4]; DEEPSPEED is the command of DeepSpeed.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

DATE = ["/bin/date", "+began %s.%N"]


def seconds(command, env=None):
    """Returns the seconds until the first rank and until the last rank started."""
    start = time.time()
    r = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    began = [float(t) for t in re.findall(r"began ([\d.]+)", r.stdout)]
    if not began:
        sys.exit(f"{command} did not start\n{r.stdout}\n{r.stderr}")
    return min(began) - start, max(began) - start


def measure(rows, runs, what):
    print(f"| {what} rank runs after | median | fastest | slowest |\n|---|---|---|---|")
    for name, (command, env) in rows.items():
        times = sorted(1e3 * seconds(command, env)[what == "last"] for _ in range(runs if "theirs" not in name else 3))
        print(f"| {name} | {statistics.median(times):.1f} ms | {times[0]:.1f} ms | {times[-1]:.1f} ms |", flush=True)


def rows_here(cleave, deepspeed, ranks, theirs):
    rows = {"alone": (DATE, {}), f"cleave launch -n {ranks}": ([cleave, "launch", "-n", str(ranks), "--", *DATE], {})}
    # A rank that is a script would start an interpreter, so DeepSpeed's launcher also starts a program.
    program = ["--num_gpus", str(ranks), "--no_python", "--no_local_rank", *DATE]
    rows["deepspeed, ours"] = ([deepspeed, *program], {})
    if theirs:
        rows["deepspeed, theirs"] = ([theirs, *program], {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(ranks)})
    return rows


def measure_hosts(deepspeed, count, ranks, runs):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "multinode"))
    from hosts import Hosts
    with Hosts(count) as hosts, tempfile.NamedTemporaryFile("w") as hostfile:
        hostfile.write("".join(f"{name} slots={ranks}\n" for name in hosts.names))
        hostfile.flush()
        first, last = hosts.names[0], hosts.names[-1]
        job = [deepspeed, "-q", "-H", hostfile.name, "--launcher_args", hosts.ssh_options, "--no_python", "--no_local_rank", *DATE]
        rows = {f"ssh {last} date": (hosts.inside(first, "ssh", "-F", hosts.ssh_config, last, " ".join(f"'{word}'" for word in DATE)), {}),
                f"deepspeed, {ranks} ranks on each of {count} hosts": (hosts.inside(first, *job), {}),
                "the same, with --master_addr": (hosts.inside(first, deepspeed, "--master_addr", hosts.address(first), *job[1:]), {})}
        for what in ("first", "last"):
            measure(rows, runs, what)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cleave")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--theirs")
    parser.add_argument("--hosts", type=int, default=0)
    a = parser.parse_args()
    deepspeed = os.path.join(os.path.dirname(os.path.abspath(a.cleave)), "deepspeed")
    if a.hosts:
        measure_hosts(deepspeed, a.hosts, a.ranks, a.runs)
    else:
        measure(rows_here(a.cleave, deepspeed, a.ranks, a.theirs), a.runs, "first")


if __name__ == "__main__":
    main()
