"""The package names the CUDA libraries of Python packages for the engine and for the programs that it starts."""

import _ctypes
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import unittest

import torch

CODE = "import os; from cleave import programs; programs.name_cuda_libraries(); print(os.environ.get('CLEAVE_CUDA_LIBRARIES', ''))"
FILES = (
    "first/nvidia/cu13/lib/libcublasLt.so.13",
    "first/nvidia/nccl/lib/libnccl.so.2",
    "second/nvidia/cudnn/lib/libcudnn.so.9",
    "second/nvidia/cufft/lib/libcufft.so.12",  # not a library of the engine
)


class Programs(unittest.TestCase):
    def named(self, folder: pathlib.Path, **given: str) -> list[str]:
        path = os.pathsep.join([str(folder / "first"), str(folder / "second"), os.environ["PYTHONPATH"]])
        env = {**os.environ, "PYTHONPATH": path, **given}
        done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip().split(":")

    def test_every_folder_of_packages_that_has_one_is_named_in_order_of_the_path(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for file in FILES:
                (folder / file).parent.mkdir(parents=True)
                (folder / file).touch()
            want = [str((folder / file).parent) for file in FILES[:3]]
            self.assertEqual(self.named(folder, CLEAVE_CUDA_LIBRARIES="")[:3], want)

    def test_folders_that_the_user_names_stay(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            self.assertEqual(self.named(pathlib.Path(name), CLEAVE_CUDA_LIBRARIES="/mine:/other"), ["/mine", "/other"])

    def test_a_report_names_the_versions_of_python_and_torch(self) -> None:
        code = "import sys; sys.argv = {}; from cleave import programs; programs.main()"
        table, other = (
            subprocess.run([sys.executable, "-c", code.format(line)], capture_output=True, text=True, check=True).stdout
            for line in (["ds_report"], ["cleave", "report", "--json"])
        )
        got = re.match(r"python        ([\d.]+), torch (\S+)\n", table)
        assert got, table
        self.assertEqual(got[1], platform.python_version())
        self.assertEqual(got[2], torch.__version__)
        json.loads(other)

    def test_a_wrong_library_is_an_error_with_its_file(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            text = pathlib.Path(name, "f.py")
            text.write_text("x = 1\n")
            for file, said in (
                (str(text), f"UsageError: {text}: not Cleave's library ("),
                (_ctypes.__file__, "not Cleave's library ("),  # a library with other functions
                (f"{name}/gone.so", f"UsageError: CLEAVE_LIBRARY: names a missing file (got {name}/gone.so, expected libcleave_c.so)"),
            ):
                code = "from cleave import handles, job; handles.library()"  # job has the exit codes
                env = {**os.environ, "CLEAVE_LIBRARY": file}
                done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
