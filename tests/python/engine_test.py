#!/usr/bin/env python3
"""Modules in the engine, compared with the same modules in torch alone."""

from __future__ import annotations

import subprocess
import tempfile
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

    def test_16_bit_training_equals_torch_and_overflows_skip_steps(self) -> None:
        for stage in (1, 3):
            bf16 = ranks.answers(2, CASES, "half_precision", stage, "bf16")[0]
            self.assertLess(bf16["far"], 4e-3, "sums of gradients rounded to 8 bits")
            self.assertTrue(bf16["exact"], "masters begin with the module's fp32 values")
            self.assertEqual(bf16["skipped"], 0)
            fp16 = ranks.answers(2, CASES, "half_precision", stage, "fp16")[0]
            self.assertLess(fp16["far"], 5e-4, "sums of gradients rounded to 11 bits")
            self.assertGreater(fp16["skipped"], 0)
            self.assertTrue(fp16["exact"], "masters begin with the module's fp32 values")
            self.assertEqual(fp16["steps"], 12)
            halved = [2.0 ** (17 - k) for k in range(fp16["skipped"])]  # after each step, for the next one
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
            self.assertIn("is complete", verified.stdout)

    def test_modules_and_blocks_may_be_compiled(self) -> None:
        for case, far in ranks.answers(2, CASES, "compiled", [1, 3])[0].items():
            self.assertLess(far, 1e-5, case)

    def test_autocast_of_bf16_parameters_is_that_of_torch(self) -> None:
        for stage in (0, 3):
            for seen in ranks.answers(2, CASES, "autocast_of_bf16", stage):
                self.assertEqual(seen[0], seen[1])
        ended = ranks.run(1, CASES, "autocast_of_bf16", 2)
        self.assertIn("warning: torch_autocast: bf16 rounds the parameters, also for operations in fp32", ended.output)
        self.assertRegex(ended.output, r"norm \d")

    def test_states_in_16_bits_stay_in_fp32_with_a_warning(self) -> None:
        ended = ranks.run(2, CASES, "full_bf16")
        self.assertEqual(ended.output.count("bf16.bf16_master_weights_and_grads: is not supported: masters stay in fp32"), 1, ended.output)
        self.assertEqual(ended.output.count("bf16.bf16_optimizer_states: is not supported: optimizer states stay in fp32"), 1, ended.output)
        self.assertEqual(ended.output.count("equal"), 2, ended.output)

    def test_autocast_in_fp16_scales_the_loss_as_torch_does(self) -> None:
        for stage in (0, 2):
            seen = ranks.answers(2, CASES, "autocast_in_fp16", stage)[0]
            self.assertEqual(seen["scales"], seen["want"])
            self.assertEqual(seen["scales"][0] / seen["scales"][-1], 2, "an overflow halves it")
            self.assertEqual(seen["skipped"], 1)
            self.assertLess(seen["far"], 1e-4, "weights")

    def test_activations_may_be_computed_again(self) -> None:
        for stage in (2, 3):
            for mode, far in ranks.answers(2, CASES, "checkpointed", stage)[0].items():
                self.assertLess(far, 1e-6, f"{mode} at stage {stage}")

    def test_backwards_called_by_scripts_equal_torch(self) -> None:
        for case, far in ranks.answers(2, CASES, "own_backwards", [0, 1, 2, 3])[0].items():
            self.assertLess(far, 1e-5, case)

    def test_backwards_called_by_scripts_need_the_loss_scale(self) -> None:
        for stage in (1, 3):
            said = ranks.answers(1, CASES, "scaled_backwards", stage)[0]
            self.assertEqual(said["norms"][:2], said["norms"][2:])
            self.assertIn("StepOrderError: loss: Loss scaling is required", said["unscaled"])
            self.assertIn("StepOrderError: engine.backward: reaches trained parameters of Mlp", said["another's"])
            self.assertIn("zero_grad: called between loss.backward() and engine.step()", said["taken back"])
            self.assertEqual([said["failed"], said["after"]], ["ValueError: a hook of the script"] * 2)

    def test_backwards_of_one_step_are_added(self) -> None:
        for case, far in ranks.answers(2, CASES, "added_backwards", [0, 1, 2, 3])[0].items():
            self.assertLess(far, 1e-5, case)


if __name__ == "__main__":
    unittest.main(verbosity=2)
