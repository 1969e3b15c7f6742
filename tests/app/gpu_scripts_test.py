#!/usr/bin/env python3
"""What scripts/gpu_check.sh does without a GPU, and the table it makes of a run's logs. usage: gpu_scripts_test.py PROGRAMS"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS = os.path.abspath(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHECK, TABLE = ROOT / "scripts" / "gpu_check.sh", ROOT / "scripts" / "gpu_table.py"


def run(*command, env=None):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})})


class GpuCheck(unittest.TestCase):
    def test_lists_its_parts_and_refuses_others(self):
        self.assertEqual(run(CHECK, "--list").stdout.split(), ["tests", "ranks", "train", "kernels", "peers", "sanitizer"])
        for wrong in (["--only", "everything"], ["--fast"], ["--programs", "/nowhere"]):
            r = run(CHECK, *wrong)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertTrue(r.stderr.startswith("gpu_check: "), r.stderr)

    def test_without_a_gpu_says_so_and_why_and_ends_with_77(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        with tempfile.TemporaryDirectory() as out:
            r = run(CHECK, "--programs", PROGRAMS, env={"OUT": out})
            self.assertEqual(r.returncode, 77, r.stdout + r.stderr)
            self.assertIn("gpu_check: no GPU: ", r.stdout)
            self.assertIn("nothing was tested or measured", r.stdout)
            self.assertTrue(os.path.exists(os.path.join(out, "gpu_check_logs.tar.gz")))


    def test_its_small_model_can_be_made(self):
        model = re.search(r"printf '%s' '(\{.*?\})' >\"\$work/small.json\"", CHECK.read_text(), re.S)[1]
        with tempfile.TemporaryDirectory() as folder:
            files = {"small.json": model, "ds.json": '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'}
            for name, content in files.items():
                (pathlib.Path(folder) / name).write_text(content)
            r = run(f"{PROGRAMS}/cleave", "plan", "--deepspeed_config", f"{folder}/ds.json", "--model", f"{folder}/small.json", "--seq_len", "64",
                    "--world_size", "2")
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)


class GpuTable(unittest.TestCase):
    def setUp(self):
        self.logs = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.logs.cleanup()

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (pathlib.Path(self.logs.name) / name).write_text(text)

    def table(self, code):
        r = run(sys.executable, TABLE, self.logs.name)
        self.assertEqual(r.returncode, code, r.stdout + r.stderr)
        return r.stdout

    def test_counts_tests_with_reasons_and_a_program_that_was_stopped(self):
        case = {"name": "A/cuda", "result": "COMPLETED"}
        self.write("kernels_test.log", "")
        self.write("kernels_test.status", "1")
        self.write("kernels_test.json", {"testsuites": [{"name": "On/Matmul", "testsuite": [
            case, {**case, "name": "B/cuda", "failures": [{"failure": "x"}]},
            {**case, "name": "C/cuda", "result": "SKIPPED", "skipped": [{"message": "no\npeer"}]},
            {**case, "name": "D/cpu", "result": "SUPPRESSED"}]}]})
        self.write("runtime_test.log", "[ RUN      ] X.a\n[       OK ] X.a (5 ms)\n[ RUN      ] X.b\n")
        self.write("runtime_test.status", "124")
        out = self.table(1)
        self.assertRegex(out, r"kernels_test +1 +1 +1\n")
        self.assertRegex(out, r"runtime_test +1 +1 +0\n")
        self.assertRegex(out, r"all +2 +2 +1\n")
        self.assertIn("skipped: On/Matmul.C/cuda: no peer", out)
        self.assertIn("out of its time limit in X.b", out)

    def test_takes_the_median_after_five_steps_and_compares_with_goal_and_peer(self):
        steps = [{"event": "start"}] + [{"step": i, "tokens_per_s": 100_000 * i} for i in range(1, 10)]
        self.write("train_gpt2.json", {"micro": 64, "accumulation": 1, "optimizer_home": "none", "status": 0})
        self.write("train_gpt2.jsonl", "\n".join(map(json.dumps, steps)))
        self.write("peer_gpt2.log", 'a warning\n{"peer": "pytorch", "tokens_per_s": 400000.0}\n')
        self.write("kernels_products.log", "cuda:0; limits: 780 TFLOP/s\n")
        self.write("kernels_products.json", {"benchmarks": [{"name": "cuda/matmul/qkv/real_time", "TFLOP/s": 640.0, "%limit": 82.0}]})
        self.write("sanitizer_memcheck.log", "========= ERROR SUMMARY: 0 errors\n")
        self.write("sanitizer_memcheck.status", "0")
        out = self.table(0)
        self.assertRegex(out, r"gpt2 +64 x 1 +750,000 +500,000 +1\.50 +400,000 +1\.88")
        self.assertRegex(out, r"matmul/qkv +640\.00 TFLOP/s +82\.0")
        self.assertIn("limits: 780", out)
        self.assertRegex(out, r"sanitizer_memcheck +clean")
        self.assertIn("nothing failed", out)
        self.assertTrue((pathlib.Path(self.logs.name) / "results.json").exists())

    def test_compares_the_bits_of_two_ranks_over_cuda_ipc_with_those_through_host_memory(self):
        for stage, loss in (("0", 4.25), ("3", 4.2500001)):
            for way in ("host", "ipc"):
                self.write(f"ranks_{way}_{stage}.log", "")
                self.write(f"ranks_{way}_{stage}.status", "0")
                steps = [{"step": i, "loss": loss if way == "ipc" and i == 2 else 4.25, "grad_norm": 1.5} for i in (1, 2)]
                self.write(f"ranks_{way}_{stage}.jsonl", "\n".join(map(json.dumps, steps)))
        out = self.table(1)
        self.assertRegex(out, r"ZeRO-0, CUDA IPC +the same bits, 2 steps")
        self.assertRegex(out, r"ZeRO-3, CUDA IPC +FAILED: 1 of 2 steps differ")
        self.write("ranks_ipc_3.status", "6")
        self.write("ranks_ipc_3.log", "rank 0: all_reduce was given up\n")
        self.assertIn("ranks_ipc_3 ended with exit code 6: rank 0: all_reduce was given up", self.table(1))

    def test_compares_training_with_and_without_cuda_graphs(self):
        for use, rate in (("off", 1000), ("on", 1100)):
            self.write(f"graphs_small_{use}.log", "")
            self.write(f"graphs_small_{use}.jsonl", "\n".join(json.dumps({"tokens_per_s": 1 if i < 5 else rate}) for i in range(10)))
        self.assertRegex(self.table(0), r"small, CUDA graphs on / off +1,100 / 1,000 tokens/s, 1\.100 x")
        self.write("graphs_small_on.jsonl", "")
        self.write("graphs_small_on.log", "error: a kernel failed\n")
        self.assertRegex(self.table(1), r"small, CUDA graphs on / off +FAILED: error: a kernel failed")

    def test_a_row_that_did_not_run_and_a_dirty_sanitizer_are_failures(self):
        self.write("train_qwen2.5-7b.json", {"micro": 1, "accumulation": 16, "optimizer_home": "cpu", "status": 3})
        self.write("train_qwen2.5-7b.log", "error: the plan does not fit\n")
        self.write("sanitizer_racecheck.log", "========= RACECHECK SUMMARY: 2 hazards displayed\n")
        self.write("sanitizer_racecheck.status", "9")
        out = self.table(1)
        self.assertIn("exit code 3: error: the plan does not fit", out)
        self.assertIn("2 hazards", out)
        self.assertIn("2 failed", out)


if __name__ == "__main__":
    unittest.main()
