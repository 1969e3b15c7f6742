#!/usr/bin/env python3
"""Parameters and their states, whole or as a rank's part, read and changed by scripts."""

from __future__ import annotations

import tempfile
import unittest

import ranks

CASES = "states_cases"


class States(unittest.TestCase):
    def test_gathered_parameters_are_whole_and_a_ranks_changes_reach_all(self) -> None:
        for stage in (2, 3):
            for rank, seen in enumerate(ranks.answers(2, CASES, "gathered", stage)):
                self.assertEqual(seen["outside"], stage == 3, "without values between uses at stage 3")
                self.assertEqual(seen["shape"], [5, 12])
                self.assertTrue(seen["inside"])
                self.assertEqual(seen["changed"], [2.5] * 12)
                self.assertTrue(seen["kept"], "unchanged parameters keep their masters")
                self.assertEqual(seen["names"], True if rank == 0 else None)
                self.assertEqual(seen["lost"], [], "a script on a CPU gets copies")

    def test_a_generator_gets_whole_weights_in_planned_memory(self) -> None:
        for stage in range(4):
            for seen in ranks.answers(2, CASES, "weights_for_a_generator", stage):
                self.assertEqual(seen, {"names": True, "same": True, "planned": True, "types": ["torch.bfloat16"]})

    def test_sanity_checks_find_a_change_that_is_lost(self) -> None:
        lost = "UsageError: GatheredParameters: an in-place modification is lost without modifier_rank; set it to the rank of the change"
        self.assertEqual(ranks.answers(2, CASES, "checked"), [[lost, "nothing"] * 2] * 2)

    def test_a_step_refuses_16_bit_weights_that_differ_from_their_masters(self) -> None:
        for said in ranks.answers(2, CASES, "changed_in_place", [0, 1, 2]):
            self.assertEqual(len(said), 3 * 3 * 6)
            for case, error in said.items():
                _, precision, change = case.split(" ", 2)
                undone = precision != "fp32" and change in ("added", "loaded", "not a number")
                if undone:
                    self.assertIn("changed in place, but the update computes torch.", error, case)
                    self.assertIn("change it inside zero.GatheredParameters with modifier_rank, or with engine.", error, case)
                elif change != "not a number":
                    self.assertEqual(error, "nothing", case)

    def test_an_engine_takes_the_memory_of_a_module_with_its_values(self) -> None:
        [[parameters, most]] = ranks.answers(1, CASES, "handed_over")
        self.assertGreater(most, parameters / 2, "weights in 16 bits")
        self.assertLess(most, parameters, "fp32 masters in addition to a whole module would take 1.5 times as much")

    def test_a_model_is_built_sharded(self) -> None:
        for seen in ranks.answers(2, CASES, "built_sharded"):
            self.assertLess(seen["held"], 0.52 * seen["numel"], "a rank's part of two")
            self.assertTrue(seen["nothing"], "parameters have no values")
            self.assertEqual(seen["statuses"], [["NOT_AVAILABLE"], ["AVAILABLE"], ["NOT_AVAILABLE"]], "built, gathered, in the engine")
            self.assertTrue(seen["same"], "gathered, they have those of a model that was built whole")
            self.assertLess(seen["far"], 1e-5)

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

    def test_a_rank_reads_and_writes_its_part_at_stage_3(self) -> None:
        for seen in ranks.answers(2, CASES, "parts"):
            self.assertEqual(set(seen["sizes"]), {0, 1}, "equal parts; the last is padded")
            self.assertEqual(max(seen["read"]), 0)
            self.assertLess(max(seen["written"]), 1e-6)
            self.assertEqual(seen["shown"], 0)
            self.assertLess(abs(seen["norm"]), 1e-6, "of the gradients that a function made")
            self.assertEqual(seen["frozen"], [None] * 6)
            self.assertIn("ranks have no parts of it at ZeRO stage 2 (expected stage 3)", seen["stage"])
            self.assertIn("first.weight [12, 8]: wrong size of a rank's part (got 1 elements, expected 48)", seen["size"])
            self.assertIn("does not belong to an engine", seen["no engine"])

    def test_states_of_the_optimizer_may_be_changed(self) -> None:
        for case, far in ranks.answers(2, CASES, "changed_moments", [0, 2, 3])[0].items():
            self.assertLess(far, 1e-5, case)

    def test_states_changed_within_a_step_are_updated_in_every_home(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            [first, second] = ranks.answers(2, CASES, "changed_within_steps", folder)
        self.assertEqual(first, second)
        self.assertEqual(len(set(first.values())), 1, first)

    def test_states_move_to_host_memory_and_back_with_the_same_bits(self) -> None:
        for stage in (0, 1, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                for seen in ranks.answers(2, CASES, "offloaded", stage, folder):
                    masters = seen["masters"]
                    self.assertGreaterEqual(masters, 4 * seen["parameters"] / (2 if stage else 1), "in fp32")
                    moved = [3 * masters, 2 * masters, masters, 0]
                    self.assertEqual(seen["bytes"], [[bytes, bytes] for bytes in moved], f"stage {stage}")
                    self.assertEqual(seen["equal"], [True] * 7, f"stage {stage}")
                    self.assertRegex(seen["inside"], "UsageError: offload_states: called inside a step")
                    self.assertRegex(seen["unknown"], r"UsageError: offload_states: unknown kind of state in include \(got lp_parameters")
                    self.assertRegex(seen["parameters in host memory"], "UsageError: offload_states: not supported with .*offload_param")


if __name__ == "__main__":
    unittest.main(verbosity=2)
