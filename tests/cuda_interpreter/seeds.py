#!/usr/bin/env python3
"""Runs interpreted suites with the streams in the orders of many seeds, one process at a time, and keeps count.

usage: seeds.py BIN FIRST LAST [--only WORD] [--minutes N] [--counts FILE]

BIN is where the preset `interpreter` has its programs. Each suite runs with all of the seeds before the next one does. FILE
(build/interpreter/seeds.json) has what was counted, and a later call goes on behind it; a suite whose program was built anew begins anew."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

WAITS = {"CUDA_INTERPRETER_WAITS": "1"}


def engine(case):
    return "runtime_test", f"*CudaEngine.{case}*", WAITS


# The quick ones first: program, filter, settings.
SUITES = {
    "streams, events, graphs": ("device_test", "*cuda*", {}),
    "texts, 16 bits, checkpoints": engine("GrowsTexts*:*CudaEngine.TrainsInSixteen*:*CudaEngine.Resumes"),
    "offloaded updates": engine("UpdatesOffloadedState"),
    "cut models": engine("TrainsAModelThatIsCut"),
    "stages and placements": engine("TrainsAsTheCpuDoes"),
    "recomputation, exact sums": engine("RecomputesAndSumsExactly"),
    "graphs of the engine": engine("TrainsTheSameBitsWithItsPassesAsGraphs"),
    "ranks as threads": ("comm_test", "*Cuda*/*cuda", WAITS),
    "ranks as processes": ("comm_process_test", "*Cuda*", {**WAITS, "CUDA_INTERPRETER_GPUS": "3"}),
    "sums, norms, losses, updates": ("kernels_test", "*Sum*/cuda:*Norm*/cuda:*CrossEntropy*/cuda:*Adam*/cuda", {}),
}


def passes(folder, suite, seed):
    program, cases, settings = SUITES[suite]
    done = subprocess.run([folder / program, f"--gtest_filter={cases}"], env={**os.environ, **settings, "CUDA_INTERPRETER_SEED": str(seed)},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    ran = "[  PASSED  ]" in done.stdout and "[  PASSED  ] 0 tests" not in done.stdout
    if done.returncode != 0 or not ran:
        print(done.stdout[-3000:])
    return done.returncode == 0 and ran


def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def counts_of(counts, suite, folder):
    """What is known of the suite's program as it is now."""
    built = (folder / SUITES[suite][0]).stat().st_mtime
    if counts.get(suite, {}).get("built") != built:
        counts[suite] = {"built": built, "passed": [], "failed": []}
    return counts[suite]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--only", default="", help="suites whose name contains this")
    parser.add_argument("--minutes", type=float, default=1e9, help="begins nothing after these")
    parser.add_argument("--counts", type=pathlib.Path)
    options = parser.parse_args()
    path = options.counts or options.bin.parent / "seeds.json"
    counts, end = read(path), time.monotonic() + 60 * options.minutes
    for suite in SUITES:
        if options.only not in suite:
            continue
        known = counts_of(counts, suite, options.bin)
        passed, failed = known["passed"], known["failed"]
        for seed in range(options.first, options.last + 1):
            if seed in passed + failed or time.monotonic() > end:
                continue
            (passed if passes(options.bin, suite, seed) else failed).append(seed)
            path.write_text(json.dumps(counts))
        if passed or failed:
            print(f"{suite}: {len(passed)} of {len(passed) + len(failed)} seeds pass{f'; {failed} fail' if failed else ''}", flush=True)
    sys.exit(1 if any(known["failed"] for known in counts.values()) else 0)


if __name__ == "__main__":
    main()
