#!/usr/bin/env python3
"""How long the launcher takes until its first rank runs, on this machine: the time from its start to the first line of `date`, beside that of
`date` started without it. Usage: launch_overhead.py CLEAVE [RANKS [RUNS [THEIRS]]]; THEIRS is a deepspeed command of DeepSpeed's own."""
import os
import re
import statistics
import subprocess
import sys
import time

DATE = ["/bin/date", "+began %s.%N"]


def seconds(command, env=None):
    start = time.time()
    out = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}).stdout
    return min(float(t) for t in re.findall(r"began ([\d.]+)", out)) - start


def main():
    cleave, ranks, runs, theirs = (sys.argv[1:] + [None, "2", "30", ""][len(sys.argv) - 1:])[:4]
    ranks, runs = int(ranks), int(runs)
    rows = {"alone": (DATE, {}), f"cleave launch -n {ranks}": ([cleave, "launch", "-n", str(ranks), "--", *DATE], {})}
    # A rank of the script's kind starts with an interpreter, so DeepSpeed's is asked for a program, too.
    deepspeed = os.path.join(os.path.dirname(cleave), "deepspeed")
    program = ["--num_gpus", str(ranks), "--no_python", "--no_local_rank", *DATE]
    rows["deepspeed, ours"] = ([deepspeed, *program], {})
    if theirs:
        rows["deepspeed, theirs"] = ([theirs, *program], {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(ranks)})
    print("| first rank runs after | median | fastest | slowest |\n|---|---|---|---|")
    for name, (command, env) in rows.items():
        times = sorted(1e3 * seconds(command, env) for _ in range(runs if "theirs" not in name else 3))
        print(f"| {name} | {statistics.median(times):.1f} ms | {times[0]:.1f} ms | {times[-1]:.1f} ms |")


if __name__ == "__main__":
    main()
