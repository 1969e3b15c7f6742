#!/usr/bin/env python3
"""Features of an engine other than steps: arguments, loaders, files, and errors."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest

import ranks
from cleave.configuration import configuration_of

CASES = "surface_cases"


class Surface(unittest.TestCase):
    def test_buffers_keep_their_type_or_have_that_of_the_configuration(self) -> None:
        kept, given = ranks.answers(1, CASES, "buffers")[0]
        self.assertEqual(kept, ["torch.float32", "torch.float32", "torch.int64"])
        self.assertEqual(given, ["torch.bfloat16", "torch.bfloat16", "torch.int64"])

    def test_features_of_an_engine_other_than_steps(self) -> None:
        for stage, seen in ranks.answers(2, CASES, "surface", [1, 3])[0].items():
            with self.subTest(stage=stage):
                self.assertTrue(seen["loaded"] and seen["compiled"])
                self.assertLess(seen["far"], 1e-5, "three micro-batches by engine.scale(loss).backward()")
                self.assertIn("UsageError: load_module_state_dict: wrong names (missing blocks.0", seen["missing"])
                self.assertIn("embed.weight has the wrong shape (got [1], expected [5, 12])", seen["shape"])
                self.assertIn("expected a multiple of 8", seen["batch"])
                self.assertIn("UsageError: offload_states: wrong device (got nvme, expected cpu)", seen["offload"])
                self.assertIn("between the last backward of a step and its update", seen["early"])
                self.assertIn("head.bias may be updated already", seen["ahead"])
                within = "illegal to call Engine.step() inside no_sync" if stage == "1" else "no_sync context manager is incompatible"
                self.assertIn(within, seen["within"])
                for case, far in seen["gradients"].items():
                    self.assertLess(far, 1e-6, f"gradients, {case}")
                self.assertLess(seen["autocast"], 1e-5)
                self.assertGreater(seen["fp32"], 1e-4, "autocast is on")

    def test_a_file_with_comments_or_in_hjson_has_its_sections(self) -> None:
        strict = '{"train_batch_size": 2, "optimizer": {"type": "AdamW"}, "cleave": {"native": true}}'
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            for text in (
                strict,
                strict.replace("{", "{ // of a run\n", 1),
                "{train_batch_size: 2\noptimizer: {type: AdamW\n}\ncleave: {native: true}\n}\n",
            ):
                file.seek(0)
                file.truncate()
                file.write(text)
                file.flush()
                found = configuration_of(file.name)
                self.assertEqual(found.section("optimizer"), {"type": "AdamW"}, text)
                self.assertTrue(found.native(), text)

    def test_other_names_of_keys_have_the_same_effect(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for dtype, loss, *answers in ranks.answers(1, CASES, "other_names", folder)[0]:
                self.assertEqual([dtype, *answers], ["torch.bfloat16", True, True])
                self.assertTrue(0 < loss < 10, loss)

    def test_an_uncaught_error_ends_the_job_with_the_code_of_the_command_line(self) -> None:
        ended = ranks.run(2, CASES, "refused", timeout=60)
        self.assertEqual(ended.code, 2)
        self.assertIn("gradient_cliping", ended.output)

    def test_each_rank_has_its_share_of_the_samples(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shares = ranks.answers(2, CASES, "loader", 20, folder)
        self.assertEqual(sorted(k for share in shares for k in share["seen"]), list(range(20)))
        for share in shares:
            for tag in ("a", "b"):
                self.assertEqual(share[tag], share["third"], "from a checkpoint on, the next batch that no step had")
                self.assertEqual(share[tag + " after"], share["seen"], "a whole pass after it")

    def test_ranks_with_different_folders_save_into_that_of_the_first(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ended = ranks.run(2, CASES, "folders", folder)
            self.assertEqual(ended.code, 0, ended.output)
            both = f"(rank 0: {folder}/run/of rank 0, rank 1: {folder}/run/of rank 1)"
        self.assertIn(f"warning: save_checkpoint: the folder differs between ranks {both}; ranks save to that of rank 0\n", ended.output)
        self.assertEqual(ended.output.count("loaded run/of rank 0/global_step1 ['of rank 0']"), 2)

    def test_arguments_are_honoured_or_errors_with_their_name(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            seen = ranks.answers(2, CASES, "arguments", folder)
        for rank in seen:
            self.assertEqual(rank["config_params"], [16, 1])
            self.assertEqual(len(rank["train"]), 5)
            self.assertEqual(rank["eval"], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]])
            self.assertEqual(rank["sampled"], [[107, 101], [103]])
            self.assertEqual(rank["loose"], "RMSprop", "1 is as good as true")
            for name in ("mpu", "mesh_param", "custom_load_fn"):
                self.assertRegex(rank[name], f"NotBuilt: {name}: not supported; ")
            self.assertIn("NotBuilt: custom_load_fn: not supported; change the state_dict", rank["of a module"])
        self.assertEqual(sorted(seen[0]["train"] + seen[1]["train"]), list(range(10)))
        self.assertEqual(sorted(seen[0]["collate_fn"] + seen[1]["collate_fn"]), list(range(100, 110)))

    def test_weights_in_16_bits_are_saved_whole(self) -> None:
        frozen = ["frozen.bias", "frozen.weight", "partly.bias"]
        with tempfile.TemporaryDirectory() as folder:
            for stage, found in ranks.answers(2, CASES, "saved_weights", folder, [1, 3])[0].items():
                self.assertEqual(found, [True, True, frozen], f"stage {stage}")

    def test_groups_have_default_values_for_missing_keys(self) -> None:
        [seen] = ranks.answers(1, CASES, "usual_values")
        adam = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
        self.assertEqual(seen["Adam"]["group"], adam)
        self.assertEqual(seen["AdamW"]["group"], {**adam, "eps": 1e-6})
        self.assertEqual(seen["adamw"]["group"], {**adam, "weight_decay": 0.01})
        self.assertEqual(seen["Adagrad"]["group"], {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0})
        self.assertEqual(seen["SGD"]["group"], {"lr": 1e-3, "momentum": 0.5, "weight_decay": 0.0})
        self.assertEqual([seen[name].pop("momentum") for name in ("Adam", "SGD")], [[[0.9, 0.999]], [0.5]])
        self.assertEqual(seen.pop("Lion"), [[0.8, 0.9]])
        for name, found in seen.items():
            self.assertLess(found["far"], 1e-6, name)

    def test_a_step_may_end_before_its_last_micro_batch(self) -> None:
        for case, far in ranks.answers(2, CASES, "ends_early", [0, 2, 3])[0].items():
            self.assertLess(far, 1e-6, case)

    def test_mistakes_are_named(self) -> None:
        expected = {
            "unknown key": ["UsageError", 'gradient_cliping: unknown key; did you mean "gradient_clipping"?'],
            "stages": ["UsageError", "pipeline.stages: got 2 for a Mlp; pass a PipelineModule, or set 1"],
            "no section": ["UsageError", "cleave: expected an object, or null, got 5"],
            "no file": ["UsageError", "nowhere.json: does not exist in ", "; give the path of a ds_config.json, or a dictionary"],
            "binary file": ["UsageError", "written.json: not a text file (expected JSON in UTF-8); give the path of a ds_config.json"],
            "folder": ["UsageError", ": cannot be read (Is a directory); give the path of a ds_config.json"],
            "no base64": ["UsageError", "config: neither an existing file nor a configuration in base64 (got AAAA"],
            "not finite": ["UsageError", "optimizer.params.betas[1]: not a finite number (got nan, expected a number); correct"],
            "no JSON": ["UsageError", "bf16.enabled: not a value of JSON (got a dtype, expected "],
            "dotted": ["UsageError", "optimizer.type: conflicts with optimizer (got 3, expected a dictionary); leave one out"],
            "scheduler": ["UsageError", "scheduler.type: expected one of ", "got a list of 1"],
            "value": ["NotBuilt", "optimizer.params: not accepted by torch.optim.NAdam: Invalid learning rate: -1"],
            "deep": ["UsageError", "the configuration: nested deeper than 64 levels (at cleave.a[0].a[0]", "; remove levels"],
            "deep file": ["UsageError", "nested deeper than 64 levels"],
            "rate": ["UsageError", "optimizer.param_groups: wrong lr (got 'x', expected a number); assign a number"],
            "betas": ["UsageError", "optimizer.param_groups: wrong betas (got 'x', expected two numbers); assign a pair of numbers"],
            "leaf": ["UsageError", "zero_optimization.leaf_module.classes: wrong type (got 5, expected a list of strings)"],
            "twice": ["UsageError", "config: conflicts with args.deepspeed_config"],
            "groups": [
                "NotBuilt",
                'with different momentum are not supported (got 0.0 and 0.1); use one value, or "zero_allow_untested_optimizer": true',
            ],
            "scale": [
                "UsageError",
                "scale: wrong loss (got Tensor[4, 5], expected one element); pass the mean of the micro-batch",
            ],
            "backward": [
                "UsageError",
                "backward: wrong loss (got list, expected one element); pass the mean of the micro-batch",
            ],
            "text": ["UsageError", "backward: wrong loss (got str, expected one element); pass the mean of the micro-batch"],
            "no gradient": ["UsageError", "scale: the loss has no gradient"],
            "arguments": ["NotBuilt", "not accepted by torch.optim.NAdam: ", "unexpected keyword argument 'speed'"],
            "unused": ["UsageError", "never.weight, never.bias: got no gradient; ", "ignore_unused_parameters to true"],
            "stage 3: unused": ["UsageError", "never.weight, never.bias: got no gradient; "],
            "boundary": ["UsageError", "set_gradient_accumulation_boundary: conflicts with managed_gradient_accumulation: false"],
            "no sync": ["StepOrderError", "illegal to call Engine.step() inside no_sync context manager"],
            "step alone": ["StepOrderError", "no backward since the last step"],
            "past the engine": ["StepOrderError", "call the engine, not its module, or engine.backward(loss)"],
            "stage 3: past the engine": ["StepOrderError", "call the engine, not its module, or engine.backward(loss)"],
            "backward twice": ["RuntimeError", "second time"],
            "in place": ["RuntimeError", "modified by an inplace operation"],
            "stage 3: in place": ["RuntimeError", "modified by an inplace operation"],
            "other model": ["CheckpointError", "missing: master of positions"],
            "no folder": ["UsageError", "save_checkpoint: wrong folder (got ''"],
            "save within": ["StepOrderError", "between the last backward of a step and engine.step()"],
            "load within": ["StepOrderError", "load_checkpoint: called inside a step"],
        }
        with tempfile.TemporaryDirectory() as folder:
            said = ranks.answers(1, CASES, "refusals", list(expected), folder)[0]
        for which, words in expected.items():
            for word in words:
                self.assertIn(word, said[which], which)

    def test_sections_of_null_are_absent(self) -> None:
        self.assertEqual(ranks.answers(1, CASES, "sections_of_null"), [[None, 1]])

    def test_a_destroyed_engine_names_the_action(self) -> None:
        [said] = ranks.answers(1, CASES, "destroyed")
        self.assertIn("engine: was destroyed; call initialize again with the module for a new engine", said)

    def test_an_old_torch_is_an_error_at_the_import(self) -> None:
        for version, code in (("2.9.1+cpu", 2), ("1.13.1", 2), ("2.10.0a0+git1", 0), ("3.0.0", 0)):
            script = f"import torch; torch.__version__ = {version!r}; import cleave; cleave.initialize"
            ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
            self.assertEqual(ended.returncode, code, ended.stderr)
            if code:
                self.assertIn(f"torch: too old (got {version}, expected 2.10 or newer); install another: pip install ", ended.stderr)

    def test_a_load_without_a_checkpoint_says_why(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            [said] = ranks.answers(1, CASES, "nothing_to_load", folder)
        instead = "so no checkpoint was loaded; to resume, pass the folder of save_checkpoint"
        empty = ": the file 'latest' is missing, so no checkpoint was loaded; select one with tag"
        self.assertEqual(said, [empty, f"/file: not a folder, {instead}", f"/missing: does not exist, {instead}"])

    def test_ranks_that_step_unequally_get_the_names_of_the_methods(self) -> None:
        ended = ranks.run(2, CASES, "steps_unequally", timeout=60)
        self.assertNotEqual(ended.code, 0)
        self.assertRegex(ended.output, r"ranks make different calls: .*; (all ranks must call engine\.backward and|call engine\.save_che)")

    def test_a_rank_that_saves_alone_names_its_call(self) -> None:
        ended = ranks.run(2, CASES, "saves_on_rank_0", 1, 20, timeout=60)
        self.assertNotEqual(ended.code, 0)
        for call in ("save_checkpoint", "backward"):  # the rank that comes second has its call aborted with this reason
            self.assertRegex(ended.output, rf"engine\.{call}: .*ranks make different calls: ")

    def test_a_rank_that_saves_alone_before_the_first_step_names_its_call_at_the_deadline(self) -> None:
        ended = ranks.run(2, CASES, "saves_on_rank_0", 0, 3, timeout=60)  # each rank waits in another group
        self.assertEqual(ended.code, 6)
        for call in ("save_checkpoint", "backward"):
            self.assertRegex(ended.output, rf"RankLost: engine\.{call}: .*(?:the deadline|was aborted)")

    def test_a_rank_that_throws_ends_the_others_with_its_reason(self) -> None:
        ended = ranks.run(2, CASES, "raises", 1, "throw", timeout=60)
        self.assertNotEqual(ended.code, 0)
        self.assertIn("the loss of this rank is bad", ended.output)
        ended = ranks.run(2, CASES, "raises", 1, "exit", timeout=60)
        self.assertEqual(ended.code, 9)


if __name__ == "__main__":
    unittest.main(verbosity=2)
