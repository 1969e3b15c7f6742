"""`cleave compare` names planted differences, and finds none in correct modules."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import ranks
import torch
from cleave.compare import judge, records, report

CASES = "compare_cases"
FULL = bool(os.environ.get("CLEAVE_FULL_PRODUCT"))  # 200 modules and all scripts

# Planted difference: what, where, step, rank, micro-batch of the first difference (from 0), and a part of the cause.
NAMED: dict[str, tuple[str, str, int, int | None, int | None, str]] = {
    "a lost gradient": ("missing gradient", "twice.bias", 0, None, None, "zero in the engine"),
    "a lost second use": ("gradient", "twice.weight", 0, None, None, "only this gradient"),
    "a wrong divisor": ("gradient", "out.bias", 0, None, None, "factor 2: they are not divided by"),
    "a frozen layer that moves": ("frozen parameter moved", "frozen.weight", 1, None, None, "requires_grad"),
    "a parameter that does not move": ("update", "norm.weight", 0, None, None, "not updated"),
    "a rate of another group": ("lr", "first.bias", 0, None, None, "groups or the schedule"),
    "weight decay of a bias": ("weight_decay", "first.bias", 0, None, None, "groups"),
    "a parameter outside the optimizer": ("parameter without optimizer", "head.weight", 0, None, None, "model_parameters"),
    "clipping left out": ("update", "first.weight", 0, None, None, "not clipped"),
    "a missing micro-batch": ("micro-batch", "", 0, 0, 1, "gradient_accumulation_steps"),
    "a rank with other data": ("input", "", 0, 1, 0, "other samples|different samples only on rank 1"),
    "another eps": ("eps", "first.weight", 0, None, None, "another eps"),
    "betas swapped": ("betas", "first.weight", 0, None, None, "another betas"),
    "dropout in one run": ("output", "drop", 0, 0, 0, "dropout"),
    "a detached branch": ("missing gradient", "first.bias", 0, None, None, "detached"),
    "a wrong sign": ("gradient", "head.weight", 0, None, None, "wrong sign"),
    "a stale weight": ("output", "twice", 1, 0, 0, "stale"),
    "a tied weight untied": ("parameter without optimizer", "head.weight", 0, None, None, "model_parameters"),
    "a schedule one step late": ("lr", "first.weight", 1, None, None, "schedule"),
    "a wrong initial value on one rank": ("initial value", "head.weight", 0, 1, None, "before initialize"),
    "a change of 1e-4 in one gradient": ("gradient", "norm.bias", 0, None, None, "only this gradient"),
    "a change of 1e-4 in one element": ("gradient", "first.weight", 0, None, None, "only this gradient"),
    "another loss": ("loss", "", 0, 0, 0, "loss itself"),
    "another call": ("call", "norm", 0, 0, 0, "another way"),
    "a gradient that one rank drops": ("gradient", "first.weight", 0, None, None, "only this gradient"),
    "a wrong norm": ("norm", "", 1, None, None, "wrong"),
    "a skipped step": ("skipped step", "", 1, None, None, "overflow"),
}


SCRIPT = """
import os, sys, torch
import cleave as deepspeed

way, here = sys.argv[1], os.environ["CLEAVE_COMPARE"] == "subject"
if way == "fails" and not here:
    sys.exit(7)
module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
if way == "differs" and here:
    module[0].bias.register_hook(lambda gradient: gradient * 1.0001)
if way == "tensor":
    rules = [{"patterns": ["0.weight"]}, {"patterns": ["2.weight"], "partition_type": "row"}]
    config["tensor_parallel"] = {"autotp_size": 2, "partition_config": {"layer_specs": rules}}
engine, *_ = deepspeed.initialize(model=module, config=config)
try:
    for step in range(2 if way == "short" else 10**9):
        for micro in range(2):
            loss = engine(torch.randn(4, 8)).square().mean()
            engine.backward(loss)
            engine.step()
except BaseException:
    print("caught")
    raise
finally:
    print("the loop ended")
"""

PIPELINE = """
import os, sys, torch
import cleave as deepspeed
from cleave.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
from torch.nn import functional as F

way, stages, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.drop = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x):
        return x + self.drop(F.gelu(self.up(self.norm(x))))


def project(embed, x):
    return x @ embed.weight.T


def loss_fn(logits, labels):
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


deepspeed.init_distributed()
embed = lambda **more: TiedLayerSpec("embed", nn.Embedding, 11, 8, **more)
layers = [embed(), *[LayerSpec(Block) for _ in range(4)], nn.LayerNorm(8), embed(forward_fn=project)]
net = PipelineModule(layers, num_stages=stages, loss_fn=loss_fn, activation_checkpoint_interval=1, virtual_stages=1 + (way == "virtual"))
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1},
          "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
if way == "virtual":
    config["pipeline"] = {"schedule": "interleaved"}
