#!/usr/bin/env python3
"""Runs tests of the Python package with their GPU code in the interpreter (tests/python/interpreted.py), one drawn test at a time.

usage: scripts.py BUILD [--seed S] [--cases N | --minutes M] [--only WORD] [--nccl] [--counts FILE] [--show]

BUILD is the folder of the preset `interpreter`. A case is a test of tests/python with homes for configurations that leave all state on the
GPU, a transport between GPUs, and a seed for the order of the engine's and of torch's streams. --nccl: also the NCCL replacement.
--show: only prints the cases. --counts: adds passed and failed cases to a file. Exits with 1 and repeats the command of each case that
fails. Needs a Python with torch (tests/python/with_torch.py).
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
import with_torch  # noqa: E402

MODULES = ("engine", "states", "outside", "pipeline", "compared", "trained", "client", "memory_errors")
# Tests of texts and launchers, which the order of streams does not change, or of torch alone.
OMITTED = ("mistakes", "are_named", "grids", "are_cut_as", "unsupported", "every_script_was_on_both", "in_planned_memory", "holders", "explain", "advice")
OWN_HOMES = ("move_to_host_memory", "may_be_compiled")  # tests that look at homes, or gather whole blocks
CPU, DISK = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/tmp/cleave_interpreted"}
HOMES = (
    {},
    {"offload_optimizer": CPU},
    {"offload_optimizer": CPU, "offload_param": CPU},
    {"offload_param": CPU},
    {"offload_optimizer": DISK},
    {"offload_optimizer": CPU, "offload_param": DISK},
    {"stage3_max_live_parameters": 1000},
    {"offload_param": CPU, "stage3_max_live_parameters": 1000},
)
LIMIT_S = 600


def tests():
    """Returns the tests of the package, as module.class.test."""
    found = []
    for module in MODULES:
        group = ""
        for line in (ROOT / f"tests/python/{module}_test.py").read_text().splitlines():
            if line.startswith("class "):
                group = line.split()[1].split("(")[0]
            elif line.startswith("    def test_") and not any(word in line for word in OMITTED):
                found.append(f"{module}_test.{group}.{line.split()[1].split('(')[0]}")
    return found


def draw(seed, only, nccl):
    """Returns the test and the environment of a case."""
    r = random.Random(seed)
    word, _, home = only.partition("@")
    test = r.choice([t for t in tests() if word in t])
    homes = [h for h in HOMES if home in json.dumps(h)]
    transport = r.choice(["ipc", "host", *(["nccl"] if nccl else [])])
    return test, {
        "CLEAVE_INTERPRETED": str(seed),
        "CLEAVE_INTERPRETED_HOMES": json.dumps({} if any(word in test for word in OWN_HOMES) else r.choice(homes)),
        "CLEAVE_GPU_TRANSPORT": transport,
        "CUDA_INTERPRETER_SEED": str(seed),
        "CUDA_INTERPRETER_GPUS": "4",
        "CUDA_INTERPRETER_RACES": "0",  # kernels_test finds races within kernels
        "OMP_NUM_THREADS": "1",
    }


def run(build, python, test, env):
    """Returns true, and the output, if the test passed."""
    path = [ROOT / "python", ROOT / "python/deepspeed_name", ROOT / "tests/python"]
    own = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "CLEAVE_BUILD": str(build),
        "CLEAVE_LIBRARY": str(build / "lib/libcleave_c.so"),
    }
    if env["CLEAVE_GPU_TRANSPORT"] == "nccl":
        own["CLEAVE_NCCL"] = str(build / "lib/libnccl_standin_c.so")  # uses the interpreter in libcleave_c.so
    of = {"env": {**os.environ, **own, **env}, "capture_output": True, "text": True, "errors": "replace", "timeout": LIMIT_S}
    try:
        done = subprocess.run([python, "-m", "unittest", test], **of)
    except subprocess.TimeoutExpired as late:
        return False, f"not done after {LIMIT_S} s\n{(late.stdout or b'')[-3000:]!r}"
    return done.returncode == 0 and "Ran 0 tests" not in done.stderr, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--minutes", type=float, default=10**9)
    parser.add_argument("--only", default="", help="tests with this word in their name; WORD@KEY: with this key in their homes")
    parser.add_argument("--nccl", action="store_true")
    parser.add_argument("--counts", type=pathlib.Path)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    python = next(filter(with_torch.has_torch, with_torch.pythons()), None)
    if python is None:
        print("skipped: no Python here has torch")
        return 0
    if options.cases == 10**9 and options.minutes == 10**9:
        options.cases = 1
    end, failed, passed = time.monotonic() + 60 * options.minutes, [], 0
    for seed in range(options.seed, options.seed + options.cases):
        if time.monotonic() > end:
            break
        test, env = draw(seed, options.only, options.nccl)
        said = f"seed {seed}: {test}, {env['CLEAVE_GPU_TRANSPORT']}, {env['CLEAVE_INTERPRETED_HOMES']}"
        if options.show:
            print(said)
            continue
        begin = time.monotonic()
        good, output = run(options.build.resolve(), python, test, env)
        print(f"{'passed' if good else 'FAILED'} {time.monotonic() - begin:4.0f} s  {said}", flush=True)
        passed += good
        if not good:
            print(output[-6000:], flush=True)
            failed.append(seed)
        if options.counts:
            before = json.loads(options.counts.read_text()) if options.counts.exists() else {}
            before["passed" if good else "failed"] = before.get("passed" if good else "failed", 0) + 1
            options.counts.write_text(json.dumps(before))
    print(f"{passed} passed, {len(failed)} failed")
    only = f" --only {options.only}" if options.only else ""
    for seed in failed:
        print(f"to repeat: tests/cuda_interpreter/scripts.py {options.build} --seed {seed}{only}{' --nccl' if options.nccl else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
