#!/usr/bin/env python3
"""Checkpoints of PyTorch scripts, cleave train and DeepSpeed in both directions, and export of whole weights."""

import contextlib
import io
import json
import os
import pathlib
import stat
import struct
import subprocess
import tempfile
import unittest
from typing import Any, ClassVar

import ranks
import safetensors.torch
import torch
from cleave import CheckpointError
from cleave.utils import zero_to_fp32

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
PUBLISHED, DEEPSPEED = FIXTURES / "published", FIXTURES / "deepspeed"
LENGTH = 12
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 2, "total_num_steps": 9}},
}
MODELS = {"gpt2": 3, "llama": 1}  # ZeRO stage of the resumed torch training; gpt2's matrices are transposed there

OF_DEEPSPEED = [
    ("zero2_fp32", 2),
    ("zero2_fp32", 3),
    ("zero1_bf16", 1),
    ("zero3_bf16", 3),
    ("zero1_fp16", 3),
]  # ZeRO stage of the resumed training


def expected_of(name: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(DEEPSPEED / f"{name}.expected.safetensors")


class Checkpoints(unittest.TestCase):
    folder: ClassVar[pathlib.Path]
    unbroken: ClassVar[dict[str, list[float]]]
    got: ClassVar[dict[Any, dict[str, Any]]]
    said: ClassVar[str]
    warnings: ClassVar[list[list[str]]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        draw = torch.Generator().manual_seed(2)
        cls.tokens = torch.randint(3, 61, (2 * LENGTH + 1,), generator=draw).tolist()
        (cls.folder / "tokens.bin").write_bytes(struct.pack(f"<{len(cls.tokens)}H", *cls.tokens))
        windows = [cls.tokens[i * LENGTH : (i + 1) * LENGTH + 1] for i in range(2)]
        cls.unbroken = {name: cls.train(name, cls.folder / name, 6) for name in MODELS}
        cases: list[list[Any]] = []
        for name, stage in MODELS.items():
            saved, out = str(cls.folder / name), str(cls.folder / f"{name} 4")
            cases.append(["of_the_trainer", str(PUBLISHED / name), windows, saved, stage, CONFIG, out])
        for name, stage in OF_DEEPSPEED:
            cases.append(["of_deepspeed", str(DEEPSPEED / name), expected_of(name)["tokens"].tolist(), stage, name.partition("_")[2]])
        cases.append(["under_other_names", str(PUBLISHED / "gpt2"), str(cls.folder / "gpt2")])
        own = {**CONFIG, "cleave": {"native": True, "sequence_length": LENGTH + 1}}
        for name in MODELS:
            cases.insert(
                -1, ["of_the_trainer", str(PUBLISHED / name), windows, str(cls.folder / name), 2, own, str(cls.folder / f"own {name}")]
            )
        cases.append(["with_other_settings", str(cls.folder / "settings")])
        *got, cls.said, cls.warnings = ranks.answers(2, "checkpoint_cases", "several", cases)[0]
        cls.got = dict(zip([*MODELS, *OF_DEEPSPEED, *(f"own {name}" for name in MODELS)], got, strict=True))

    @classmethod
    def train(cls, name: str, output: pathlib.Path, steps: int, *more: str) -> list[float]:
        """Returns the losses of cleave train on one rank, which trains on both windows in each step."""
        config, metrics = cls.folder / "one.json", cls.folder / "metrics.jsonl"
        config.write_text(json.dumps({**CONFIG, "train_micro_batch_size_per_gpu": 2}))
        metrics.unlink(missing_ok=True)
        command = [ranks.CLEAVE, "train", "--deepspeed_config", config, "--model", PUBLISHED / name, "--data", cls.folder / "tokens.bin"]
        command += ["--seq_len", LENGTH, "--steps", steps, "--output", output, "--metrics", metrics]
        command += ["--save_interval", 2, "--keep", 0, *more]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return [line["loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]

    def expect_close(self, got: list[float], want: list[float], what: str, relative: float = 1e-5) -> None:
        for a, b in zip(got, want, strict=True):
            self.assertAlmostEqual(a, b, delta=relative * max(1, abs(b)), msg=what)

    def test_torch_and_cleave_train_resume_from_each_other(self) -> None:
        for name in MODELS:
            got, want = self.got[name], self.unbroken[name]
            self.assertEqual(got["path"], str(self.folder / name / "global_step2"))
            self.assertEqual(got["at"], [2, 1], "steps, and the schedule's place")
            self.expect_close(got["losses"], want[2:4], f"{name} in torch")
            self.expect_close(self.train(name, self.folder / f"{name} 4", 6, "--resume", "required"), want[4:], f"{name} in cleave train")
            self.assertGreater(abs(want[3] - want[4]), 1e-3, "losses that move")

    def test_native_models_and_cleave_train_resume_from_each_other(self) -> None:
        for name in MODELS:
            got, want = self.got[f"own {name}"], self.unbroken[name]
            self.assertEqual(got["at"], [2, 1], "steps, and the schedule's place")
            self.expect_close(got["losses"], want[2:4], name)
        again = self.train("gpt2", self.folder / "own gpt2", 6, "--resume", "required")
        self.expect_close(again, self.unbroken["gpt2"][4:], "in cleave train")
        state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(self.folder / "own gpt2", "global_step4")
        self.assertIn("transformer.h.0.mlp.c_fc.weight", state)

    def test_torch_resumes_from_deepspeed(self) -> None:
        for name, stage in OF_DEEPSPEED:
            got, want = self.got[name, stage], expected_of(name)["losses"].tolist()
            samples = {"zero2_fp32": 3, "zero1_bf16": 6, "zero3_bf16": 9, "zero1_fp16": 6}[name]
            self.assertEqual(got["counters"], [3, 2 if name.endswith("fp16") else 0, samples], "by its ranks")
            scale = float(expected_of(name).get("loss_scale", torch.ones(1))[0])
            self.assertEqual(got["scales"], [scale, scale], "where it was, and without an overflow there")
            self.assertIn("ds_config", got["client"])
            self.assertGreater(got["states"], 3 * 10, "masters and moments")
            self.assertEqual(got["far"], 0, f"{name} at stage {stage}")
            if name.endswith("fp32"):
                self.expect_close(got["losses"], want, f"{name} at stage {stage}")
            else:  # its ranks had different tokens, so only one loss is equal
                self.expect_close(got["losses"][:1], want[:1], f"{name} at stage {stage}", 4e-3)

    def test_names_that_do_not_match_are_an_error(self) -> None:
        for words in (": master of ", "h.0.attn.c_attn.bias", "extra: transformer.h.0", "matched by name"):
            self.assertIn(words, self.said)

    def test_settings_that_differ_from_the_checkpoint_are_warnings(self) -> None:
        same, changed = self.warnings
        self.assertEqual(same, [])
        self.assertEqual(len(changed), 3)
        for line, said in zip(
            changed,
            (
                "gradient_clipping is 0.5 now and was 1 in the checkpoint",
                "optimizer.params.lr is 0.02 now and was 0.01 in the checkpoint; the checkpoint's value is used",
                "train_batch_size is 4 now and was 2 in the checkpoint",
            ),
            strict=True,
        ):
            self.assertTrue(line.endswith(said), line)
            self.assertIn("settings/global_step1: ", line)

    def test_whole_weights_of_deepspeeds_checkpoints(self) -> None:
        for name in ("zero1_bf16", "zero3_bf16"):
            state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(DEEPSPEED / name)
            want = {key.removeprefix("fp32."): value for key, value in expected_of(name).items() if key.startswith("fp32.")}
            self.assertLessEqual(want.keys(), state.keys())
            for key, value in want.items():
                self.assertTrue(torch.equal(state[key], value), f"{name}: {key}")
            self.assertIs(state["lm_head.weight"], state["model.embed_tokens.weight"])

    def test_whole_weights_equal_those_of_an_export(self) -> None:
        import transformers

        for name in MODELS:
            for saved, tag in ((self.folder / name, "global_step4"), (self.folder / f"{name} 4", "global_step4")):
                model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(PUBLISHED / name))
                state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved, tag)
                self.assertEqual(state.keys(), model.state_dict().keys())
                zero_to_fp32.load_state_dict_from_zero_checkpoint(model, saved, tag)
                window = torch.tensor(self.tokens)
                logits = torch.stack([model(window[None, i * LENGTH : (i + 1) * LENGTH]).logits[0] for i in range(2)]).flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, window[1:])
                self.assertAlmostEqual(loss.item(), self.unbroken[name][4], delta=1e-5, msg=f"{name}: before step 5")

    def test_files_of_whole_weights(self) -> None:
        saved = self.folder / "gpt2"
        state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
        lazy = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved, lazy_mode=True)
        self.assertEqual({k: tuple(v.shape) for k, v in lazy.items()}, {k: tuple(v.shape) for k, v in state.items()})
        self.assertTrue(all(torch.equal(lazy[key].contiguous(), value) for key, value in state.items()))
        one, many = self.folder / "one", self.folder / "many"
        zero_to_fp32.main([str(saved), str(one)])
        self.assertEqual([p.name for p in one.iterdir()], ["pytorch_model.bin"])
        loaded = torch.load(one / "pytorch_model.bin", weights_only=True)
        self.assertTrue(all(torch.equal(loaded[key], value) for key, value in state.items()))
        before = os.umask(0o027)
        zero_to_fp32.main([str(saved), str(many), "--safe_serialization", "--max_shard_size", "8KB"])
        os.umask(before)
        self.assertEqual({stat.S_IMODE(p.stat().st_mode) for p in many.iterdir()}, {0o640}, "that of new files")
        index = json.loads((many / "model.safetensors.index.json").read_text())["weight_map"]
        self.assertGreater(len(set(index.values())), 2)
        for key, file in index.items():
            self.assertTrue(torch.equal(safetensors.torch.load_file(many / file)[key], state[key]), key)

    def test_a_checkpoint_that_is_missing_or_cut_short_is_named(self) -> None:
        with self.assertRaisesRegex(CheckpointError, "global_step9: does not exist or is incomplete; complete checkpoints in"):
            zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(self.folder / "gpt2", "global_step9")
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            zero_to_fp32.main([str(self.folder / "nowhere"), str(self.folder / "out")])
        self.assertEqual(ended.exception.code, 4)
        self.assertIn("does not exist; give the --output folder", said.getvalue())


