#!/usr/bin/env python3
"""Changes of a module that its engine cannot follow are errors or warnings that name the parameter and an action."""

from __future__ import annotations

import tempfile
import unittest

import ranks

CASES = "changes_cases"
ACTION = "change it inside zero.GatheredParameters with modifier_rank, or with engine.load_module_state_dict or engine.set_parameter"


class ShardedParameters(unittest.TestCase):
    def test_a_change_outside_of_gathered_parameters_is_an_error_of_the_next_call(self) -> None:
        names = {"data of one element": "gain", "one element": "gain", "tied": "embed.weight"}
        for more in ({}, {"bf16": {"enabled": True}}):
            for seen in ranks.answers(2, CASES, "written", more):
                self.assertEqual(len(seen["said"]), 9 * 4)
                for case, error in seen["said"].items():
                    place = case.split(", ")[0]
                    if place in ("conversion", "read", "gathered"):
                        self.assertEqual(error, "nothing", case)
                        continue
                    name = names.get(place, "blocks.0.linear1.weight")
                    how = "replaced" if place in ("data", "data of one element", "tied") else "changed in place"
                    self.assertTrue(error.startswith(f"UsageError: {name}: its data was {how}, but this rank has only a part"), error)
                    self.assertIn(ACTION, error)
                self.assertTrue(seen["same"], "training continues after the errors, with the values of the engine")

    def test_a_change_before_a_backward_or_a_save_is_an_error_of_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for said in ranks.answers(2, CASES, "written_within_steps", folder):
                self.assertEqual(len(said), 9)
                for case, error in said.items():
                    self.assertRegex(error, r"UsageError: blocks\.0\.linear1\.weight: its data was (replaced|changed in place)", case)

    def test_an_error_of_torch_about_one_gets_the_action(self) -> None:
        ended = ranks.run(2, CASES, "changed_in_place")
        self.assertEqual(ended.code, 1, ended.output)
        self.assertIn("refers to a single memory location", ended.output)
        self.assertIn(ACTION, ended.output.splitlines()[-1])


class Structure(unittest.TestCase):
    def test_parameters_that_the_engine_does_not_have_are_errors_of_the_step_and_of_a_save(self) -> None:
        expected = {
            "replaced": r"head\.weight: replaced after initialize, so the new parameter is neither trained nor saved",
            "replaced_by_frozen": r"norm\.bias: replaced after initialize",
            "replaced_submodule": r"norm\.weight: replaced after initialize",
            "added": r"norm\.1\.weight: added after initialize, so it is neither trained nor saved; .* optimizer\.add_param_group",
            "added_and_unfrozen": r"norm\.1\.weight: added after initialize",
            "added_frozen": "^nothing",
            "added_frozen_and_replaced": "^nothing",
            "added_to_the_optimizer": "^nothing",
            "removed": "^nothing",
        }
        for stage in (0, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                for said in ranks.answers(2, CASES, "restructured", stage, folder):
                    self.assertEqual(len(said), 18)
                    for case, error in said.items():
                        self.assertRegex(error, expected[case.split(", ")[0]], f"stage {stage}: {case}")


class StateDicts(unittest.TestCase):
    def test_values_that_a_rank_does_not_have_are_a_warning_once_and_an_error_to_load(self) -> None:
        for stage in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                for seen in ranks.answers(2, CASES, "state_dicts", stage, folder):
                    warned = [name for name, count in seen.items() if count == 1]
                    self.assertEqual(warned, ["submodule"] if stage == 3 else [], "the first of three")
                    for name in ("load", "load of a submodule", "load by assignment"):
                        if stage == 3:
                            self.assertRegex(seen[name], r"UsageError: load_state_dict: .*; call engine\.load_module_state_dict, or", name)
                    self.assertEqual(seen["then"].partition(":")[0], "nothing" if stage == 3 else "UsageError")


if __name__ == "__main__":
    unittest.main(verbosity=2)
