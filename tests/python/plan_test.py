#!/usr/bin/env python3
"""Plans of modules, compared with the memory that engines allocate."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import cleave
import pipeline_cases
import plan_cases
import ranks
import torch
from cleave import planning

CASES = "plan_cases"
FILE = str(pathlib.Path(__file__).with_name("plan_cases.py"))
CONFIG = {"train_micro_batch_size_per_gpu": 5, "zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
WEIGHTS = 8 * 16 + 16 + 16 * 4 + 4
# Values that autograd keeps of the MLP: its input, the inputs of GELU and of the second layer, and the difference that the loss squares.
KEPT = 4 * (5 * 8 + 5 * 16 + 5 * 16 + 2 * 5 * 4)


class Planned(unittest.TestCase):
    def test_a_plan_equals_the_engine_allocation_to_the_byte(self) -> None:
        for precision, name in (("fp32", "Odd"), ("bf16", "Gpt"), ("fp16", "Gpt")):
            for rank in ranks.answers(2, CASES, "against_engines", name, precision):
                self.assertEqual(len(rank), 14 if precision == "fp32" else 7)
                for case in rank:
                    self.assertEqual(case["planned"], case["live"], case["home"])
                    self.assertEqual(case["planned"], case["peak"], case["home"])

    def test_the_plan_of_a_pipeline_equals_the_allocation_of_each_stage(self) -> None:
        for rank in ranks.answers(4, CASES, "pipelines_against_engines"):
            self.assertEqual(len(rank), 14)
            for case in rank:
                self.assertEqual(case["planned"], case["live"], case["home"])
                self.assertEqual(case["planned"], case["peak"], case["home"])

    def test_a_pipeline_is_planned_without_a_job_and_of_a_function_alone(self) -> None:
        planned = cleave.plan(plan_cases.make_stages, CONFIG, 6)
        self.assertEqual([r["ranks"][0] for r in planned.ranks if r["ranks"][0] in (0, 3)], [0, 3], "the first rank of each stage")
        self.assertEqual(planned.parameters, sum(p.numel() for p in pipeline_cases.Plain(pipeline_cases.layers()).parameters()))
        whole = cleave.plan(lambda: pipeline_cases.module(1), CONFIG, 2)
        self.assertEqual([whole.parameters, len(whole.ranks[0]["ranks"])], [planned.parameters, 2])
        self.assertEqual(planned.reserve["nccl"], 768 + 2 * 2 * 64 << 20, "a communicator, and a channel for each neighbor and direction")
        for words, call in {
            "trace: not supported for pipelines": lambda: cleave.plan(plan_cases.make_stages, CONFIG, 2, trace=plan_cases.loss),
            r"\[2, 1\] of .* does not match the job .expected 3 ranks": lambda: cleave.plan(plan_cases.make_stages, CONFIG, 3),
            "pipeline.stages: conflicts with the model .got 2, but Sequential has its layers in 1": lambda: cleave.plan(
                plan_cases.make_mlp, {**CONFIG, "pipeline": {"stages": 2}}, 2
            ),
        }.items():
            self.assertRaisesRegex(cleave.UsageError, words, call)

    def test_states_are_those_of_the_formula(self) -> None:
        memory = cleave.plan(plan_cases.make_mlp, CONFIG).ranks[0]["memory"]["device"]
        self.assertEqual([memory[key] for key in ("weights", "gradients", "optimizer_state")], [4 * WEIGHTS, 4 * WEIGHTS, 8 * WEIGHTS])
        large = cleave.plan(plan_cases.TooLarge, CONFIG, 1000, 8)
        self.assertEqual(large.ranks[0]["memory"]["device"]["optimizer_state"], 8 * 10**12 // 1000)
        self.assertEqual(large.per_host, 8 * sum(large.ranks[0]["memory"]["device"].values()))

    def test_a_traced_micro_batch_adds_what_torch_keeps(self) -> None:
        for trace in (plan_cases.loss, None):
            planned = cleave.plan(plan_cases.make_mlp, CONFIG, trace=trace)
            kept = planned.ranks[0]["memory"]["device"].get("activations", 0)
            self.assertEqual(planned.activations, KEPT if trace else None)
            self.assertEqual(kept - (planned.activations or 0), 16, "the squared norms of two units")
            torch_needs = (64 << 20) + 2 * 4 * (8 * 16) + KEPT // 8 if trace else None
            self.assertEqual(planned.reserve, {"cuda": 1 << 30, "nccl": 0, "torch": torch_needs})
            self.assertRegex(
                str(planned), r"a GPU also needs 1\.00 GiB for CUDA" + (r" and 64\.0\d MiB for PyTorch: " if trace else ", and memory")
            )
        inputs = cleave.plan(plan_cases.make_mlp, CONFIG, trace=torch.ones(5, 8))
        self.assertEqual(inputs.activations, KEPT - 4 * 2 * 5 * 4, "without the loss")

    def test_the_command_line_prints_a_plan_and_fails_if_it_does_not_fit(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "ds_config.json")
            config.write_text(json.dumps(CONFIG))

            def run(target: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
                command = [ranks.CLEAVE, "plan", target, "--deepspeed_config", str(config), "-n", "2", *options]
                path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
                return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path, **env})

            same = cleave.plan(plan_cases.make_mlp, CONFIG, 2, trace=plan_cases.loss)
            said = run(f"{FILE}:make_mlp", "--trace", "loss", "--json")
            self.assertEqual(json.loads(said.stdout), same.to_dict(), said.stderr)
            small = run(f"{FILE}:make_mlp", "--device_memory", "1KiB")
            self.assertEqual((small.returncode, "the plan does not fit" in small.stderr), (3, True), small.stderr)
            for factory, code, words in (
                ("make_mlp", 0, f"{same}\n"),
                ("make", 2, "has no make (expected FILE.py:NAME, with NAME a function that returns the module)"),
                ("HOMES", 2, "wrong type (got list, expected a torch.nn.Module"),
            ):
                with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
                    self.assertEqual(planning._main(FILE, str(config), "", factory, "loss", "2", "8", "0", "0"), code)
                self.assertIn(words, out.getvalue())
            script = pathlib.Path(folder, "script.py")
            script.write_text(
                "import argparse, torch\nargparse.ArgumentParser().parse_args()\ndef make():\n  return torch.nn.Linear(2, 2)\n"
            )
            self.assertEqual(run(f"{script}:make").returncode, 0, "a file that parses arguments when it is imported")
            for target, words in (
                (f"{folder}/a.py:make", "a.py: does not exist"),
                (folder, "expected FILE.py:NAME, with NAME a function that returns a PyTorch module"),
            ):
                refused = run(target)
                self.assertEqual((refused.returncode, words in refused.stderr), (2, True), refused.stderr)
            bare = run(f"{FILE}:make_mlp", PYTHONPATH=folder)
            words = "which has no module cleave; put a Python that has torch and Cleave's package first in PATH"
            self.assertEqual((bare.returncode, words in bare.stderr), (2, True), bare.stderr)
            for options in (["--model", "gpt2"], ["--seq_len", "8"], ["--strict"], ["--learning_rate", "1"], ["--html", "a.html"]):
                refused = run(f"{FILE}:make_mlp", *options)
                words = f"{options[0]}: applies to built-in models only; leave it out with {FILE}:make_mlp"
                self.assertEqual((refused.returncode, words in refused.stderr), (2, True), refused.stderr)

    def test_a_module_that_does_not_fit_is_an_error_before_allocation(self) -> None:
        ended = ranks.run(2, CASES, "too_large", timeout=60)
        self.assertEqual(ended.code, 3, ended.output)
        self.assertIn("host memory: 2 of 2 ranks on this machine need", ended.output)
        self.assertIn("but", ended.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