class Faults(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def expect_whole(self, names: list[str]) -> None:
        """Checks that the folder has exactly these checkpoints, and that all checksums of the last one match."""
        self.assertEqual(sorted(p.name for p in pathlib.Path(self.folder).iterdir()), sorted(["latest", *names]))
        verified = subprocess.run([ranks.CLEAVE, "verify", self.folder], capture_output=True, text=True)
        self.assertIn(f"{names[-1]} is complete", verified.stdout + verified.stderr)

    def test_a_training_continues_after_a_save_without_space_and_a_truncated_checkpoint(self) -> None:
        for seen in ranks.answers(2, "fault_cases", "survives", self.folder):
            self.assertRegex(seen["no space"], "^CheckpointError: .*(too large|space)")
            self.assertEqual(seen["left"], ["latest", "whole"])
            self.assertRegex(seen["cut"], "^CheckpointError: .*cut/")
            self.assertEqual(len(seen["damaged"]), 4)
            others = r"\(complete: (whole|cut|whole, cut|cut, whole)\)$"
            for fault, said in {"cut": seen["cut"], **seen["damaged"]}.items():
                self.assertRegex(said, rf"; load another checkpoint of {self.folder} with tag {others}", fault)
                self.assertNotRegex(said, r"[\x00-\x1f]", fault)
            self.assertEqual(seen["again"], seen["before"])
        ended = ranks.run(2, "fault_cases", "loads", self.folder, "cut", timeout=60)
        self.assertEqual(ended.code, 4)
        self.assertIn("CheckpointError", ended.output)

    def test_the_deadline_of_a_ds_config_holds_in_a_script_and_a_late_one_is_a_warning(self) -> None:
        ended = ranks.run(2, "fault_cases", "waits", False, timeout=60)
        self.assertEqual(ended.code, 6, ended.output)
        self.assertIn("rank 0 waited 3.0 s, the deadline. Present: rank 0; missing: rank 1", ended.output)
        late = ranks.run(2, "fault_cases", "waits", True, timeout=60)
        self.assertEqual(late.code, 0, late.output)
        said = "cleave.comm_timeout_s is 3, but the ranks met before with a deadline of 600 s, which stays"
        self.assertEqual(late.output.count(said), 1, late.output)

    def test_ranks_that_were_started_with_different_inputs_train_nothing(self) -> None:
        for what, parts in {
            "config": [
                "optimizer.params.lr: ranks differ (rank 0: 0.01, rank 1: 0.02)",
                "zero_optimization.stage: ranks differ (rank 0: 1, ",
            ],
            "model": ["the model: ranks differ (rank 0: Mlp, rank 1: Conv)"],
            "parameters": [
                "parameter layers.3.bias: ranks differ (rank 0: shape [12], group 0, weight decay, float32, rank 1: not set)",
                "parameter layers.0.bias: ranks differ (rank 0: shape [12], group 0, weight decay, float32, rank 1: shape [12], group 0, ",
                "parameter head.bias: ranks differ (rank 0: shape [5], group 0, weight decay, float32, rank 1: shape [5], frozen",
            ],
        }.items():
            with self.subTest(what=what):
                ended = ranks.run(2, "fault_cases", "differs", what, timeout=60)
                self.assertEqual(ended.code, 2, ended.output)
                for part in [*parts, "; start all ranks with the same command"]:
                    self.assertIn(part, ended.output)
                self.assertNotIn("RankLost", ended.output)
        ended = ranks.run(2, "fault_cases", "differs", "rates", timeout=60)
        self.assertEqual(ended.code, 2, ended.output)
        self.assertIn("learning rates, betas or weight decay of the parameter groups differ between ranks", ended.output)
        ended = ranks.run(2, "fault_cases", "differs", "values", timeout=60)
        self.assertEqual(ended.code, 0, ended.output)

    def test_a_background_save_in_the_last_line_of_a_script_is_complete(self) -> None:
        ranks.answers(2, "fault_cases", "saves_behind_its_end", self.folder)
        self.expect_whole(["last"])

    def test_a_killed_rank_ends_the_job_and_checkpoints_remain(self) -> None:
        ended = ranks.run(2, "fault_cases", "is_killed", self.folder, timeout=60)
        self.assertEqual(ended.code, 128 + 9)
        self.assertIn("rank 1", ended.output)
        self.expect_whole(["before"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
