#!/usr/bin/env python3
"""Runs a test with a Python that has torch: that of CLEAVE_TORCH_PYTHON, of .venv, or this one. Skips it (77) without one.

usage: with_torch.py TEST.py BUILD_FOLDER
"""

import os
import pathlib
import subprocess
import sys

FINDS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"  # importing it takes two seconds
ROOT = pathlib.Path(__file__).resolve().parents[2]


def pythons():
    if given := os.environ.get("CLEAVE_TORCH_PYTHON"):
        return [given]
    return [str(ROOT / ".venv/bin/python"), sys.executable]


def has_torch(python):
    try:
        return subprocess.run([python, "-c", FINDS_TORCH], capture_output=True).returncode == 0
    except OSError:
        return False


def main():
    test, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    python = next(filter(has_torch, pythons()), None)
    if python is None:
        print("skipped: no Python here has torch; scripts/install_torch.sh installs it in .venv")
        return 77
    path = [
        str(ROOT / "python"),
        str(ROOT / "python/deepspeed_name"),
        str(ROOT / "tests/python"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "CLEAVE_LIBRARY": str(build / "lib/libcleave_c.so"),
        "CLEAVE_BUILD": str(build),
    }
    return subprocess.run([python, str(test)], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
