#!/usr/bin/env python3
"""Number of threads and instruction sets of a rank, and the program's messages about them."""
import json
import os
import re
import shlex
import subprocess
import sys
import unittest

from app_test import AppTest, CLEAVE


class Threads(AppTest):
    def line(self, *args, env=None, ranks=1):
        """Returns the line of a training about its threads; removes the tests' OMP_NUM_THREADS."""
        out = self.train(*args, ranks=ranks, steps=1, env={"OMP_NUM_THREADS": "", **(env or {})}).stdout
        found = re.search(r"ranks: .*; (\d+) threads? \((.*)\) per rank", out)
        self.assertTrue(found, out)
        return int(found.group(1)), found.group(2)

    def test_every_usable_core_has_a_thread(self):
        cores = len(os.sched_getaffinity(0))
        threads, why = self.line()
        self.assertLessEqual(threads, cores)  # fewer if a control group limits them
        self.assertRegex(why, f"^{cores} usable core|grants .* of {cores} core")

    def test_a_process_on_one_core_has_one_thread(self):
        one = {min(os.sched_getaffinity(0))}
        command = [CLEAVE, "report", "--json"]
        env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        out = subprocess.run(command, capture_output=True, text=True, env=env, preexec_fn=lambda: os.sched_setaffinity(0, one))
        self.assertEqual(json.loads(out.stdout)["threads"], {"count": 1, "why": "1 usable core"})

    def test_the_option_precedes_the_variable_and_the_variable_precedes_the_cores(self):
        self.assertEqual(self.line(env={"OMP_NUM_THREADS": "5"}), (5, "OMP_NUM_THREADS"))
        self.assertEqual(self.line("--threads", 3, env={"OMP_NUM_THREADS": "5"}), (3, "--threads"))
        self.assertEqual(self.line("--threads", 2, ranks=2), (2, "--threads"))

    def test_eval_and_generate_have_the_option_and_print_it(self):
        out = self.dir / "checkpoints"
        self.train("--output", out, ranks=1)
        for command in (["eval", out, "--data", self.text], ["generate", out, "--tokens", 2]):
            self.assertIn("3 threads (--threads) per rank", self.run_cleave(*command, "--threads", 3).stderr)
            self.assertIn("1 thread (", self.run_cleave(*command).stderr)

    def test_invalid_numbers_are_errors(self):
        for wrong in ("0", "-1", "5000", "two", "1.5", "nan"):
            self.assertIn("--threads", self.train("--threads", wrong, ranks=1, code=2).stderr)
            if wrong != "nan":
                self.assertIn("OMP_NUM_THREADS", self.train(ranks=1, code=2, env={"OMP_NUM_THREADS": wrong}).stderr)

    def test_losses_do_not_depend_on_threads(self):
        for precision in ({}, {"bf16": {"enabled": True}}):
            config = self.config(**precision)
            first = self.losses("--threads", 1, ranks=1, config=config)
            for threads in (2, 3):
                self.assertEqual(self.losses("--threads", threads, ranks=1, config=config), first)


