#!/usr/bin/env python3
"""Parameters outside of the module, of other types, frozen, unfrozen and added in mid-training, and gradients as scripts see them.

Expected values come from the same loop in torch alone.
"""

from __future__ import annotations

import subprocess
import tempfile
import unittest
from typing import Any

import ranks

CLOSE = 1e-6


def on_two(case: str, *args: Any) -> Any:
    return ranks.answers(2, "trained_cases", case, *args)[0]


class Trained(unittest.TestCase):
    def test_parameters_outside_of_the_module_train_and_resume(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            got = on_two("outside_of_the_module", folder)
        self.assertTrue(got.pop("names"), "a state_dict for the module has the parameters of the module only")
        self.assertEqual(len(got), 8)
        for name, far in got.items():
            self.assertLess(far, CLOSE, name)

    def test_frozen_parameters_of_other_types_are_sharded_with_the_values_of_rank_0_and_come_back(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for rank, got in enumerate(ranks.answers(2, "trained_cases", "not_floating", folder)):
                self.assertEqual(got, dict.fromkeys(got, True), f"rank {rank}")
                self.assertEqual(len(got), 21)
            told = subprocess.run([ranks.CLEAVE, "inspect", f"{folder}/3"], capture_output=True, text=True, check=True).stdout
            self.assertRegex(told, r"bytes +int8 +19 words of 8 bytes +152 ")  # of 150 bytes

    def test_views_of_packed_integers_stay_valid_until_the_backward(self) -> None:
        for stage in (2, 3):
            for name, far in on_two("packed", stage).items():
                self.assertLess(far, CLOSE, f"stage {stage}, {name}")

    def test_parameters_frozen_and_unfrozen_at_random_end_as_in_torch(self) -> None:
        for name, far in on_two("frozen_in_turns", list(range(12))).items():
            self.assertLess(far, CLOSE, name)

    def test_a_frozen_parameter_keeps_its_bits_in_every_home(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            got = on_two("frozen_in_16_bits", folder)
        self.assertEqual(len(got), 14)
        for name, (weight, bias, master_of_weight, master_of_bias) in got.items():
            self.assertEqual((weight, master_of_weight, bias or master_of_bias), (True, True, False), name)

    def test_the_updates_that_a_frozen_layer_missed_survive_a_checkpoint(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for stage, far in on_two("frozen_and_resumed", folder).items():
                self.assertLess(far, CLOSE, f"saved at stage {stage}")

    def test_groups_can_be_added_depart_and_begin_to_decay(self) -> None:
        for name, far in on_two("groups_change").items():
            self.assertLess(far, CLOSE, name)

    def test_parameters_that_leave_the_optimizer_keep_their_values(self) -> None:
        for stage in (0, 3):
            for case, far in on_two("ungrouped", stage).items():
                self.assertLess(far, 1e-5, f"{case} at stage {stage}")

    def test_groups_that_warm_up_from_0_keep_their_own_rates(self) -> None:
        got = on_two("warms_up_from_zero")
        self.assertLess(got["apart"], CLOSE)
        self.assertEqual(got["rates"], [1e-3, 1e-2])

    def test_ranks_that_freeze_different_parameters_end_with_their_names(self) -> None:
        ended = ranks.run(2, "trained_cases", "frozen_on_one_rank")
        self.assertEqual(ended.code, 2, ended.output)
        self.assertIn("step 1: frozen parameters", ended.output)
        self.assertIn("frozen: head.weight, head.bias", ended.output)


class Gradients(unittest.TestCase):
    def test_clipping_by_hand_and_other_changes_are_those_of_torch(self) -> None:
        for name, (far, apart) in on_two("clipped_by_hand").items():
            self.assertLess(far, 0.15 if "bf16" in name else 1e-5, name)
            self.assertLess(apart, 2e-2 if "bf16" in name else CLOSE, name)

    def test_one_rank_may_read_alone(self) -> None:
        first, second = ranks.answers(2, "trained_cases", "read_on_one_rank")
        self.assertLess(max(first["apart"], second["apart"]), CLOSE)
        self.assertEqual((len(first["norms"]), len(second["norms"])), (5, 3))
        self.assertAlmostEqual(first["norms"][0], first["norms"][1], 6)
        self.assertTrue(first["after"] and second["after"], "a step leaves no gradient")

    def test_reads_that_cannot_work_say_what_works(self) -> None:
        got = on_two("gradients_not_shown")
        for name, text in (
            ("stage 2", "only a part of the gradient at ZeRO stage 2; call deepspeed.utils.safe_get_full_grad(parameter)"),
            ("stage 3", "only a part of the gradient at ZeRO stage 3; call deepspeed.utils.safe_get_full_grad(parameter)"),
            ("off", "head.weight.grad: cleave.visible_gradients is off; set it to on"),
            ("exact sums", "not summed as floating-point numbers"),
            ("unread", "no rank read a gradient in the first step; set cleave.visible_gradients to on"),
            ("early", "complete only after the last backward of a step"),
            ("discarded", "complete only after the last backward of a step"),
        ):
            self.assertIn(text, got[name], name)
        for name in ("stage 2", "stage 3", "off", "exact sums"):
            self.assertEqual(got[f"{name}, later"], "None")

    def test_the_key_shows_gradients_of_any_step(self) -> None:
        self.assertLess(on_two("shown_by_key"), CLOSE)


class Refused(unittest.TestCase):
    def test_calls_that_cannot_work_end_with_what_to_call(self) -> None:
        got = on_two("refused")
        for name, text in (
            ("inner step", "AdamW.step(): only the engine can update its parameters; call engine.step()"),
            ("ddp around", "the engine already sums gradients over the ranks"),
            ("ddp of the module", "the engine already sums gradients over the ranks"),
            ("ddp of a copy", "nothing"),
            ("ddp inside", "model: got a DistributedDataParallel"),
            ("fp64", "float64 is not supported; call model.float()"),
            ("complex", "wave: training of complex numbers is not supported"),
        ):
            self.assertIn(text, got[name], name)

    def test_a_conversion_of_the_module_is_an_error_of_the_next_forward(self) -> None:
        for stage in (0, 3):
            got = on_two("converted", stage)
            for name, dtype in (("double", "float64"), ("half", "float16"), ("bfloat16", "bfloat16")):
                self.assertRegex(
                    got[name], rf"\.weight: converted after initialize, as by module\.{name}\(\) \(got torch\.{dtype} on cpu, "
                )
            self.assertIn("module: converted to the meta device after initialize", got["meta"])
            self.assertEqual(got["same"], "nothing")

    def test_a_grad_scaler_is_named(self) -> None:
        for stage in (0, 2):
            self.assertIn("leave GradScaler out" if stage else "leave out GradScaler", on_two("scaled", stage))

    def test_modules_keep_their_16_bit_type(self) -> None:
        got = on_two("types_of_modules")
        self.assertEqual(got["bf16"][:3], ["torch.bfloat16", True, True])
        self.assertEqual(got["fp16"][:2], ["torch.float16", True])
        self.assertEqual(got["mixed"][:3], ["torch.float32", True, True])


if __name__ == "__main__":
    unittest.main(verbosity=2)
