#!/usr/bin/env python3
"""Runs interpreted suites with the stream orders of many seeds, one process at a time, and counts the results.

usage: seeds.py BIN FIRST LAST [--only WORD] [--minutes N] [--counts FILE]

BIN is the folder of programs of the preset `interpreter`. All suites run with a seed before the next one. FILE
(build/interpreter/seeds.json) has the counts, and a later call continues after them. A suite with a rebuilt program starts again.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

# Races within a kernel do not depend on the stream order: kernels_test finds them, and these suites take half the time without.
ORDER = {"CUDA_INTERPRETER_RACES": "0"}
RANKS = {"CUDA_INTERPRETER_WAITS": "1", **ORDER}


def engine(case):
    return "runtime_test", f"*CudaEngine.{case}*", RANKS


def layout(folder, seed):
    """Trains in a random layout of the seed, on CPU ranks and over each transport between the GPUs."""
    return [HERE / "layouts.py", folder / "cleave", "--nccl", "--cases", "1", "--seed", str(1_000_000 + seed)]


HERE = pathlib.Path(__file__).resolve().parent
# The program with its cases and settings, or the command of a script.
SUITES = {
    "streams, events, graphs": ("device_test", "*cuda*", {}),
    "texts, 16 bits, checkpoints": engine("GrowsTexts*:*CudaEngine.TrainsInSixteen*:*CudaEngine.Resumes"),
    "offloaded updates": engine("UpdatesOffloadedState"),
    "cut models": engine("TrainsAModelThatIsCut"),
    "stages and placements": engine("TrainsAsTheCpuDoes"),
    "overflows": engine("SkipsTheSteps"),
    "recomputation, exact sums": engine("RecomputesAndSumsExactly"),
    "graphs of the engine": engine("TrainsTheSameBitsWithItsPassesAsGraphs"),
    "ranks as threads": ("comm_test", "*Cuda*/*cuda", ORDER),
    "ranks as processes": ("comm_process_test", "*Cuda*", {**RANKS, "CUDA_INTERPRETER_GPUS": "3"}),
    "trainings in drawn layouts": ("cleave", layout, ORDER),
    "sums, norms, losses, updates": ("kernels_test", "*Sum*/cuda:*Norm*/cuda:*CrossEntropy*/cuda:*Adam*/cuda", {}),
}


def passes(folder, suite, seed):
    program, cases, settings = SUITES[suite]
    command = cases(folder, seed) if callable(cases) else [folder / program, f"--gtest_filter={cases}"]
    done = subprocess.run(
        command,
        env={**os.environ, **settings, "CUDA_INTERPRETER_SEED": str(seed)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    ran = callable(cases) or ("[  PASSED  ]" in done.stdout and "[  PASSED  ] 0 tests" not in done.stdout)
    if done.returncode != 0 or not ran:
        begin = max(0, done.stdout.find("Failure") - 500)
        print(f"{suite}, seed {seed}:\n{done.stdout[begin:][:3000]}\n...\n{done.stdout[-500:]}", flush=True)
    return done.returncode == 0 and ran


def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def counts_of(counts, suite, folder):
    """Returns the counts of the suite's current program."""
    built = (folder / SUITES[suite][0]).stat().st_mtime
    if counts.get(suite, {}).get("built") != built:
        counts[suite] = {"built": built, "passed": [], "failed": []}
    return counts[suite]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--only", default="", help="suites with this text in their name")
    parser.add_argument("--minutes", type=float, default=1e9, help="begins nothing after these")
    parser.add_argument("--counts", type=pathlib.Path)
    options = parser.parse_args()
    path = options.counts or options.bin.parent / "seeds.json"
    counts, end = read(path), time.monotonic() + 60 * options.minutes
    suites = {name: counts_of(counts, name, options.bin) for name in SUITES if options.only in name}
    for seed in range(options.first, options.last + 1):
        for name, known in suites.items():
            if seed in known["passed"] + known["failed"] or time.monotonic() > end:
                continue
            known["passed" if passes(options.bin, name, seed) else "failed"].append(seed)
            path.write_text(json.dumps(counts))
    for name, known in suites.items():
        passed, failed = known["passed"], known["failed"]
        print(f"{name}: {len(passed)} of {len(passed) + len(failed)} seeds pass{f'; {failed} fail' if failed else ''}")
    sys.exit(1 if any(known["failed"] for known in counts.values()) else 0)


if __name__ == "__main__":
    main()