class Instructions(AppTest):
    def test_a_wrong_instruction_set_is_an_error_in_every_command(self):
        for command in (["report"], ["check", self.config()], ["plan", self.config()]):
            err = self.run_cleave(*command, code=2, env={"CLEAVE_ISA": "avx9"}).stderr
            self.assertIn("CLEAVE_ISA: invalid value (got 'avx9', expected v3 (AVX2) or v4 (AVX-512)", err)

    def test_variables_are_checked_by_every_command_and_listed_by_the_report(self):
        for env, words in [({"CLEAVE_WGMMA": "on"}, "CLEAVE_WGMMA: invalid value (got 'on', expected off)"),
                           ({"CLEAVE_NCCL": "/no/such/libnccl.so.2"}, "CLEAVE_NCCL: invalid value (got '/no/such/libnccl.so.2', expected the file"),
                           ({"CLEAVE_DEVICE_MEMORY": "much"}, "CLEAVE_DEVICE_MEMORY: 'much' is not a size"),
                           ({"CLEAVE_CUDN": "off"}, "CLEAVE_CUDN: unknown variable; did you mean CLEAVE_CUDNN?")]:
            for command in (["report"], ["check", self.config()], ["launch", "-n", 1, "--", "report"]):
                err = self.run_cleave(*command, code=2, env=env).stderr
                self.assertIn(words, err)
                self.assertEqual(len(err.splitlines()), 1, err)
        env = {"CLEAVE_HOME": "/opt/cleave", "CLEAVE_DIR": "x", "CLEAVE_CUDNN": "off"}
        report = json.loads(self.run_cleave("report", "--json", env=env).stdout)
        self.assertEqual(report["environment"]["CLEAVE_CUDNN"], "off")
        self.assertNotIn("CLEAVE_HOME", report["environment"])

    def test_ranks_with_another_order_of_sums_are_errors_and_the_run_records_its_kernels(self):
        metrics = self.dir / "metrics.jsonl"
        train = [CLEAVE, "train", "--deepspeed_config", self.config(), "--model", "tiny", "--data", self.text, "--seq_len", 32, "--steps", 1,
                 "--metrics", metrics]
        command = " ".join(shlex.quote(str(word)) for word in train)

        def launch(code, ways):
            script = f'eval export $(echo "{ways}" | cut -d , -f $((RANK + 1))); exec {command}'
            return self.run_cleave("launch", "-n", 2, "--", "sh", "-c", script, code=code)
        launch(0, "CLEAVE_ISA=v3,CLEAVE_ISA=v3")
        start = json.loads(metrics.read_text().splitlines()[0])
        self.assertTrue(start["products"].startswith("fp32: own product with AVX2; bf16: "), start["products"])
        with open("/proc/cpuinfo") as f:
            cpu = f.read()
        if "avx512vl" in cpu:
            err = launch(2, "CLEAVE_ISA=v3,CLEAVE_ISA=v4").stderr
            self.assertRegex(err, r"error: rank \d: CPUs: the ranks compute matrix products in different ways.*: rank 0 \(fp32: own product with AVX2; .*\) and "
                                  r"rank 1 \(fp32: own product with AVX-512; .*\); set CLEAVE_ISA=v3 and ONEDNN_MAX_CPU_ISA=AVX2 for every rank")
            self.assertEqual(self.times_said("compute matrix products in different ways", err), 1, err)
        if "avx512_bf16" in cpu and "AuthenticAMD" in cpu:
            err = launch(2, "A=1,ONEDNN_MAX_CPU_ISA=AVX512_CORE").stderr
            self.assertIn("set ONEDNN_MAX_CPU_ISA=AVX512_CORE for every rank", err)

    def test_the_report_lists_the_kernels_of_products_by_type_with_the_reason(self):
        def ways(**env):
            report = json.loads(self.run_cleave("report", "--json", env=env).stdout)
            text = self.run_cleave("report", env=env).stdout
            for w in report["matmul"]:
                self.assertIn(f"matmul {w['type']}   {w['way']}: {w['why']}", text)
            return {w["type"]: (w["way"], w["why"]) for w in report["matmul"]}
        least = ways(CLEAVE_ISA="v3", ONEDNN_MAX_CPU_ISA="AVX2")
        self.assertEqual(set(least), {"fp32", "bf16", "fp16"})
        for way, why in least.values():
            self.assertEqual(way, "own product with AVX2")
            self.assertTrue(why.startswith("CLEAVE_ISA=v3; "), why)
        with open("/proc/cpuinfo") as f:
            cpu = f.read()
        native = "avx512_bf16" in cpu
        best = ways(ONEDNN_MAX_CPU_ISA="ALL")["bf16"]
        if native:
            self.assertIn("ONEDNN_MAX_CPU_ISA=AVX2 keeps oneDNN from", least["bf16"][1])
            if "amx_bf16" in cpu:
                self.assertRegex(best[0], r"^(oneDNN \d+\.\d+\.\d+ with AVX512_CORE_AMX|own product with AMX$)")
            elif "AuthenticAMD" in cpu:
                self.assertEqual(best, ("own product with AVX512_BF16", "the CPU multiplies bf16 in hardware, by vdpbf16ps"))
            else:
                self.assertEqual(best[0], "own product with AVX-512")
                self.assertIn("vdpbf16ps does not beat fp32's multiply-add on this CPU", best[1])
        else:
            self.assertIn("multiplies bf16 in hardware from AVX512_BF16 on", best[1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
