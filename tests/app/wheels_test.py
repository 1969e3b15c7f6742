#!/usr/bin/env python3
"""scripts/gpu_check.sh with CUDA libraries from Python wheels only: in a namespace with empty toolkit folders.
of a CUDA build; exits with 77 without wheels or namespaces.
"""
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

PROGRAMS = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = pathlib.Path(os.environ.get("CLEAVE_TORCH_PYTHON", ROOT / ".venv/bin/python"))
HIDDEN = ["/usr/local", "/opt"]
WHEELS = glob.glob(str(PYTHON.parent.parent / "lib/python3*/site-packages/nvidia/*/lib"))


def inside(command, **env):
    """Runs a command with empty folders in place of the hidden ones, as root of a user namespace."""
    hide = " && ".join(f"mount -t tmpfs none {folder}" for folder in HIDDEN if os.path.isdir(folder))
    path = f"{PYTHON.parent}:/usr/bin:/bin"
    return subprocess.run(["unshare", "-rm", "sh", "-c", f'{hide} && exec "$@"', "sh", *map(str, command)], capture_output=True, text=True, timeout=300,
                          env={"PATH": path, "HOME": "/nowhere", **env}, check=False)


class Wheels(unittest.TestCase):
    def test_wheels_are_sufficient_for_the_programs(self):
        libraries = ":".join(WHEELS)
        for name in ("cleave", "kernels_test", "device_test", "runtime_test", "../lib/libcleave_c.so"):
            program = os.path.join(PROGRAMS, name)
            if not os.path.exists(program):
                continue
            r = inside(["ldd", program], LD_LIBRARY_PATH=libraries)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertNotIn("not found", r.stdout, name)
            of_cuda = [line for line in r.stdout.splitlines() if re.match(r"\s*lib(cuda|cublas|cudnn|nccl|nvrtc|nvJitLink)", line)]
            self.assertTrue(of_cuda or name != "cleave", "cuBLASLt is linked")
            for line in of_cuda:
                self.assertIn("site-packages/nvidia/", line, name)
        r = inside(["ldd", os.path.join(PROGRAMS, "cleave")])
        self.assertRegex(r.stdout, r"libcublasLt.*not found")  # otherwise this test shows nothing

    def test_the_check_finds_the_wheels_and_then_needs_a_gpu(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        with tempfile.TemporaryDirectory() as out:
            r = inside([ROOT / "scripts" / "gpu_check.sh", "--first", "--programs", PROGRAMS], OUT=out)
            self.assertEqual(r.returncode, 77, r.stdout + r.stderr)
            self.assertIn("gpu_check: no GPU: ", r.stdout)
            with tarfile.open(os.path.join(out, "gpu_first.tar.gz")) as tar:
                report = json.load(tar.extractfile("logs/report_json.log"))
        for library in ("cublaslt", "nccl", "cudnn"):
            self.assertRegex(report["cuda"][library], r"^\d+\.\d+", library)


if __name__ == "__main__":
    namespaces = shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    seen = not os.path.realpath(PYTHON).startswith(tuple(HIDDEN)) and any(glob.glob(f + "/libcublasLt.so*") for f in WHEELS)
    if not namespaces or not seen:
        print(f"skipped: {'no CUDA wheels in the environment of ' + str(PYTHON) if namespaces else 'no namespaces here'}")
        sys.exit(77)
    unittest.main()