if precision != "fp32":
    config[precision] = {"enabled": True}
named = dict(net.named_parameters())
if way == "differs" and os.environ["CLEAVE_COMPARE"] == "subject" and "3.up.bias" in named:
    named["3.up.bias"].register_hook(lambda gradient: gradient * 1.0001)
torch.manual_seed(3)
data = [(torch.randint(0, 11, (6,)), torch.randint(0, 11, (6,))) for _ in range(64)]
engine, *_ = deepspeed.initialize(model=net, config=config, training_data=data)
for step in range(3):
    loss = engine.train_batch()
    print("loss", float(loss), "evaluation", float(engine.eval_batch(iter(engine.training_dataloader))))
"""


def verdicts(count: int, case: str, *args: Any) -> dict[str, judge.Verdict]:
    """Runs a case in both roles and compares the records of its scripts."""
    with tempfile.TemporaryDirectory() as folder:
        for role in ("subject", "reference"):
            loaded = ranks.answers(count, CASES, case, role, folder, *args)
            assert loaded == [role == "subject"] * count, "the reference loads the native library"
        found = {script.name: judge.judge(script, 3) for script in pathlib.Path(folder).iterdir() if script.is_dir()}
        return {name: verdict for name, verdict in found.items() if verdict is not None}


def compare(*words: str, script: str = SCRIPT) -> tuple[int, str, str]:
    """Runs `cleave compare OPTIONS -- python SCRIPT WAY` in a new folder; returns exit code, output and messages."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "train.py").write_text(script)
        made = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3}}
        made["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01}}
        pathlib.Path(folder, "other.json").write_text(json.dumps(made))
        done = subprocess.run([ranks.CLEAVE, "compare", *words], cwd=folder, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr


class Compare(unittest.TestCase):
    def same(self, found: dict[str, judge.Verdict], count: int) -> None:
        self.assertEqual(len(found), count)
        for name, verdict in found.items():
            self.assertEqual(verdict.differences, [], f"{name}: {report.text(verdict)}")
            self.assertGreater(verdict.steps, 0, name)

    def test_planted_differences_are_named(self) -> None:
        found = verdicts(2, "planted")
        self.same({name: found.pop(name) for name in list(found) if name.startswith("nothing")}, 5)
        self.assertEqual(found.keys(), NAMED.keys())
        for name, (what, where, step, rank, micro, cause) in NAMED.items():
            with self.subTest(name):
                said = report.text(found[name])
                self.assertTrue(found[name].differences, said)
                first = found[name].differences[0]
                self.assertEqual((first.what, first.where, first.step, first.rank, first.micro), (what, where, step, rank, micro), said)
                self.assertRegex(report.cause(found[name]), cause, said)

    def test_random_correct_modules_are_the_same(self) -> None:
        counts = [(2, 0, 120), (3, 120, 200)] if FULL else [(2, 0, 16), (3, 120, 128)]
        for count, first, last in counts:
            self.same(verdicts(count, "random_modules", first, last), last - first)

    def test_correct_scripts_are_the_same(self) -> None:
        self.same(verdicts(2, "scripts", FULL), 43 if FULL else 14)

    def test_the_command_says_what_differs_first(self) -> None:
        code, said, messages = compare("-n", "2", "--json", "--", sys.executable, "train.py", "differs")
        self.assertEqual(messages.count("compare: the script ends here, inside step 3 of --steps 3"), 2, messages)
        found = json.loads(said)
        self.assertEqual((code, found["same"], found["steps"], found["ranks"], found["parameters"]), (8, False, 3, 2, 4))
        first = found["differences"][0]
        self.assertEqual((first["what"], first["name"], first["step"]), ("gradient", "0.bias", 1))
        self.assertAlmostEqual(first["engine"] / first["reference"], 1.0001, delta=2e-6)
        self.assertLess(first["allowed"], first["difference"] / 10)

    def test_another_layout_is_the_reference_of_a_short_script(self) -> None:
        code, said, messages = compare("--against", "other.json", "--", sys.executable, "-X", "utf8", "train.py", "short")
        self.assertEqual(code, 0, said + messages)
        self.assertRegex(said, r"(?s)^same: 2 steps, 4 parameters, 1 rank; .*note: the script ended after 2 of 3 steps")
        self.assertEqual([messages.count("the loop ended"), messages.count("the script ends here")], [2, 0])

    def test_pipelines_are_the_same_on_the_ranks_of_each_stage(self) -> None:
        for ranks_, stages, precision in ((2, 2, "fp16"), (4, 2, "bf16"), (3, 3, "fp32")):
            words = "-n", str(ranks_), "--steps", "2", "--", sys.executable, "train.py", "plain", str(stages), precision
            code, said, messages = compare(*words, script=PIPELINE)
            self.assertEqual(code, 0, said + messages)
            self.assertRegex(said, rf"^same: 2 steps, 19 parameters, {ranks_} ranks; \d\d\d inputs, outputs and losses have equal bits")

    def test_a_difference_on_a_later_stage_of_a_pipeline_is_named(self) -> None:
        code, said, _ = compare("-n", "2", "--steps", "1", "--", sys.executable, "train.py", "differs", "2", "fp32", script=PIPELINE)
        self.assertEqual(code, 8, said)
        self.assertRegex(said, r"^different: step 1: gradient of 3\.up\.bias")

    def test_pipelines_that_cannot_be_compared_are_errors(self) -> None:
        for words, problem in (
            (
                ("--against", "other.json", "--", sys.executable, "train.py", "plain", "1", "fp32"),
                "PipelineModule: not supported with --against",
            ),
            (("-n", "2", "--", sys.executable, "train.py", "virtual", "2", "fp32"), "virtual_stages: not supported by cleave compare"),
        ):
            code, said, messages = compare(*words, script=PIPELINE)
            self.assertEqual((code, said), (2, ""), messages)
            self.assertIn(problem, messages)

    def test_a_stop_ends_the_script_and_removes_the_records(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "train.py").write_text(SCRIPT)
            pathlib.Path(folder, "records").mkdir()
            words = [ranks.CLEAVE, "compare", "-n", "2", "--steps", "1000000", "--", sys.executable, "train.py", "endless"]
            env = {**os.environ, "TMPDIR": os.path.join(folder, "records")}
            process = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert process.stdout is not None
            while "records of gradients" not in (line := process.stdout.readline()):
                self.assertTrue(line, "the script ended")
            process.terminate()
            process.communicate()  # returns when no process of the comparison is left
            left = [name for name in os.listdir(env["TMPDIR"]) if name.startswith("cleave")]
            self.assertEqual((process.returncode, left), (143, []))

    def test_a_folder_that_cannot_be_made_is_an_error(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            code, said, messages = compare("--keep", f"{file.name}/below", "--", sys.executable, "train.py", "short")
            self.assertEqual((code, said), (2, ""))
            self.assertIn(f"--keep: {file.name}/below cannot be made (Not a directory)", messages)

    def test_a_checksum_is_that_of_the_values_in_order(self) -> None:
        for size in (3, 1000):
            turned = torch.randn(size, size).t()
            for kind in (turned, turned[:, ::2], turned.bfloat16()):
                self.assertEqual(records.checksum(kind), records.checksum(kind.clone(memory_format=torch.contiguous_format)))

    def test_tensor_parallel_scripts_are_an_error(self) -> None:
        code, said, messages = compare("-n", "2", "--", sys.executable, "train.py", "tensor")
        self.assertEqual((code, said), (2, ""), messages)
        self.assertIn("tensor_parallel.autotp_size: not supported by cleave compare", messages)

    def test_a_failed_script_keeps_its_exit_code(self) -> None:
        code, said, messages = compare("--steps", "1", "--", sys.executable, "train.py", "fails")
        self.assertEqual((code, said), (7, ""))
        self.assertRegex(messages, r"error: compare: the script failed with plain torch \(exit code 7\); its message is above")
        self.assertNotIn("the loop ended", messages)

    def test_a_script_that_imports_an_installed_deepspeed_runs_on_the_engine(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "deepspeed").mkdir()
            pathlib.Path(folder, "deepspeed/__init__.py").write_text("raise ImportError('this is DeepSpeed')")
            code = (
                "from cleave.compare.names import alias, is_deepspeed_here; assert is_deepspeed_here(); alias('deepspeed', 'cleave'); "
                "import deepspeed; from deepspeed.ops.adam import FusedAdam; print(deepspeed.__name__, FusedAdam.__module__)"
            )
            path = os.pathsep.join([folder, os.environ["PYTHONPATH"]])
            done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
            self.assertEqual(done.stdout.split(), ["cleave", "cleave.optimizers"], done.stderr)

    def test_wrong_command_lines_are_errors(self) -> None:
        python = sys.executable
        for words, problem in (
            ([], "compare: nothing to train; write a script after --"),
            (["a.json", "--", "train.py"], "compare: needs two ds_config files (got a.json), or a script after --"),
            (["--steps", "0", "--", python, "train.py"], "--steps: expected an integer from 1 to 1000000, got 0"),
            (["--against", "nothing.json", "--", python, "train.py"], "--against: expected torch, deepspeed or an existing ds_config file"),
            (["--", python, "nothing.py"], "nothing.py: does not exist"),
            (["--", python, "-c", "pass"], "compare: -c is not supported"),
            (["--keep", ".", "--", python, "train.py"], "--keep: . is not empty"),
        ):
            code, said, messages = compare(*words)
            self.assertEqual((code, said), (2, ""), words)
            self.assertIn(problem, messages)


if __name__ == "__main__":
    unittest.main(verbosity=2)
