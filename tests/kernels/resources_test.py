#!/usr/bin/env python3
"""Table of the multiprocessor resources that kernels use. usage: resources_test.py BUILD"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import kernel_resources  # noqa: E402

BUILD = pathlib.Path(sys.argv.pop())


class Warps(unittest.TestCase):
    def test_are_those_of_the_best_practices_guide(self):
        # 32 registers fill a multiprocessor; 37 do so to 75 % in blocks of 128 threads, and to 63 % in blocks of 320.
        self.assertEqual([kernel_resources.warps("sm_80", *kernel) for kernel in [(32, 0, 128), (37, 0, 128), (37, 0, 320)]], [64, 48, 40])

    def test_are_bounded_by_blocks_and_by_shared_memory(self):
        self.assertEqual(kernel_resources.warps("sm_86", 16, 0, 64), 2 * 16)
        self.assertEqual(kernel_resources.warps("sm_90a", 16, 113 * 1024, 256), 2 * 8)  # and 1 KiB each of the system's, of 228
        self.assertEqual(kernel_resources.warps("sm_90a", 16, 113 * 1024 + 1, 256), 8)


@unittest.skipUnless(kernel_resources.cuobjdump(), "no cuobjdump")
class Table(unittest.TestCase):
    # A build of one file.
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        smallest = min(BUILD.rglob("*.cu.o"), key=lambda path: path.stat().st_size)
        shutil.copy(smallest, self.build / smallest.name)
        self.table = self.build / "table.txt"
        self.compile_by("1.2.3")
        self.run_script("--write")

    def compile_by(self, version):
        (self.build / "CMakeFiles/4").mkdir(parents=True, exist_ok=True)
        (self.build / "CMakeFiles/4/CMakeCUDACompiler.cmake").write_text(f'set(CMAKE_CUDA_COMPILER_VERSION "{version}")\n')

    def run_script(self, *options):
        command = [sys.executable, SCRIPTS / "kernel_resources.py", *options, self.build, self.table]
        return subprocess.run(command, capture_output=True, text=True)

    def test_holds_for_the_build_that_it_was_written_from(self):
        r = self.run_script()
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertGreater(len(self.table.read_text().splitlines()), 1)

    def test_fails_by_name_on_a_register_more_and_on_a_kernel_more(self):
        head, first, *others = self.table.read_text().splitlines()
        name, values = first.split(": ", 1)
        _, of_first = values.split("/", 1)
        for changed in [f"{head}\n{name}: sm_80 99/{of_first}\n", f"{head}\n{first}\nelsewhere.cu added<float>: sm_80 9/0/64\n"]:
            self.table.write_text(changed + "".join(line + "\n" for line in others))
            r = self.run_script()
            self.assertEqual(r.returncode, 1, r.stdout + r.stderr)
            self.assertIn(name if "99" in changed else "added<float>", r.stdout)

    def test_of_another_compiler_is_not_compared(self):
        self.compile_by("1.2.4")
        r = self.run_script()
        self.assertEqual(r.returncode, 77, r.stdout)
        self.assertIn("is of nvcc 1.2.3 for sm_80", r.stdout)

    def test_wants_a_build_with_cuda(self):
        shutil.rmtree(self.build / "CMakeFiles")
        r = self.run_script()
        self.assertEqual((r.returncode, r.stderr), (1, f"kernel_resources.py: {self.build} is not a CUDA build\n"))


if __name__ == "__main__":
    unittest.main()
