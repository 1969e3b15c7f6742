#!/usr/bin/env python3
"""Python cases of scripts/gpu_check.sh on the CPU, run as on a GPU: one by one from a list."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_suite  # noqa: E402


class GpuPython(unittest.TestCase):
    def run_cases(self, pattern: str) -> dict[str, dict[str, str]]:
        build = os.environ["CLEAVE_BUILD"]
        env = {"GPU_CHECK_DEVICE": "cpu", "GPU_CHECK_CLEAVE": f"{build}/bin/cleave", "HF_HUB_OFFLINE": "1"}
        with tempfile.TemporaryDirectory() as logs:
            suite = gpu_suite.Suite(
                [sys.executable, str(ROOT / "scripts" / "gpu_python.py")],
                "python",
                logs,
                seconds=600,
                case_seconds=300,
                start_seconds=120,
                filter=pattern,
                env=env,
            )
            done = suite.main()
        self.assertEqual(done["problems"], [])
        return done["cases"]

    def test_every_case_passes_and_measures(self) -> None:
        cases = self.run_cases("Python.*")
        self.assertGreaterEqual(len(cases), 19)
        self.assertEqual({name: c["note"] for name, c in cases.items() if c["result"] != "passed"}, {})
        self.assertIn("largest difference from torch", cases["Python.gpt2_stage_3"]["note"])

    def test_every_case_of_torch_cuda_passes_as_far_as_a_cpu_runs_it(self) -> None:
        cases = self.run_cases("PythonDevices.*")
        self.assertEqual({name: c["note"] for name, c in cases.items() if c["result"] != "passed"}, {})
        self.assertEqual(len(cases), 9)
        self.assertIn("largest difference from torch", cases["PythonDevices.model_on_the_gpu"]["note"])

    def test_speeds_are_measured(self) -> None:
        cases = self.run_cases("PythonSpeed.n*")
        self.assertIn("PythonSpeed.native", cases)
        for name, c in cases.items():
            self.assertEqual(c["result"], "passed", (name, c))
            self.assertIn("tokens/s", c["note"])


if __name__ == "__main__":
    unittest.main()
