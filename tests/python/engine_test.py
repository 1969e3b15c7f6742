#!/usr/bin/env python3
"""A module of torch's in the engine, against the same module in torch alone."""

from __future__ import annotations

import subprocess
import tempfile
import time
import unittest

import ranks

CASES = "engine_cases"


class Engine(unittest.TestCase):
    def test_losses_and_norms_are_those_of_torch_at_every_stage(self) -> None:
        kinds = [["Mlp"], ["Conv"], ["Gpt", True], ["Gpt", False], ["Odd"], ["Skipping"]]
        for count in (1, 3):
            [first, *_] = ranks.answers(count, CASES, "against_torch", kinds)
            self.assertEqual(len(first), 24)
            for case, far in first.items():
                self.assertLess(far, 1e-5, f"{case} on {count} ranks")

    def test_50_random_modules_train_as_in_torch_at_random_stages_and_placements(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            [first, _] = ranks.answers(2, CASES, "random_modules", list(range(50)), folder)
        self.assertEqual(len(first), 50)
        for case, far in first.items():
            self.assertLess(far, 1e-5, case)

    def test_weights_have_the_same_bits_at_every_stage_and_placement(self) -> None:
        for precision, model, steps, exact in (("fp32", "Gpt", 20, False), ("bf16", "Gpt", 5, False), ("bf16", "Skipping", 5, True)):
            with self.subTest(precision=precision, model=model), tempfile.TemporaryDirectory() as folder:
                [first, second] = ranks.answers(2, CASES, "digests", model, folder, precision, steps, exact)
                self.assertEqual(first, second)
                self.assertEqual(len(set(first.values())), 1, first)

    def test_optimizers_of_torch_are_the_engines_with_their_groups_and_schedules(self) -> None:
        for stage in (0, 3):
            [first, _] = ranks.answers(2, CASES, "optimizer_objects", stage)
            for case, far in first.items():
                self.assertLess(far, 1e-5, f"{case} at stage {stage}")

    def test_callables_and_the_configuration_make_optimizers_and_schedules(self) -> None:
        rates = ranks.answers(2, CASES, "callables", 2)[0]
        for got, want in zip(rates, [8e-3, 4e-3, 8e-3 / 3, 0, 0, 2e-3], strict=True):
            self.assertAlmostEqual(got, want)

    def test_sixteen_bits_are_torchs_and_overflows_skip_steps(self) -> None:
        for stage in (1, 3):
            bf16 = ranks.answers(2, CASES, "half_precision", stage, "bf16")[0]
            self.assertLess(bf16["far"], 4e-3, "sums of gradients rounded to 8 bits")
            self.assertEqual(bf16["skipped"], 0)
            fp16 = ranks.answers(2, CASES, "half_precision", stage, "fp16")[0]
            self.assertLess(fp16["far"], 5e-4, "sums of gradients rounded to 11 bits")
            self.assertGreater(fp16["skipped"], 0)
            self.assertEqual(fp16["steps"], 12)
            halved = [2.0 ** (17 - k) for k in range(fp16["skipped"])]  # after each step, for the next
            self.assertEqual(fp16["scales"], halved + [2.0 ** (18 - fp16["skipped"])] * (12 - fp16["skipped"]))

    def test_a_checkpoint_continues_at_another_stage_on_other_ranks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            unbroken = ranks.answers(2, CASES, "resumed", folder, 1, 0, True)[0]
            for count, stage in ((2, 1), (1, 0), (4, 3), (2, 2)):
                again = ranks.answers(count, CASES, "resumed", folder, 1, stage, False)[0]
                self.assertEqual(again["lr"], unbroken["lr"])
                for got, want in zip(again["losses"], unbroken["losses"], strict=True):
                    for a, b in zip(got, want, strict=True):
                        self.assertAlmostEqual(a, b, delta=1e-5 * max(1, abs(b)), msg=f"{count} ranks, stage {stage}")
            verified = subprocess.run([ranks.CLEAVE, "verify", folder], capture_output=True, text=True)
            self.assertEqual(verified.returncode, 0, verified.stderr)
            self.assertIn("is whole", verified.stdout)

    def test_gathered_parameters_are_whole_and_a_ranks_changes_reach_all(self) -> None:
        for stage in (2, 3):
            for rank, seen in enumerate(ranks.answers(2, CASES, "gathered", stage)):
                self.assertEqual(seen["outside"], stage == 3, "without values between uses at stage 3")
                self.assertEqual(seen["shape"], [5, 12])
                self.assertTrue(seen["inside"])
                self.assertEqual(seen["changed"], [2.5] * 12)
                self.assertTrue(seen["kept"], "what was not changed keeps its master")
                self.assertEqual(seen["names"], True if rank == 0 else None)

    def test_a_model_is_built_sharded(self) -> None:
        for seen in ranks.answers(2, CASES, "built_sharded"):
            self.assertLess(seen["held"], 0.52 * seen["numel"], "a rank's part of two")
            self.assertTrue(seen["nothing"], "parameters have no values")
            self.assertEqual(seen["statuses"], [["NOT_AVAILABLE"], ["AVAILABLE"], ["NOT_AVAILABLE"]], "built, gathered, in the engine")
            self.assertTrue(seen["same"], "gathered, they have those of a model that was built whole")
            self.assertLess(seen["far"], 1e-5)

    def test_buffers_keep_their_type_or_have_that_of_the_configuration(self) -> None:
        kept, given = ranks.answers(1, CASES, "buffers")[0]
        self.assertEqual(kept, ["torch.float32", "torch.float32", "torch.int64"])
        self.assertEqual(given, ["torch.bfloat16", "torch.bfloat16", "torch.int64"])

    def test_modules_and_blocks_may_be_compiled(self) -> None:
        for case, far in ranks.answers(2, CASES, "compiled", [1, 3])[0].items():
            self.assertLess(far, 1e-5, case)

    def test_states_of_parameters_are_read_and_written_whole(self) -> None:
        for key in ("first", "moment"):
            at = [ranks.answers(2, CASES, "states", stage)[0] for stage in (0, 3)]
            for a, b in zip(at[0][key], at[1][key], strict=True):
                self.assertAlmostEqual(a, b, delta=1e-6)
            self.assertNotEqual(set(at[0][key]), {0.0})
            self.assertEqual(at[1]["shown"], [0.5] * 5)

    def test_gradients_may_be_changed_before_the_update(self) -> None:
        [first, second] = ranks.answers(2, CASES, "changed_gradients", [0, 1, 2, 3])
        self.assertEqual(first, second)
        self.assertEqual(len(first), 15)
        for case, far in first.items():
            self.assertLess(far, 2e-6, case)

    def test_what_an_engine_does_beside_its_steps(self) -> None:
        for stage, seen in ranks.answers(2, CASES, "surface", [1, 3])[0].items():
            with self.subTest(stage=stage):
                self.assertTrue(seen["loaded"] and seen["compiled"])
                self.assertLess(seen["far"], 1e-5, "three micro-batches by engine.scale(loss).backward()")
                self.assertIn("UsageError: load_module_state_dict: missing blocks.0", seen["missing"])
                self.assertIn("embed.weight has the shape [1]; wanted [5, 12]", seen["shape"])
                self.assertIn("wanted a multiple of 8", seen["batch"])
                self.assertIn("NotBuilt: offload_states is not built; zero_optimization.offload_optimizer", seen["offload"])
                self.assertIn("between the last backward of a step and its update", seen["early"])
                self.assertRegex(seen["tags"], "the tag is of rank [01] on this rank, and another")
                self.assertIn("head.bias may be updated already", seen["ahead"])
                self.assertIn("step within no_sync" if stage == "1" else "leave it out", seen["within"])
                for case, far in seen["gradients"].items():
                    self.assertLess(far, 1e-6, f"gradients, {case}")
                self.assertLess(seen["autocast"], 1e-5)
                self.assertGreater(seen["fp32"], 1e-4, "autocast is on")

    def test_autocast_in_fp16_scales_the_loss_as_torch_does(self) -> None:
        for stage in (0, 2):
            seen = ranks.answers(2, CASES, "autocast_in_fp16", stage)[0]
            self.assertEqual(seen["scales"], seen["want"])
            self.assertEqual(seen["scales"][0] / seen["scales"][-1], 2, "an overflow halves it")
            self.assertEqual(seen["skipped"], 1)
            self.assertLess(seen["far"], 1e-4, "weights")

    def test_an_error_that_nobody_catches_ends_the_job_with_the_code_of_the_command_line(self) -> None:
        ended = ranks.run(2, CASES, "refused", timeout=60)
        self.assertEqual(ended.code, 2)
        self.assertIn("gradient_cliping", ended.output)

    def test_activations_may_be_computed_again(self) -> None:
        for stage in (2, 3):
            for mode, far in ranks.answers(2, CASES, "checkpointed", stage)[0].items():
                self.assertLess(far, 1e-6, f"{mode} at stage {stage}")

    def test_each_rank_has_its_share_of_the_samples(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shares = ranks.answers(2, CASES, "loader", 20, folder)
        self.assertEqual(sorted(k for share in shares for k in share["seen"]), list(range(20)))
        for share in shares:
            for tag in ("a", "b"):
                self.assertEqual(share[tag], share["third"], "from a checkpoint on, the next batch that no step had")
                self.assertEqual(share[tag + " after"], share["seen"], "a whole pass behind it")

    def test_mistakes_are_named(self) -> None:
        expected = {
            "unknown key": ["UsageError", 'gradient_cliping: unknown key; did you mean "gradient_clipping"?'],
            "no file": ["UsageError", "nowhere.json: there is no such file"],
            "twice": ["UsageError", "given twice"],
            "groups": [
                "NotBuilt",
                'differ in momentum, 0.0 and 0.1, are not built; give all the same, or "zero_allow_untested_optimizer": true',
            ],
            "step alone": ["StepOrderError", "step without a backward"],
            "past the engine": ["StepOrderError", "call the engine, not its module, or engine.backward(loss)"],
            "stage 3: past the engine": ["StepOrderError", "call the engine, not its module, or engine.backward(loss)"],
            "backward twice": ["RuntimeError", "second time"],
            "in place": ["RuntimeError", "modified by an inplace operation"],
            "stage 3: in place": ["RuntimeError", "modified by an inplace operation"],
            "other model": ["CheckpointError", "holds no master of positions"],
            "save within": ["StepOrderError", "between the last backward of a step and engine.step()"],
            "load within": ["StepOrderError", "load_checkpoint within a step"],
        }
        with tempfile.TemporaryDirectory() as folder:
            said = ranks.answers(1, CASES, "refusals", list(expected), folder)[0]
        for which, words in expected.items():
            for word in words:
                self.assertIn(word, said[which], which)

    def test_backwards_that_scripts_call_themselves_are_torchs(self) -> None:
        for case, far in ranks.answers(2, CASES, "own_backwards", [0, 1, 2, 3])[0].items():
            self.assertLess(far, 1e-5, case)

    def test_backwards_that_scripts_call_themselves_want_the_loss_scale(self) -> None:
        for stage in (1, 3):
            said = ranks.answers(1, CASES, "scaled_backwards", stage)[0]
            self.assertEqual(said["norms"][:2], said["norms"][2:])
            self.assertIn("StepOrderError: Loss scaling is required", said["unscaled"])
            self.assertIn("StepOrderError: engine.backward of another engine reaches parameters of Mlp", said["another's"])
            self.assertIn("zero_grad between loss.backward() and engine.step()", said["taken back"])
            self.assertEqual(said["failed"], "ValueError: a hook of the script")
            self.assertIn("the engine cannot go on: a backward that the script called ended with an error", said["after"])

    def test_backwards_of_one_step_are_added(self) -> None:
        for case, far in ranks.answers(2, CASES, "added_backwards", [0, 1, 2, 3])[0].items():
            self.assertLess(far, 1e-5, case)

    def test_a_rank_that_throws_ends_the_others_with_its_reason(self) -> None:
        begin = time.monotonic()
        ended = ranks.run(2, CASES, "raises", 1, "throw", timeout=60)
        self.assertNotEqual(ended.code, 0)
        self.assertIn("the loss of this rank is bad", ended.output)
        ended = ranks.run(2, CASES, "raises", 1, "exit", timeout=60)
        self.assertEqual(ended.code, 9)
        self.assertLess(time.monotonic() - begin, 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
