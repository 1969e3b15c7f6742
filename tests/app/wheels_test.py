#!/usr/bin/env python3
"""Programs of a CUDA build with CUDA libraries from Python wheels only, and without: in a namespace with empty toolkit folders.
usage: wheels_test.py PROGRAMS; exits with 77 without wheels or namespaces.
"""
import glob
import json
import os
import pathlib
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
    def libraries(self, **env):
        """Returns the CUDA libraries of a report, by name, and its lines about missing parts."""
        r = inside([os.path.join(PROGRAMS, "cleave"), "report", "--json"], **env)
        self.assertEqual(r.returncode, 0, r.stderr)
        report = json.loads(r.stdout)
        return report["cuda"]["libraries"], [m["what"] for m in report["missing"]]

    def test_programs_link_no_cuda_library(self):
        for name in ("cleave", "kernels_test", "device_test", "runtime_test", "../lib/libcleave_c.so"):
            program = os.path.join(PROGRAMS, name)
            if os.path.exists(program):
                r = inside(["ldd", program])
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertNotIn("not found", r.stdout, name)
                self.assertNotRegex(r.stdout, r"\blib(cuda|cublas|cudnn|nccl|nvrtc|nvJitLink)", name)

    def test_the_libraries_of_the_wheels_are_found(self):
        libraries, missing = self.libraries(CLEAVE_CUDA_LIBRARIES=":".join(WHEELS))
        self.assertEqual(set(libraries), {"cuBLASLt", "NCCL", "cuDNN"})
        for name, library in libraries.items():
            self.assertRegex(library["version"], r"^\d+\.\d+\.\d+$", name)
            self.assertIn("site-packages/nvidia/", library["path"])
            self.assertEqual((library["place"], library["problem"]), ("Python package", ""))
            self.assertFalse([what for what in missing if name in what])

    def test_a_program_in_the_folder_of_packages_finds_them_itself(self):
        with tempfile.TemporaryDirectory() as site:
            os.makedirs(f"{site}/cleave/bin")
            shutil.copy(f"{PROGRAMS}/cleave", f"{site}/cleave/bin")
            os.symlink(pathlib.Path(WHEELS[0]).parent.parent, f"{site}/nvidia")
            for is_package in (False, True):  # others may write beside a folder that is not a package
                if is_package:
                    pathlib.Path(f"{site}/cleave/__init__.py").touch()
                r = inside([f"{site}/cleave/bin/cleave", "report", "--json"])
                for library in json.loads(r.stdout)["cuda"]["libraries"].values():
                    self.assertEqual(library["path"].startswith(f"{site}/nvidia/"), is_package, library)

    def test_each_missing_library_is_one_line_with_the_command_that_installs_it(self):
        libraries, missing = self.libraries()
        for name, package in (("cuBLASLt", "nvidia-cublas==13.*"), ("NCCL", "nvidia-nccl-cu13"), ("cuDNN", "nvidia-cudnn-cu13")):
            lines = [what for what in missing if what.startswith(f"{name}: ")]
            self.assertEqual(lines, [libraries[name]["problem"]])
            self.assertIn(f'run pip install "{package}"', lines[0])
            self.assertNotIn("\n", lines[0])

    def test_the_check_finds_the_wheels_and_then_needs_a_gpu(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        with tempfile.TemporaryDirectory() as out:
            r = inside([ROOT / "scripts" / "gpu_check.sh", "--first", "--programs", PROGRAMS], OUT=out)
            self.assertEqual(r.returncode, 77, r.stdout + r.stderr)
            self.assertIn("gpu_check: no GPU: ", r.stdout)
            with tarfile.open(os.path.join(out, "gpu_first.tar.gz")) as tar:
                report = json.load(tar.extractfile("logs/report_json.log"))
        for name, library in report["cuda"]["libraries"].items():
            self.assertRegex(library["version"], r"^\d+\.\d+", name)


if __name__ == "__main__":
    namespaces = shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    seen = not os.path.realpath(PYTHON).startswith(tuple(HIDDEN)) and any(glob.glob(f + "/libcublasLt.so*") for f in WHEELS)
    if not namespaces or not seen:
        print(f"skipped: {'no CUDA wheels in the environment of ' + str(PYTHON) if namespaces else 'no namespaces here'}")
        sys.exit(77)
    unittest.main()
